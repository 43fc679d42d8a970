// Parses and formats amounts of memory.
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

// Parses a number, possibly with a fraction, and a unit: none or B; k, M, G, T (powers of
// 1000); Ki, Mi, Gi, Ti (of 1024), as Kubernetes writes them. Each may end with B.
// InvalidArgument says what is expected.
absl::StatusOr<uint64_t> ParseByteSize(std::string_view written);

// Formats with one digit after the decimal point from KiB on.
std::string FormatByteSize(uint64_t bytes);

}  // namespace syncline
