// The address of a network transport: how it is reached, and where.
//
//   u32 magic "SLN2"   u32 CRC-32C of what follows   u8 mode   u8 zero
//   u16 bytes of TCP's address                       TCP's address, then UCX's
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "comm/transport/network/network.h"

namespace syncline {

struct NetworkAddress {
  DataPlaneMode mode = DataPlaneMode::kHost;
  std::string tcp = {};  // empty: does not listen
  std::string ucx = {};  // empty: not by UCX
};

std::string EncodeNetworkAddress(const NetworkAddress& address);

// InvalidArgument unless `bytes` came from EncodeNetworkAddress unharmed.
absl::StatusOr<NetworkAddress> ParseNetworkAddress(const std::string& bytes);

// Of what EncodeNetworkAddress gave, for people: "192.0.2.7:41234", "process 4711 of this
// host"; "a damaged address" for anything else.
std::string DescribeNetworkAddress(const std::string& bytes);

}  // namespace syncline
