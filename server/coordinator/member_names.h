// Checks of members' names, which are shown in logs and in the status.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "comm/base/limits.h"
#include "comm/base/printable.h"

namespace syncline {

// Room for HOST:PID, or for the value of --advertise. A host name has at most 253 bytes.
inline constexpr size_t kMaxMemberNameBytes = 320;

// Returns the host of a member's name: "gpu7" of "gpu7:4711".
inline std::string HostOfMember(const std::string& name) {
  return name.substr(0, name.rfind(':'));
}

inline absl::Status CheckUnlessEmpty(std::string_view what, std::string_view name,
                                     size_t max_bytes) {
  return name.empty() ? absl::OkStatus() : CheckName(what, name, max_bytes);
}

}  // namespace syncline
