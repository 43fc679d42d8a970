#include "worker/examples/fashion_mnist/batch_plan.h"

#include <numeric>
#include <utility>

#include "comm/base/check.h"

namespace syncline::fashion_mnist {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014). The standard library's distributions differ
// between implementations, and all ranks must draw the same permutation.
uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// Steps cut equally (255 and 256 samples), not full ones and a rest. A slice is then
// wider than half of batch_size: no rank ever gets an empty batch, and no sample is left
// out.
int64_t CountParts(const BatchPlanOptions& options, int64_t growth) {
  const int64_t global_batch = growth * options.batch_size * options.world_size;
  return (options.samples + global_batch - 1) / global_batch;
}

const BatchPlanOptions& Checked(const BatchPlanOptions& options) {
  SYNCLINE_CHECK(options.epochs >= 0 && options.batch_size >= 2);
  SYNCLINE_CHECK(options.rank >= 0 && options.rank < options.world_size);
  SYNCLINE_CHECK(options.samples >=
                 BatchPlan::kGrowth * options.batch_size * options.world_size);
  return options;
}

}  // namespace

BatchPlan::BatchPlan(const BatchPlanOptions& options)
    : options_(Checked(options)),
      small_epochs_(options.epochs - options.epochs * 2 / 5),
      small_parts_(CountParts(options, 1)),
      large_parts_(CountParts(options, kGrowth)),
      permutation_(options.samples) {}

int64_t BatchPlan::total_steps() const {
  return small_epochs_ * small_parts_ + (options_.epochs - small_epochs_) * large_parts_;
}

std::span<const uint32_t> BatchPlan::Batch(int64_t step) {
  SYNCLINE_CHECK(step >= 0 && step < total_steps());
  const Place place = Find(step);
  if (place.epoch != epoch_) Shuffle(place.epoch);
  const int64_t slices = place.parts * options_.world_size;
  const int64_t slice = place.part * options_.world_size + options_.rank;
  const int64_t begin = options_.samples * slice / slices;
  const int64_t end = options_.samples * (slice + 1) / slices;
  return std::span(permutation_).subspan(begin, end - begin);
}

BatchPlan::Place BatchPlan::Find(int64_t step) const {
  const int64_t small_steps = small_epochs_ * small_parts_;
  if (step < small_steps) {
    return {step / small_parts_, step % small_parts_, small_parts_};
  }
  const int64_t later = step - small_steps;
  return {small_epochs_ + later / large_parts_, later % large_parts_, large_parts_};
}

void BatchPlan::Shuffle(int64_t epoch) {
  epoch_ = epoch;
  std::iota(permutation_.begin(), permutation_.end(), 0);
  const uint64_t stream = Mix(options_.seed ^ Mix(static_cast<uint64_t>(epoch)));
  for (uint64_t i = permutation_.size() - 1; i > 0; --i) {
    // The modulo's bias (60,000 of 2^64) is far below what a shuffle could show.
    std::swap(permutation_[i], permutation_[Mix(stream + i) % (i + 1)]);
  }
}

}  // namespace syncline::fashion_mnist
