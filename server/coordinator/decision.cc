#include "server/coordinator/decision.h"

#include <algorithm>
#include <cmath>

namespace syncline {
namespace {

// Blocks run at most one step apart: more open steps than this are nonsense, and would
// only fill memory.
constexpr size_t kMaxOpenSteps = 4;

}  // namespace

Decision Decide(const JobSpec& spec, double square_sum, bool finite) {
  Decision decision;
  decision.skip = !finite && spec.skip_nonfinite_steps;
  if (finite && spec.clip_global_norm > 0) {
    const double norm = std::sqrt(square_sum);
    decision.gradient_scale =
        static_cast<float>(std::min(1.0, spec.clip_global_norm / (norm + 1e-6)));
  }
  return decision;
}

DecisionCollector::DecisionCollector(const JobSpec& spec)
    : spec_(spec), blocks_(spec.Blocks()) {}

std::optional<Decision> DecisionCollector::Add(
    uint32_t block, uint64_t step, const std::vector<double>& tile_square_sums,
    bool finite) {
  if (block >= blocks_.size() ||
      tile_square_sums.size() != TilesOf(blocks_[block].elements)) {
    return std::nullopt;
  }
  Step& open = steps_[step];
  open.square_sums.try_emplace(block, tile_square_sums);
  open.finite = open.finite && finite;
  if (open.square_sums.size() < blocks_.size()) {
    if (steps_.size() > kMaxOpenSteps) steps_.erase(steps_.begin());
    return std::nullopt;
  }
  double square_sum = 0;
  for (const auto& [id, tiles] : open.square_sums) {
    for (const double tile : tiles) square_sum += tile;
  }
  const Decision decision = Decide(spec_, square_sum, open.finite);
  steps_.erase(step);
  return decision;
}

}  // namespace syncline
