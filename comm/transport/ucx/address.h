// The address by which peers reach a UCX transport: UCX's own worker address with a
// checksum, and where its process runs. UCX parses addresses without checking where they
// end, so a damaged one must never reach it.
//
//   u32 magic "SLU1"      u32 CRC-32C of what follows      u64 place
//   u32 process id        u32 zero                         UCX's bytes
//
// Thread safety: functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

struct UcxAddress {
  // A hash of everything that two processes must have in common to share memory: the
  // boot, the IPC and process namespaces, and the user.
  uint64_t place = 0;
  uint32_t process_id = 0;
  std::string worker;  // UCX's bytes
};

// Returns the place of this process.
uint64_t PlaceOfThisProcess();
// Returns the place of a process with this description.
uint64_t PlaceOf(std::string_view description);

// UCX's addresses have a few hundred bytes. Many devices make them longer, but never this
// long.
inline constexpr size_t kMaxUcxAddressBytes = 4096;

std::string EncodeAddress(const UcxAddress& address);

// Fails with InvalidArgument unless `bytes` is an intact result of EncodeAddress of at
// most kMaxUcxAddressBytes. UCX's part cannot be checked: a peer that may send an address
// is trusted in this.
absl::StatusOr<UcxAddress> ParseAddress(const std::string& bytes);

}  // namespace syncline
