// The threshold of a whole tensor's top-k, from one pass over its tiles in any order.
//
//   TensorHistogram histogram;
//   for (each tile) histogram.Add(tile);
//   context.threshold = histogram.ThresholdFor(TopCount(spec, elements, step));
//
// Counts magnitudes in bins of one exponent and 7 bits of mantissa, so a threshold is
// known to 1/128 of itself, and how many values reach it exactly.
//
// Thread safety: none. 256 KiB; keep it for the next tensor (Clear).
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

  // What k/2 to k of the added values reach; all that are not zero if these are fewer,
  // except below 2^-133. 0, which leaves the choice to each tile alone, if there are
  // none, or if so many share the last bin that there is no such threshold: then k
  // exactly need positions to decide. NaN and infinity do not count. REQUIRES: k >= 1.
  float ThresholdFor(uint64_t k) const;

 private:
  static constexpr int kShift = 16;  // of the bits of a magnitude
  using Counts = std::array<uint64_t, size_t{1} << (31 - kShift)>;

  std::unique_ptr<Counts> counts_;
};

}  // namespace syncline
