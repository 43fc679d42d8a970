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

// Smaller tiles are not sampled: a sample says little, and looking at all values costs
// little.
constexpr uint32_t kSampledFrom = 4096;
// It is odd, so that the sample meets all columns of matrices of any usual width.
constexpr uint32_t kStride = 61;

// Number of values whose maximum is tested at once. Most groups hold nothing to find.
constexpr size_t kGroup = 16;
// Prefetch distance in floats. The hardware does not prefetch across pages.
constexpr size_t kAhead = 1024;

SYNCLINE_KERNEL void FindBody(size_t n, const float* values, uint32_t floor,
                              uint16_t* out, uint32_t* count) {
  uint32_t found = 0;
  size_t first = 0;
  for (; first + kGroup <= n; first += kGroup) {
    __builtin_prefetch(values + first + kAhead);
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
// Compresses in a register and stores the whole register. Compressing stores to memory
// are very slow on some CPUs, and a branch for empty groups costs more than it saves.
SYNCLINE_TARGET_V4 uint32_t FindV4(std::span<const float> values, uint32_t floor,
                                   uint16_t* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i floors = _mm512_set1_epi32(static_cast<int>(floor));
  const __m512i step = _mm512_set1_epi32(16);
  __m512i positions =
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  uint32_t found = 0;
  for (size_t i = 0; i < values.size(); i += 16) {
    __builtin_prefetch(values.data() + i + kAhead);
    const size_t rest = values.size() - i;
    const auto lanes = static_cast<__mmask16>(rest >= 16 ? 0xffff : (1u << rest) - 1);
    const __m512i bits =
        _mm512_and_si512(_mm512_maskz_loadu_epi32(lanes, values.data() + i), magnitude);
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

// Returns the k-th largest key. A histogram over the range of the keys leaves few keys to
// compare, and unlike comparing it has no unpredictable branches. REQUIRES: 1 <= k <=
// keys.size().
uint32_t KthLargest(std::span<const uint32_t> keys, uint32_t k) {
  constexpr int kBinBits = 10;
  uint32_t least = keys[0];
  uint32_t most = keys[0];
  for (const uint32_t key : keys) {
    least = std::min(least, key);
    most = std::max(most, key);
  }
  if (most == least) return most;  // all are equal: signs and ternary values
  const int shift =
      std::max(0, static_cast<int>(std::bit_width(most - least)) - kBinBits);
  std::array<uint32_t, size_t{1} << kBinBits> counts = {};
  for (const uint32_t key : keys) ++counts[(key - least) >> shift];
  uint32_t bin = (most - least) >> shift;
  uint32_t above = 0;
  for (; above + counts[bin] < k; --bin) above += counts[bin];

  std::vector<uint32_t> boundary(counts[bin] + 1);  // one is overwritten after the last
  size_t found = 0;
  for (const uint32_t key : keys) {
    boundary[found] = key;
    found += (key - least) >> shift == bin ? 1 : 0;
  }
  const auto kth = boundary.begin() + (k - above - 1);
  std::nth_element(boundary.begin(), kth, boundary.end() - 1, std::greater<>());
  return *kth;
}

// Finds at least k of the values above zero (if there are that many), and usually few
// more.
void FindCandidates(std::span<const float> values, uint32_t k, IndexList& found) {
  if (values.size() >= kSampledFrom) {
    // The rank is four standard deviations beyond the expected one, so too high a floor
    // is rare.
    const double expected = static_cast<double>(k) / kStride;
    const auto rank = static_cast<uint32_t>(expected + 4 * std::sqrt(expected) + 2);
    FindAtLeast(values, SampledMagnitude(values, kStride, rank), found);
    if (found.count() >= k) return;
  }
  FindAtLeast(values, kSmallestMagnitude, found);
}

// Keeps the k largest. REQUIRES: more than k entries.
uint32_t KeepLargest(std::span<const float> values, uint32_t k, IndexList& found) {
  std::vector<uint32_t> magnitudes;
  magnitudes.reserve(found.count());
  for (const uint16_t i : found.view()) magnitudes.push_back(MagnitudeBits(values[i]));
  const uint32_t smallest = KthLargest(magnitudes, k);
  uint32_t above = 0;
  for (const uint32_t bits : magnitudes) above += bits > smallest ? 1 : 0;
  uint32_t ties = k - above;
  uint16_t* const entries = found.data();
  uint32_t kept = 0;
  for (size_t j = 0; j < magnitudes.size(); ++j) {
    const uint32_t tie = magnitudes[j] == smallest && ties > 0 ? 1 : 0;
    entries[kept] = entries[j];
    kept += (magnitudes[j] > smallest ? 1 : 0) + tie;
    ties -= tie;
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
  return std::max(KthLargest(sample, rank), kSmallestMagnitude);
}

}  // namespace syncline
