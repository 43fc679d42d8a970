// A secret of 32 bytes, which is erased from memory when it is destroyed.
//
// Thread safety: as a plain value.
#pragma once

#include <string.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>

namespace syncline {

class SecretKey {
 public:
  static constexpr size_t kBytes = 32;

  SecretKey() = default;  // no key
  SecretKey(const SecretKey&) = default;
  SecretKey& operator=(const SecretKey&) = default;
  ~SecretKey() { Erase(); }

  // Returns nullopt unless `bytes` has kBytes bytes.
  static std::optional<SecretKey> From(std::span<const std::byte> bytes) {
    if (bytes.size() != kBytes) return std::nullopt;
    SecretKey key;
    std::memcpy(key.bytes_.data(), bytes.data(), kBytes);
    key.is_set_ = true;
    return key;
  }

  bool empty() const { return !is_set_; }
  std::span<const std::byte, kBytes> bytes() const { return bytes_; }

  void Erase() {
    explicit_bzero(bytes_.data(), kBytes);  // the compiler may not leave it out
    is_set_ = false;
  }

  friend bool operator==(const SecretKey&, const SecretKey&) = default;

 private:
  std::array<std::byte, kBytes> bytes_ = {};
  bool is_set_ = false;
};

}  // namespace syncline
