#include "server/coordinator/decision.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace syncline {
namespace {

// Blocks are at most one step apart. More open steps than this cannot be genuine, and
// would only take memory.
constexpr size_t kMaxOpenSteps = 4;

}  // namespace

DecisionMaker::DecisionMaker(const TrainingSettings& settings, TrainedBlocks blocks,
                             size_t figures)
    : settings_(settings),
      blocks_(std::move(blocks)),
      figures_(1 + figures),
      scaling_{.scaler = settings.ScalesLoss() ? StartLossScaling(settings.loss_scaling)
                                               : LossScalerState{.scale = 1}} {}

std::optional<Decision> DecisionMaker::Add(uint32_t block, uint64_t step,
                                           const std::vector<double>& figures) {
  if (step < decided_ || !blocks_.contains(block) || figures.size() != figures_) {
    return std::nullopt;
  }
  Figures& open = steps_[step];
  open.try_emplace(block, figures);
  if (open.size() < blocks_.count()) {
    if (steps_.size() > kMaxOpenSteps) steps_.erase(steps_.begin());
    return std::nullopt;
  }
  Decision decision = Decide(open);
  steps_.erase(step);
  decided_ = step + 1;
  return decision;
}

void DecisionMaker::Forget(const std::set<uint32_t>& blocks) {
  for (auto& [step, figures] : steps_) {
    std::erase_if(figures, [&](const auto& one) { return blocks.contains(one.first); });
  }
}

Decision DecisionMaker::Decide(const Figures& figures) {
  std::vector<double> sums(figures_);
  for (const auto& [block, parts] : figures) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += parts[i];
  }
  Decision decision;
  const bool finite = std::isfinite(sums[0]);
  decision.skip = !finite && settings_.SkipsNonfinite();
  if (decision.skip) ++scaling_.skipped;
  const double clip = settings_.clip_global_norm();
  if (finite && clip > 0) {
    // The contributions are scaled by the loss scale.
    const double norm = std::sqrt(sums[0]) / scaling_.scaler.scale;
    decision.gradient_scale = static_cast<float>(std::min(1.0, clip / (norm + 1e-6)));
    gradient_norm_ = norm;
  }
  if (settings_.ScalesLoss()) {
    scaling_.scaler =
        AdvanceLossScaling(settings_.loss_scaling, scaling_.scaler,
                           finite ? Gradients::kFinite : Gradients::kNotFinite);
  }
  decision.loss_scale = scaling_.scaler.scale;
  decision.figures.assign(sums.begin() + 1, sums.end());
  return decision;
}

}  // namespace syncline
