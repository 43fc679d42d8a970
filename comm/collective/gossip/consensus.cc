#include "comm/collective/gossip/consensus.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "comm/base/random.h"
#include "comm/base/status.h"

namespace syncline::collective {

std::vector<double> SketchOf(std::span<const float> values, uint64_t seed) {
  std::vector<double> sums(kSketchSums);
  double* const sum = sums.data();
  for (size_t first = 0; first < values.size(); first += kSketchSums) {
    const RandomBits signs(seed, 0, 0, first);
    const float* const x = values.data() + first;
    const auto n = static_cast<uint32_t>(std::min(kSketchSums, values.size() - first));
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t sign = signs.At(i) & 0x80000000u;
      sum[i] += double{std::bit_cast<float>(std::bit_cast<uint32_t>(x[i]) ^ sign)};
    }
  }
  return sums;
}

absl::StatusOr<double> ConsensusDistance(Group& group, std::span<const float> values,
                                         uint64_t seed, absl::Duration timeout) {
  const std::vector<double> own = SketchOf(values, seed);
  std::vector<double> mean = own;
  SYNCLINE_RETURN_IF_ERROR(group.Run({.type = ElementType::kF64,
                                      .reduce = ReduceOp::kAverage,
                                      .output = mean.data(),
                                      .count = mean.size(),
                                      .timeout = timeout}));
  double square = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    const double apart = own[i] - mean[i];
    square += apart * apart;
  }
  SYNCLINE_RETURN_IF_ERROR(group.Run({.type = ElementType::kF64,
                                      .reduce = ReduceOp::kAverage,
                                      .output = &square,
                                      .count = 1,
                                      .timeout = timeout}));
  return std::sqrt(square);
}

}  // namespace syncline::collective
