// Amounts of memory as people write and read them.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const uint64_t bytes, ParseByteSize("12GiB"));
//   FormatByteSize(bytes);  // "12.0 GiB"
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

// A number, with a fraction or not, and a unit: none or B; k, M, G, T (powers of 1000);
// Ki, Mi, Gi, Ti (of 1024), as Kubernetes writes them; each may end with B. InvalidArgument
// says what was meant.
absl::StatusOr<uint64_t> ParseByteSize(std::string_view written);

// With one digit after the point from KiB on.
std::string FormatByteSize(uint64_t bytes);

}  // namespace syncline
