// The head of a safetensors file: https://github.com/huggingface/safetensors#format
//
//   8 bytes  N, little-endian
//   N bytes  JSON: {"__metadata__": {name: string, ...},
//                   tensor: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//   the rest data, to which the offsets refer; without holes
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

// An upper limit of what an entry with such a name takes, with some metadata of its name.
size_t MaxEntryBytes(const std::string& name);
inline constexpr size_t kMaxHeadBytesWithoutEntries = 1024;

// With spaces up to `bytes`. REQUIRES: it fits.
std::string WriteHead(const SafetensorsHead& head, size_t bytes);

// `bytes`: the whole head. DataLoss when it is none, or when entries lie outside of
// `data_bytes` or are of another size than their shapes say.
absl::StatusOr<SafetensorsHead> ParseHead(const std::string& bytes, uint64_t data_bytes);

}  // namespace syncline
