// A single mapping of zeroed memory, handed out in pieces that live as long as it does,
// for the many large arrays of a shard. With one mapping the kernel's limit
// (vm.max_map_count) is never reached, and releasing the memory is one call that cannot
// fail halfway.
//
// Create touches every page, so that later users do not wait for page faults. It takes
// about a second for 2 to 8 GB: call it, and the destructor, on a thread that no other
// waits for.
//
//   SYNCLINE_ASSIGN_OR_RETURN(SlabMemory memory,
//                             SlabMemory::Create(2 * SlabMemory::Needs(bytes)));
//   std::byte* weights = memory.Take(bytes);
//   std::byte* momentum = memory.Take(bytes);
//
// Thread safety: none. Address sanitizers see the gaps between pieces.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "comm/base/sanitizers.h"

namespace syncline {

class SlabMemory {
 public:
  SlabMemory() = default;  // has no bytes
  // Fails with ResourceExhausted when the system refuses the address space. A system that
  // overcommits kills processes later, so request only what was admitted.
  static absl::StatusOr<SlabMemory> Create(size_t bytes);
  ~SlabMemory();
  SlabMemory(SlabMemory&& other) noexcept;
  SlabMemory& operator=(SlabMemory&& other) noexcept;

  // Returns the bytes that a piece of this size takes.
  static constexpr size_t Needs(size_t bytes) {
    return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment + kGap;
  }
  // Returns a piece aligned to kBufferAlignment; null for 0 bytes. REQUIRES: it fits.
  std::byte* Take(size_t bytes);

 private:
#if defined(SYNCLINE_ASAN)
  static constexpr size_t kGap = kBufferAlignment;
#else
  static constexpr size_t kGap = 0;
#endif

  SlabMemory(std::byte* memory, size_t bytes) : memory_(memory), bytes_(bytes) {}
  void Release();

  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
  size_t taken_ = 0;
};

}  // namespace syncline
