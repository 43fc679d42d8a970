#include "comm/compression/policy/gradient_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "comm/codec/sparse/index_list.h"
#include "comm/codec/sparse/magnitude.h"
#include "comm/codec/sparse/selector.h"

namespace syncline {
namespace {

double SquaredNorm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return sum;
}

bool IsZero(std::span<const float> block) {
  uint32_t any = 0;
  for (const float value : block) any |= std::bit_cast<uint32_t>(value);
  return any == 0;
}

}  // namespace

GradientStatistics MeasureGradient(std::span<const float> tile) {
  GradientStatistics statistics;
  const auto n = static_cast<uint32_t>(tile.size());
  size_t blocks = 0;
  size_t nonzero = 0;
  double energy = 0;
  for (size_t first = 0; first < n; first += kSelectorBlock) {
    const auto block = tile.subspan(first, std::min<size_t>(kSelectorBlock, n - first));
    ++blocks;
    if (IsZero(block)) continue;
    ++nonzero;
    energy += SquaredNorm(block);
  }
  if (blocks == 0 || !std::isfinite(energy)) return statistics;
  statistics.nonzero_blocks = static_cast<double>(nonzero) / static_cast<double>(blocks);
  if (energy == 0) return statistics;
  IndexList largest(n);
  FindLargest(tile, std::max(n / 100, 1u), largest);
  double top = 0;
  for (const uint16_t i : largest.view()) top += double{tile[i]} * tile[i];
  statistics.top_energy = top / energy;
  return statistics;
}

}  // namespace syncline
