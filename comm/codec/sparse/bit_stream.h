// Reads and writes streams of bits, lowest first: bit i is bit i % 8 of byte i / 8.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "comm/base/buffer.h"
#include "comm/base/check.h"

namespace syncline {

// Fills `out` from its start. Finish pads the last byte with zeros. REQUIRES: room for
// everything that is written.
class BitWriter {
 public:
  explicit BitWriter(MutableByteView out) : out_(out) {}

  // Writes the `count` <= 32 lowest bits of `bits`. REQUIRES: the other bits are zero.
  void Write(uint32_t bits, uint32_t count) {
    open_ |= uint64_t{bits} << filled_;
    filled_ += count;
    if (filled_ >= 32) FlushWord();
  }

  void WriteZeros(uint32_t count) {
    for (; count > 32; count -= 32) Write(0, 32);
    Write(0, count);
  }

  // Returns the number of bytes used.
  size_t Finish() {
    for (; filled_ > 0; filled_ -= filled_ < 8 ? filled_ : 8) {
      SYNCLINE_CHECK(used_ < out_.size());
      out_[used_++] = static_cast<std::byte>(open_);
      open_ >>= 8;
    }
    return used_;
  }

 private:
  void FlushWord() {
    SYNCLINE_CHECK(out_.size() - used_ >= sizeof(uint32_t));
    const auto word = static_cast<uint32_t>(open_);
    std::memcpy(out_.data() + used_, &word, sizeof(word));
    used_ += sizeof(word);
    open_ >>= 32;
    filled_ -= 32;
  }

  MutableByteView out_;
  size_t used_ = 0;
  uint64_t open_ = 0;
  uint32_t filled_ = 0;  // bits in open_; below 32 between calls
};

// Reads bytes that may be damaged. Past the end it reads zeros, and Overran returns true.
class BitReader {
 public:
  explicit BitReader(ByteView bytes) : bytes_(bytes) {}

  // REQUIRES: count <= 32.
  uint32_t Read(uint32_t count) {
    const uint64_t bits = Peek() & ((uint64_t{1} << count) - 1);
    position_ += count;
    return static_cast<uint32_t>(bits);
  }

  // Returns the number of zeros before the next one, and consumes that one. Stops at the
  // end.
  size_t ReadUnary() {
    size_t zeros = 0;
    uint64_t bits = Peek();
    while (bits == 0) {
      if (Overran()) return zeros;
      zeros += kPeeked;
      position_ += kPeeked;
      bits = Peek();
    }
    const auto rest = static_cast<size_t>(std::countr_zero(bits));
    position_ += rest + 1;
    return zeros + rest;
  }

  bool Overran() const { return position_ > 8 * bytes_.size(); }

  // Whether only zero bits of the last byte are left.
  bool AtCleanEnd() const {
    return !Overran() && 8 * bytes_.size() - position_ < 8 && Peek() == 0;
  }

 private:
  static constexpr size_t kPeeked = 56;  // bits that Peek can return at any position

  uint64_t Peek() const {
    const size_t byte = position_ / 8;
    uint64_t word = 0;
    if (byte + sizeof(word) <= bytes_.size()) {
      std::memcpy(&word, bytes_.data() + byte, sizeof(word));
    } else if (byte < bytes_.size()) {
      std::memcpy(&word, bytes_.data() + byte, bytes_.size() - byte);
    }
    return (word >> (position_ % 8)) & ((uint64_t{1} << kPeeked) - 1);
  }

  ByteView bytes_;
  size_t position_ = 0;  // in bits
};

}  // namespace syncline
