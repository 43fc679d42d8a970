// What members may call themselves: their names stand in logs and in the status.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "comm/base/limits.h"
#include "comm/base/printable.h"

namespace syncline {

// HOST:PID, or what --advertise says; a host's name has at most 253 bytes.
inline constexpr size_t kMaxMemberNameBytes = 320;

// Of "gpu7:4711": "gpu7".
inline std::string HostOfMember(const std::string& name) {
  return name.substr(0, name.rfind(':'));
}

inline absl::Status CheckUnlessEmpty(std::string_view what, std::string_view name,
                                     size_t max_bytes) {
  return name.empty() ? absl::OkStatus() : CheckName(what, name, max_bytes);
}

}  // namespace syncline
