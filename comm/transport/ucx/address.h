// The bytes by which peers reach a UCX transport: UCX's own worker address, sealed, and
// with it who lives there. UCX parses addresses without looking where they end, so that a
// damaged one must never get to it.
//
//   u32 magic "SLU1"      u32 CRC-32C of what follows      u64 place
//   u32 process id        u32 zero                         UCX's bytes
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

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
// Of a process of which this is all that matters.
uint64_t PlaceOf(std::string_view description);

// Those of UCX have a few hundred bytes; many devices make them longer, never this long.
inline constexpr size_t kMaxUcxAddressBytes = 4096;

std::string EncodeAddress(const UcxAddress& address);

// InvalidArgument unless `bytes` came from EncodeAddress unharmed, and for more than
// kMaxUcxAddressBytes. UCX's part cannot be checked: whoever may send an address is
// trusted with it.
absl::StatusOr<UcxAddress> ParseAddress(const std::string& bytes);

}  // namespace syncline
