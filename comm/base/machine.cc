#include "comm/base/machine.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "comm/base/buffer.h"
#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/base/process_limits.h"

namespace syncline {
namespace {

constexpr size_t kCopyBytes = size_t{256} << 20;
constexpr int kCopies = 5;

int UsableCores() {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return 1;
  const int quota = ReadProcessLimits().cores;
  return quota == 0 ? CPU_COUNT(&usable) : std::min(quota, CPU_COUNT(&usable));
}

double MeasureCopyGbs() {
  using Seconds = std::chrono::duration<double>;
  const Buffer from = Buffer::Allocate(kCopyBytes);
  const Buffer to = Buffer::Allocate(kCopyBytes);
  // Both buffers must have their pages before the clock starts.
  std::memset(from.data(), 1, kCopyBytes);
  std::memset(to.data(), 2, kCopyBytes);
  double best_seconds = 1e9;
  for (int i = 0; i < kCopies; ++i) {
    from.data()[i] = static_cast<std::byte>(i + 3);
    const auto start = std::chrono::steady_clock::now();
    StreamCopy(to.mutable_view(), from.view());
    const auto end = std::chrono::steady_clock::now();
    // Also keeps the compiler from removing the copy.
    SYNCLINE_CHECK(to.data()[i] == static_cast<std::byte>(i + 3));
    best_seconds = std::min(best_seconds, Seconds(end - start).count());
  }
  return 2.0 * static_cast<double>(kCopyBytes) / best_seconds / 1e9;
}

}  // namespace

void StreamCopy(MutableByteView to, ByteView from) {
#if defined(__x86_64__)
  const auto* source = reinterpret_cast<const __m128i*>(from.data());
  auto* target = reinterpret_cast<__m128i*>(to.data());
  for (size_t i = 0; i < from.size() / sizeof(__m128i); ++i) {
    _mm_stream_si128(target + i, _mm_load_si128(source + i));
  }
  _mm_sfence();
#else
  std::memcpy(to.data(), from.data(), from.size());
#endif
}

MachineInfo DescribeMachine() {
  return {UsableCores(), std::string(IsaName(ActiveIsa())), 0};
}

MachineInfo MeasureMachine() {
  MachineInfo machine = DescribeMachine();
  machine.copy_gbs = MeasureCopyGbs();
  return machine;
}

}  // namespace syncline
