#include "comm/codec/sparse/tensor_histogram.h"

#include <bit>
#include <cstddef>

#include "comm/base/isa.h"
#include "comm/codec/sparse/magnitude.h"

namespace syncline {
namespace {

// The bins are computed in vectors; the counting cannot be.
SYNCLINE_KERNEL void CountBody(size_t n, const float* values, int shift,
                               uint64_t* counts) {
  constexpr size_t kGroup = 32;
  uint32_t bins[kGroup];
  size_t first = 0;
  for (; first + kGroup <= n; first += kGroup) {
    for (size_t i = 0; i < kGroup; ++i) {
      bins[i] = MagnitudeBits(values[first + i]) >> shift;
    }
    for (size_t i = 0; i < kGroup; ++i) ++counts[bins[i]];
  }
  for (size_t i = first; i < n; ++i) ++counts[MagnitudeBits(values[i]) >> shift];
}

}  // namespace

void TensorHistogram::Add(std::span<const float> values) {
  Kernel<CountBody>::Run(values.size(), values.data(), kShift, counts_->data());
}

float TensorHistogram::ThresholdFor(uint64_t k) const {
  constexpr uint32_t kInfinityBits = 0x7f800000;
  const Counts& counts = *counts_;
  uint64_t above = 0;
  uint32_t bin = kInfinityBits >> kShift;
  // Bin 0 holds zeros and values that are too small to be told from them.
  while (bin > 1 && above + counts[bin - 1] <= k) above += counts[--bin];
  const bool has_all = bin == 1;
  if (above == 0 || (!has_all && above < k - above)) return 0;
  return std::bit_cast<float>(bin << kShift);
}

}  // namespace syncline
