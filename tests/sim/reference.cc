#include "tests/sim/reference.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/dtype.h"
#include "server/optimizer/reduce.h"

namespace syncline::sim {

Reference::Reference(const JobSpec& job)
    : job_(job),
      blocks_(job.Blocks()),
      optimizer_(*MakeOptimizer(job.optimizer)),
      seeds_sent_(blocks_.size()),
      seeds_(blocks_.size()),
      applied_(blocks_.size()) {}

void Reference::Violate(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

void Reference::SeedSent(uint32_t block, std::span<const float> values) {
  seeds_sent_[block].emplace_back(values.begin(), values.end());
}

void Reference::SeedHeld(uint32_t block, std::span<const float> values) {
  std::vector<float> held(values.begin(), values.end());
  const auto& sent = seeds_sent_[block];
  if (std::find(sent.begin(), sent.end(), held) == sent.end()) {
    Violate(absl::StrCat("block ", block, " holds initial values that no seeder sent"));
  }
  seeds_[block] = std::move(held);
}

void Reference::Pushed(const ContributionKey& key, uint32_t tensor,
                       std::vector<float> gradient, uint32_t samples) {
  const bool fresh =
      pushes_.insert({{key, tensor}, {std::move(gradient), samples}}).second;
  if (!fresh)
    Violate(absl::StrCat("worker ", key.rank, " pushed step ", key.step, " twice"));
}

void Reference::Applied(const ShardApplied& applied) {
  auto& history = applied_[applied.block];
  if (applied.step != history.size()) {
    Violate(absl::StrCat("block ", applied.block, " applied step ", applied.step,
                         " after ", history.size(), " steps"));
  }
  std::set<uint32_t> ranks;
  for (const auto& contributor : applied.contributors) {
    const ContributionKey key{contributor.rank, contributor.incarnation, applied.step};
    if (!ranks.insert(contributor.rank).second) {
      Violate(absl::StrCat("block ", applied.block, " counted rank ", contributor.rank,
                           " twice at step ", applied.step));
    }
    if (!pushes_.contains({key, blocks_[applied.block].tensor})) {
      Violate(absl::StrCat("block ", applied.block, " counted what rank ",
                           contributor.rank, " never pushed at step ", applied.step));
    }
  }
  if (ranks.empty() && !applied.skipped)
    Violate(absl::StrCat("block ", applied.block, " stepped without contributions"));
  history.push_back(applied);
}

std::vector<float> Reference::MeanGradient(uint32_t block, uint64_t step) const {
  const BlockRange& range = blocks_[block];
  auto contributors = applied_[block][step].contributors;
  std::sort(contributors.begin(), contributors.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  double samples = 0;
  for (const auto& contributor : contributors) samples += contributor.samples;
  std::vector<float> mean(range.elements, 0.0f);
  for (const auto& contributor : contributors) {
    const Push& push =
        pushes_.at({{contributor.rank, contributor.incarnation, step}, range.tensor});
    SYNCLINE_CHECK(push.samples == contributor.samples);
    const float weight = static_cast<float>(contributor.samples / samples);
    for (uint32_t i = 0; i < range.elements; ++i) {
      const float sent = push.gradient[range.first_element + i];
      const float arrived =
          job_.push_codec == "bf16" ? FloatFromBf16(Bf16FromFloat(sent)) : sent;
      mean[i] += weight * arrived;
    }
  }
  return mean;
}

// torch.nn.utils.clip_grad_norm_, the norm summed tile by tile in block order.
float Reference::GradientScale(uint64_t step) const {
  if (job_.clip_global_norm <= 0) return 1.0f;
  double square_sum = 0;
  for (uint32_t block = 0; block < blocks_.size(); ++block) {
    const std::vector<float> mean = MeanGradient(block, step);
    for (uint32_t tile = 0; tile < TilesOf(mean.size()); ++tile) {
      square_sum += SumOfSquares(std::span(mean).subspan(
          size_t{tile} * kTileElements, TileElements(mean.size(), tile)));
    }
  }
  return static_cast<float>(
      std::min(1.0, job_.clip_global_norm / (std::sqrt(square_sum) + 1e-6)));
}

std::vector<float> Reference::Weights(uint32_t block, uint64_t version) {
  std::vector<float> weights = seeds_[block];
  std::vector<float> state0(weights.size());
  std::vector<float> state1(weights.size());
  const GroupOptions& group = job_.tensors[blocks_[block].tensor].group;
  uint64_t updates = 0;
  for (uint64_t step = 0; step < version; ++step) {
    if (applied_[block][step].skipped) continue;
    const std::vector<float> gradient = MeanGradient(block, step);
    StepScalars scalars = ScalarsFor(job_.optimizer, group, ++updates);
    scalars.gradient_scale = GradientScale(step);
    optimizer_->Apply(scalars, {gradient, weights, {state0.data(), state1.data()}});
  }
  return weights;
}

}  // namespace syncline::sim
