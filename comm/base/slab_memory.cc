#include "comm/base/slab_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/sanitizers.h"

#if defined(SYNCLINE_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace syncline {
namespace {

// Unmapping blocks all threads of the process that map memory meanwhile. If pages are
// released before, piece by piece, each block is short.
constexpr size_t kReleasedAtOnce = size_t{64} << 20;

void Poison([[maybe_unused]] std::byte* memory, [[maybe_unused]] size_t bytes) {
#if defined(SYNCLINE_ASAN)
  ASAN_POISON_MEMORY_REGION(memory, bytes);
#endif
}

void Unpoison([[maybe_unused]] std::byte* memory, [[maybe_unused]] size_t bytes) {
#if defined(SYNCLINE_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
#endif
}

// Makes the system provide the pages by a write to each. New pages are zero.
void Touch(std::byte* memory, size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t offset = 0; offset < bytes; offset += page) {
    *static_cast<volatile std::byte*>(memory + offset) = std::byte{0};
  }
}

}  // namespace

absl::StatusOr<SlabMemory> SlabMemory::Create(size_t bytes) {
  if (bytes == 0) return SlabMemory();
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      /*fd=*/-1, /*offset=*/0);
  if (mapped == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the system does not give ", bytes, " bytes of memory: ", std::strerror(errno)));
  }
  auto* memory = static_cast<std::byte*>(mapped);
  // Huge pages are faster to touch and to walk. Without them, small pages work too.
  madvise(mapped, bytes, MADV_HUGEPAGE);
  Touch(memory, bytes);
  Poison(memory, bytes);
  return SlabMemory(memory, bytes);
}

SlabMemory::~SlabMemory() { Release(); }

SlabMemory::SlabMemory(SlabMemory&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      taken_(std::exchange(other.taken_, 0)) {}

SlabMemory& SlabMemory::operator=(SlabMemory&& other) noexcept {
  if (this == &other) return *this;
  Release();
  memory_ = std::exchange(other.memory_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  taken_ = std::exchange(other.taken_, 0);
  return *this;
}

void SlabMemory::Release() {
  if (memory_ == nullptr) return;
  Unpoison(memory_, bytes_);
  for (size_t offset = 0; offset < bytes_; offset += kReleasedAtOnce) {
    madvise(memory_ + offset, std::min(kReleasedAtOnce, bytes_ - offset), MADV_DONTNEED);
  }
  SYNCLINE_CHECK(munmap(memory_, bytes_) == 0);
  memory_ = nullptr;
}

std::byte* SlabMemory::Take(size_t bytes) {
  if (bytes == 0) return nullptr;
  SYNCLINE_CHECK(Needs(bytes) <= bytes_ - taken_);
  std::byte* piece = memory_ + taken_;
  taken_ += Needs(bytes);
  Unpoison(piece, bytes);
  return piece;
}

}  // namespace syncline
