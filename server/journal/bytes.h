// Writes and reads numbers and strings as bytes, little-endian, for the journal's
// formats.
//
//   ByteWriter out;                      ByteReader in(bytes);
//   out.Put<uint32_t>(7);                const auto seven = in.Take<uint32_t>();
//   out.PutString("lr");                 const std::string name = in.TakeString();
//                                        if (!in.ok()) return DamagedError(...);
//
// Thread safety: none.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/base/buffer.h"

namespace syncline {

static_assert(std::endian::native == std::endian::little);

class ByteWriter {
 public:
  template <typename Number>
  void Put(Number value) {
    static_assert(std::is_arithmetic_v<Number>);
    bytes_.resize(bytes_.size() + sizeof(value));
    std::memcpy(bytes_.data() + bytes_.size() - sizeof(value), &value, sizeof(value));
  }
  void PutString(std::string_view value) {
    Put(static_cast<uint32_t>(value.size()));
    const auto* bytes = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), bytes, bytes + value.size());
  }
  // Writes the number of values, then the values.
  template <typename Value>
  void PutValues(const std::vector<Value>& values) {
    Put(static_cast<uint32_t>(values.size()));
    const auto bytes = std::as_bytes(std::span(values));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Once a read goes past the end, ok() is false and everything that is taken is zero or
// empty.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : rest_(bytes) {}

  template <typename Number>
  Number Take() {
    Number value = {};
    const ByteView bytes = TakeBytes(sizeof(value));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  std::string TakeString() {
    const ByteView bytes = TakeBytes(Take<uint32_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  ByteView TakeBytes(size_t count) {
    ok_ = ok_ && count <= rest_.size();
    if (!ok_) return {};
    const ByteView bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }
  template <typename Value>
  std::vector<Value> TakeValues() {
    const auto count = Take<uint32_t>();
    if (!CanHold(count, sizeof(Value))) return {};
    const ByteView bytes = TakeBytes(count * sizeof(Value));
    std::vector<Value> values(count);
    if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  // Returns whether `count` entries of at least `bytes` each can follow. Call it before
  // allocating memory for them.
  bool CanHold(uint64_t count, size_t bytes) {
    ok_ = ok_ && count <= rest_.size() / bytes;
    return ok_;
  }
  bool ok() const { return ok_; }
  bool is_at_end() const { return ok_ && rest_.empty(); }
  size_t left() const { return rest_.size(); }

 private:
  ByteView rest_;
  bool ok_ = true;
};

}  // namespace syncline
