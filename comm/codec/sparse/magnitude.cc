#include "comm/codec/sparse/magnitude.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "comm/base/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace syncline {
namespace {

// Below this a sample says little, and looking at all values costs little.
constexpr uint32_t kSampledFrom = 4096;
// Odd, so that the columns of matrices of any usual width are met.
constexpr uint32_t kStride = 61;

// Most groups hold nothing to find, and their maximum shows it.
constexpr size_t kGroup = 16;

SYNCLINE_KERNEL void FindBody(size_t n, const float* values, uint32_t floor,
                              uint16_t* out, uint32_t* count) {
  uint32_t found = 0;
  size_t first = 0;
  for (; first + kGroup <= n; first += kGroup) {
    uint32_t largest = 0;
    for (size_t i = 0; i < kGroup; ++i) {
      const uint32_t bits = MagnitudeBits(values[first + i]);
      largest = bits > largest ? bits : largest;
    }
    if (largest < floor) continue;
    for (size_t i = first; i < first + kGroup; ++i) {
      out[found] = static_cast<uint16_t>(i);
      found += MagnitudeBits(values[i]) >= floor ? 1 : 0;
    }
  }
  for (size_t i = first; i < n; ++i) {
    out[found] = static_cast<uint16_t>(i);
    found += MagnitudeBits(values[i]) >= floor ? 1 : 0;
  }
  *count = found;
}

#if defined(__x86_64__)
// Compresses in a register and stores the whole register: compressing stores to memory
// are very slow on some CPUs, and a branch for groups without a find costs more than it
// saves.
SYNCLINE_TARGET_V4 uint32_t FindV4(std::span<const float> values, uint32_t floor,
                                   uint16_t* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i floors = _mm512_set1_epi32(static_cast<int>(floor));
  const __m512i step = _mm512_set1_epi32(16);
  __m512i positions =
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  uint32_t found = 0;
  for (size_t i = 0; i < values.size(); i += 16) {
    const size_t rest = values.size() - i;
    const auto lanes = static_cast<__mmask16>(rest >= 16 ? 0xffff : (1u << rest) - 1);
    const __m512i bits = _mm512_and_si512(
        _mm512_maskz_loadu_epi32(lanes, values.data() + i), magnitude);
    const __mmask16 hits = _mm512_cmpge_epu32_mask(bits, floors) & lanes;
    const __m512i packed = _mm512_maskz_compress_epi32(hits, positions);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + found),
                        _mm512_cvtepi32_epi16(packed));
    found += static_cast<uint32_t>(__builtin_popcount(hits));
    positions = _mm512_add_epi32(positions, step);
  }
  return found;
}
#endif

// The lower edge of the bin that holds the k-th largest magnitude, bins being the
// exponent and the four highest bits of the mantissa. Works for any distribution.
uint32_t HistogramFloor(std::span<const float> values, uint32_t k) {
  constexpr uint32_t kShift = 19;
  constexpr size_t kBins = size_t{1} << (31 - kShift);
  // Four tables, for neighbours often fall in one bin and would wait for each other. A
  // quarter of a tile fits uint16_t, and all four fit L1.
  constexpr size_t kTables = 4;
  static_assert(kTileElements / kTables < 65535);
  std::array<std::array<uint16_t, kBins>, kTables> counts = {};
  size_t i = 0;
  for (; i + kTables <= values.size(); i += kTables) {
    for (size_t t = 0; t < kTables; ++t) {
      ++counts[t][MagnitudeBits(values[i + t]) >> kShift];
    }
  }
  for (; i < values.size(); ++i) ++counts[0][MagnitudeBits(values[i]) >> kShift];

  uint32_t seen = 0;
  size_t bin = kBins;
  while (bin > 0 && seen < k) {
    --bin;
    for (const auto& table : counts) seen += table[bin];
  }
  return std::max(static_cast<uint32_t>(bin << kShift), kSmallestMagnitude);
}

// A floor that at least k values reach, mostly not many more: from a sample if that is
// good enough, otherwise from all values.
void FindCandidates(std::span<const float> values, uint32_t k, IndexList& found) {
  const auto n = static_cast<uint32_t>(values.size());
  if (n < kSampledFrom) return FindAtLeast(values, kSmallestMagnitude, found);
  // Four standard deviations below the k-th: too high a floor is rare.
  const double expected = static_cast<double>(k) / kStride;
  const auto rank = static_cast<uint32_t>(expected + 4 * std::sqrt(expected) + 2);
  FindAtLeast(values, SampledMagnitude(values, kStride, rank), found);
  if (found.count() >= k && found.count() / 4 <= k + kStride) return;
  FindAtLeast(values, HistogramFloor(values, k), found);
}

// Keeps the k largest of more than k.
uint32_t KeepLargest(std::span<const float> values, uint32_t k, IndexList& found) {
  std::vector<uint32_t> magnitudes;
  magnitudes.reserve(found.count());
  for (const uint16_t i : found.view()) magnitudes.push_back(MagnitudeBits(values[i]));
  const auto last = magnitudes.begin() + (k - 1);
  std::nth_element(magnitudes.begin(), last, magnitudes.end(), std::greater<>());
  const uint32_t smallest = *last;
  const auto above = std::count_if(magnitudes.begin(), last,
                                   [smallest](uint32_t m) { return m > smallest; });
  uint32_t ties = k - static_cast<uint32_t>(above);
  uint16_t* const entries = found.data();
  uint32_t kept = 0;
  for (const uint16_t i : found.view()) {
    const uint32_t bits = MagnitudeBits(values[i]);
    const bool tie = bits == smallest && ties > 0;
    entries[kept] = i;
    kept += bits > smallest || tie ? 1 : 0;
    ties -= tie ? 1 : 0;
  }
  found.set_count(kept);
  return smallest;
}

}  // namespace

void FindAtLeast(std::span<const float> values, uint32_t floor, IndexList& found) {
  uint32_t count = 0;
#if defined(__x86_64__)
  if (ActiveIsa() == Isa::kX86V4) {
    found.set_count(FindV4(values, floor, found.data()));
    return;
  }
#endif
  Kernel<FindBody>::Run(values.size(), values.data(), floor, found.data(), &count);
  found.set_count(count);
}

uint32_t FindLargest(std::span<const float> values, uint32_t k, IndexList& found) {
  FindCandidates(values, k, found);
  if (found.count() > k) return KeepLargest(values, k, found);
  uint32_t smallest = 0;
  for (const uint16_t i : found.view()) {
    const uint32_t bits = MagnitudeBits(values[i]);
    smallest = smallest == 0 ? bits : std::min(smallest, bits);
  }
  return smallest;
}

uint32_t SampledMagnitude(std::span<const float> values, uint32_t stride, uint32_t rank) {
  std::vector<uint32_t> sample;
  sample.reserve(values.size() / stride + 1);
  for (size_t i = stride / 2; i < values.size(); i += stride) {
    sample.push_back(MagnitudeBits(values[i]));
  }
  if (rank == 0 || rank > sample.size()) return kSmallestMagnitude;
  const auto last = sample.begin() + (rank - 1);
  std::nth_element(sample.begin(), last, sample.end(), std::greater<>());
  return std::max(*last, kSmallestMagnitude);
}

}  // namespace syncline
