// One stretch of zeroed memory, handed out in pieces that live as long as it does: for
// the many large arrays of a shard. One mapping, however many pieces: the kernel's limit
// of mappings (vm.max_map_count) is never near, and giving back is one call that cannot
// fail half-way.
//
// Create touches every page, so that whoever works with the memory later waits for none:
// it takes about a second for 2 to 8 GB and belongs on a thread that nobody waits for.
// So does the destructor.
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
  SlabMemory() = default;  // of no bytes
  // ResourceExhausted when the system does not give that much address space. Where it
  // promises more than there is, it ends processes later: ask for what was admitted.
  static absl::StatusOr<SlabMemory> Create(size_t bytes);
  ~SlabMemory();
  SlabMemory(SlabMemory&& other) noexcept;
  SlabMemory& operator=(SlabMemory&& other) noexcept;

  // What a piece of so many bytes takes.
  static constexpr size_t Needs(size_t bytes) {
    return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment + kGap;
  }
  // Aligned to kBufferAlignment; null for no bytes. REQUIRES: it fits.
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
