#include "server/checkpoint/safetensors.h"

#include <bit>
#include <cstring>
#include <limits>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/shallow_json.h"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr char kMetadata[] = "__metadata__";
constexpr size_t kLengthBytes = 8;

uint64_t BytesOf(const std::string& dtype) {
  if (dtype == "F32") return 4;
  if (dtype == "F64") return 8;
  return dtype == "U8" ? 1 : 0;
}

// Returns false for an entry that this program would not write.
bool ReadEntry(const Json& json, uint64_t data_bytes, SafetensorsEntry& entry) {
  const Json dtype = json.value("dtype", Json());
  const Json shape = json.value("shape", Json());
  const Json offsets = json.value("data_offsets", Json());
  if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() ||
      offsets.size() != 2) {
    return false;
  }
  entry.dtype = dtype.get<std::string>();
  uint64_t bytes = BytesOf(entry.dtype);
  if (bytes == 0) return false;
  for (const Json& size : shape) {
    if (!size.is_number_unsigned()) return false;
    entry.shape.push_back(size.get<uint64_t>());
    if (entry.shape.back() > data_bytes / bytes) return false;
    bytes *= entry.shape.back();
    if (bytes == 0) break;
  }
  if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) return false;
  entry.begin = offsets[0];
  entry.end = offsets[1];
  return entry.begin <= entry.end && entry.end <= data_bytes &&
         entry.end - entry.begin == bytes;
}

}  // namespace

size_t MaxEntryBytes(const std::string& name) {
  // Each byte may become \u00xx (6 bytes), and the name occurs twice.
  return 2 * 6 * name.size() + 384;
}

std::string WriteHead(const SafetensorsHead& head, size_t bytes) {
  Json json = Json::object();
  if (!head.metadata.empty()) json[kMetadata] = head.metadata;
  for (const auto& [name, entry] : head.entries) {
    json[name] = {{"dtype", entry.dtype},
                  {"shape", entry.shape},
                  {"data_offsets", {entry.begin, entry.end}}};
  }
  const std::string dumped = json.dump();
  SYNCLINE_CHECK(kLengthBytes + dumped.size() <= bytes);
  static_assert(std::endian::native == std::endian::little);
  const uint64_t length = bytes - kLengthBytes;
  std::string written(bytes, ' ');
  std::memcpy(written.data(), &length, kLengthBytes);
  std::memcpy(written.data() + kLengthBytes, dumped.data(), dumped.size());
  return written;
}

absl::StatusOr<SafetensorsHead> ParseHead(const std::string& bytes, uint64_t data_bytes) {
  const absl::Status damaged =
      absl::DataLossError("it does not begin with the head of a safetensors file");
  uint64_t length = 0;
  if (bytes.size() < kLengthBytes) return damaged;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length != bytes.size() - kLengthBytes) return damaged;
  const Json json = ParseShallowJson(std::string_view(bytes).substr(kLengthBytes));
  if (!json.is_object()) return damaged;
  SafetensorsHead head;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_object()) return damaged;
    if (name != kMetadata) {
      if (ReadEntry(value, data_bytes, head.entries[name])) continue;
      return absl::DataLossError(absl::StrCat("the entry of '", name, "' is invalid"));
    }
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) return damaged;
      head.metadata[key] = text.get<std::string>();
    }
  }
  return head;
}

}  // namespace syncline
