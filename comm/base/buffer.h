// Byte buffers for messages: aligned, and shared by the messages in flight that refer to
// them.
//
// Thread safety: a Buffer handle is like a shared_ptr: distinct handles may be used and
// released on distinct threads; the bytes are written by one thread before the handle is
// shared, and only read afterwards. A BufferPool belongs to one thread, but its buffers
// may be released anywhere and may outlive it.
//
//   BufferPool pool(64 << 20);
//   Buffer landed = pool.Allocate(payload_bytes);  // recycled: its pages are mapped
//   Slice slice = Slice::Of(landed, 0, 128);       // keeps `landed` alive
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace syncline {

using ByteView = std::span<const std::byte>;
using MutableByteView = std::span<std::byte>;

// All payloads are aligned so that a landed frame decodes in place with full vector
// loads.
inline constexpr size_t kBufferAlignment = 64;

class Buffer {
 public:
  Buffer() = default;

  // Returns new, uninitialised memory of `bytes`, aligned to kBufferAlignment.
  static Buffer Allocate(size_t bytes);
  static Buffer CopyOf(ByteView bytes);

  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  ByteView view() const { return {data_.get(), size_}; }
  MutableByteView mutable_view() const { return {data_.get(), size_}; }
  const std::shared_ptr<std::byte>& owner() const { return data_; }

 private:
  friend class BufferPool;
  Buffer(std::shared_ptr<std::byte> data, size_t size)
      : data_(std::move(data)), size_(size) {}

  std::shared_ptr<std::byte> data_;
  size_t size_ = 0;
};

// A read-only piece of memory to be sent. `owner` keeps it alive. If it is null, the
// creator of the slice guarantees that the bytes stay unchanged until the send is done.
struct Slice {
  const std::byte* data = nullptr;
  size_t size = 0;
  std::shared_ptr<const void> owner;

  static Slice Of(const Buffer& buffer) {
    return {buffer.data(), buffer.size(), buffer.owner()};
  }
  static Slice Of(const Buffer& buffer, size_t offset, size_t bytes) {
    return {buffer.data() + offset, bytes, buffer.owner()};
  }
  static Slice Borrowed(ByteView bytes) { return {bytes.data(), bytes.size(), nullptr}; }
};

// The contents of one message: the concatenation of its slices.
using Payload = std::vector<Slice>;

size_t PayloadBytes(const Payload& payload);

// Returns the payload as one contiguous buffer (a copy).
Buffer Gather(const Payload& payload);

// The contents of a received message: `head`, then `body`. There is a head only if the
// sender lent its program's memory as the body, which has no room for the head.
struct Landed {
  Landed() = default;
  // NOLINTNEXTLINE(google-explicit-constructor)
  Landed(Slice whole) : body(std::move(whole)) {}
  Landed(Slice head, Slice body) : head(std::move(head)), body(std::move(body)) {}

  size_t size() const { return head.size + body.size; }
  // Copies all bytes to `out`, which has size() bytes.
  void CopyTo(std::byte* out) const;

  Slice head;
  Slice body;
};

// Recycles large buffers by size class, so that the steady state neither allocates nor
// touches new pages. Keeps at most `max_idle_bytes` for reuse and frees the rest.
class BufferPool {
 public:
  explicit BufferPool(size_t max_idle_bytes);

  Buffer Allocate(size_t bytes);
  size_t idle_bytes() const;

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace syncline
