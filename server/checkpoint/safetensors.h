// The head of a safetensors file. Its format is described at
// https://github.com/huggingface/safetensors#format:
//
//   8 bytes   N, little-endian
//   N bytes   JSON: {"__metadata__": {name: string, ...},
//                    tensor: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//   the rest  data, without holes; data_offsets count from its beginning
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/base/buffer.h"

namespace syncline {

struct SafetensorsEntry {
  std::string dtype = {};  // "F32", "F64", "U8"
  std::vector<uint64_t> shape = {};
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct SafetensorsHead {
  std::map<std::string, SafetensorsEntry> entries = {};
  std::map<std::string, std::string> metadata = {};
};

// Returns an upper bound of the bytes that an entry of this name takes in the head,
// including up to a few hundred bytes of metadata under the same name.
size_t MaxEntryBytes(const std::string& name);
inline constexpr size_t kMaxHeadBytesWithoutEntries = 1024;

// Returns the head, padded with spaces to `bytes`. REQUIRES: it fits.
std::string WriteHead(const SafetensorsHead& head, size_t bytes);

// Parses a head. `bytes` is the whole head. Fails with DataLoss if it is malformed, or if
// an entry lies outside of `data_bytes` or its size does not match its shape.
absl::StatusOr<SafetensorsHead> ParseHead(const std::string& bytes, uint64_t data_bytes);

}  // namespace syncline
