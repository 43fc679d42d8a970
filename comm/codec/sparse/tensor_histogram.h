// Finds the threshold of a whole tensor's top-k in one pass over its tiles, in any order.
//
//   TensorHistogram histogram;
//   for (each tile) histogram.Add(tile);
//   context.threshold = histogram.ThresholdFor(TopCount(spec, elements, step));
//
// It counts magnitudes in bins of one exponent and 7 bits of mantissa. So the threshold
// is known to 1/128 of itself, and the number of values that reach it exactly.
//
// Thread safety: none. It takes 256 KiB; reuse it for the next tensor (Clear).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

namespace syncline {

class TensorHistogram {
 public:
  TensorHistogram() : counts_(std::make_unique<Counts>()) {}

  void Add(std::span<const float> values);
  void Clear() { counts_->fill(0); }

  // Returns a magnitude that k/2 to k of the added values reach. If fewer than k are
  // nonzero, all of those reach it, except values below 2^-133. Returns 0, which leaves
  // the choice to each tile, if there are no nonzero values, or if so many share the last
  // bin that no such threshold exists (then only positions could decide). NaN and
  // infinity do not count. REQUIRES: k >= 1.
  float ThresholdFor(uint64_t k) const;

 private:
  static constexpr int kShift = 16;  // lowest bits of a magnitude that are dropped
  using Counts = std::array<uint64_t, size_t{1} << (31 - kShift)>;

  std::unique_ptr<Counts> counts_;
};

}  // namespace syncline
