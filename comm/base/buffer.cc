#include "comm/base/buffer.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/check.h"

namespace syncline {
namespace {

// Smaller buffers come from malloc: its own caches are as good for them.
constexpr size_t kSmallestPooledBytes = 4096;

size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::byte* AllocateAligned(size_t bytes) {
  void* memory = std::aligned_alloc(kBufferAlignment, RoundUp(bytes, kBufferAlignment));
  SYNCLINE_CHECK(memory != nullptr);
  return static_cast<std::byte*>(memory);
}

void Free(std::byte* memory) { std::free(memory); }

// Rounds up to sizes that are a quarter of a power of two apart. At most 25 % is wasted,
// and a full FP32 block with its headers (a little over 4 MiB) takes 5 MiB instead of 8.
size_t PooledBytes(size_t bytes) {
  return RoundUp(bytes, std::max(std::bit_floor(bytes) / 4, kSmallestPooledBytes / 4));
}

}  // namespace

Buffer Buffer::Allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  return Buffer(std::shared_ptr<std::byte>(AllocateAligned(bytes), Free), bytes);
}

Buffer Buffer::CopyOf(ByteView bytes) {
  Buffer copy = Allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

size_t PayloadBytes(const Payload& payload) {
  size_t bytes = 0;
  for (const Slice& slice : payload) bytes += slice.size;
  return bytes;
}

Buffer Gather(const Payload& payload) {
  Buffer gathered = Buffer::Allocate(PayloadBytes(payload));
  std::byte* out = gathered.data();
  for (const Slice& slice : payload) {
    if (slice.size == 0) continue;
    std::memcpy(out, slice.data, slice.size);
    out += slice.size;
  }
  return gathered;
}

void Landed::CopyTo(std::byte* out) const {
  if (head.size > 0) std::memcpy(out, head.data, head.size);
  if (body.size > 0) std::memcpy(out + head.size, body.data, body.size);
}

// The idle memory of one pool. Buffers in use refer to it weakly: if the pool is gone,
// they return to the allocator.
struct BufferPool::Shelf {
  explicit Shelf(size_t max_idle_bytes) : max_idle_bytes(max_idle_bytes) {}
  ~Shelf() {
    for (auto& [bytes, stack] : idle) {
      for (std::byte* memory : stack) Free(memory);
    }
  }

  std::byte* Take(size_t bytes) {
    absl::MutexLock lock(&mutex);
    const auto found = idle.find(bytes);
    if (found == idle.end() || found->second.empty()) return nullptr;
    // Last in, first out: the warmest pages.
    std::byte* memory = found->second.back();
    found->second.pop_back();
    idle_bytes -= bytes;
    return memory;
  }

  void Put(std::byte* memory, size_t bytes) {
    {
      absl::MutexLock lock(&mutex);
      if (idle_bytes + bytes <= max_idle_bytes) {
        idle[bytes].push_back(memory);
        idle_bytes += bytes;
        return;
      }
    }
    Free(memory);
  }

  const size_t max_idle_bytes;
  absl::Mutex mutex;
  size_t idle_bytes ABSL_GUARDED_BY(mutex) = 0;
  std::map<size_t, std::vector<std::byte*>> idle ABSL_GUARDED_BY(mutex);
};

BufferPool::BufferPool(size_t max_idle_bytes)
    : shelf_(std::make_shared<Shelf>(max_idle_bytes)) {}

Buffer BufferPool::Allocate(size_t bytes) {
  if (bytes < kSmallestPooledBytes) return Buffer::Allocate(bytes);
  const size_t pooled_bytes = PooledBytes(bytes);
  std::byte* memory = shelf_->Take(pooled_bytes);
  if (memory == nullptr) memory = AllocateAligned(pooled_bytes);
  auto put_back = [shelf = std::weak_ptr<Shelf>(shelf_),
                   pooled_bytes](std::byte* released) {
    if (const auto alive = shelf.lock()) {
      alive->Put(released, pooled_bytes);
    } else {
      Free(released);
    }
  };
  return Buffer(std::shared_ptr<std::byte>(memory, std::move(put_back)), bytes);
}

size_t BufferPool::idle_bytes() const {
  absl::MutexLock lock(&shelf_->mutex);
  return shelf_->idle_bytes;
}

}  // namespace syncline
