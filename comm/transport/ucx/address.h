// The bytes by which peers reach a UCX transport: UCX's own worker address, sealed, and
// with it who lives there. UCX parses addresses without looking where they end, so that a
// damaged one must never get to it.
//
//   u32 magic "SLU1"      u32 CRC-32C of what follows      u64 place
//   u32 process id        u32 zero                         UCX's bytes
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace syncline {

struct UcxAddress {
  // A hash of all that two processes must share to share memory: the boot, the IPC and
  // process namespaces and the user.
  uint64_t place = 0;
  uint32_t process_id = 0;
  std::string worker;  // UCX's bytes
};

// Of this process.
uint64_t PlaceOfThisProcess();

std::string EncodeAddress(const UcxAddress& address);

// InvalidArgument unless `bytes` came from EncodeAddress unharmed.
absl::StatusOr<UcxAddress> ParseAddress(const std::string& bytes);

}  // namespace syncline
