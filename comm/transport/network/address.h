// The address of a network transport: the mode in which it is reached, and the addresses
// of TCP and UCX.
//
//   u32 magic "SLN2"   u32 CRC-32C of what follows   u8 mode   u8 zero
//   u16 bytes of TCP's address                       TCP's address, then UCX's
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "comm/transport/network/network.h"

namespace syncline {

struct NetworkAddress {
  DataPlaneMode mode = DataPlaneMode::kHost;
  std::string tcp = {};  // empty: does not listen with TCP
  std::string ucx = {};  // empty: not reached by UCX
};

std::string EncodeNetworkAddress(const NetworkAddress& address);

// Fails with InvalidArgument unless `bytes` is an intact result of EncodeNetworkAddress.
absl::StatusOr<NetworkAddress> ParseNetworkAddress(const std::string& bytes);

// Describes an encoded address for messages: "192.0.2.7:41234", "process 4711 of this
// host", or "a damaged address".
std::string DescribeNetworkAddress(const std::string& bytes);

}  // namespace syncline
