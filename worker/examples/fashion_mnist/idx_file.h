// Reads the IDX files of the MNIST family (gzip or plain): two zero bytes, element type,
// number of dimensions, big-endian u32 sizes, then the elements. Believes nothing: magic,
// element type, every dimension and the exact length must be the expected ones, and no
// more memory is allocated than those say.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const std::vector<uint8_t> labels,
//                             ReadIdxFile(dir + "/labels.gz", {10'000}));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncline::fashion_mnist {

// The unsigned bytes of `path`, whose dimensions must be exactly `dimensions`.
// NOT_FOUND: no such file. INVALID_ARGUMENT: another format, or other sizes.
// DATA_LOSS: truncated or corrupt.
absl::StatusOr<std::vector<uint8_t>> ReadIdxFile(const std::string& path,
                                                 const std::vector<uint32_t>& dimensions);

}  // namespace syncline::fashion_mnist
