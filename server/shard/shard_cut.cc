// Copies blocks at one version of the job, each when it gets there, while the others
// continue: a consistent cut without a pause. Between two steps a block's weights and
// state are those of its version, whatever contributions it holds.
#include <algorithm>
#include <memory>
#include <utility>

#include "server/shard/shard_impl.h"

namespace syncline {
namespace {

// How many finished cuts are remembered, to ignore an order that is repeated.
constexpr size_t kMaxDoneCuts = 64;

}  // namespace

bool Shard::Impl::Trains() const {
  return std::ranges::any_of(
      tensors_, [this](const auto& entry) { return !stepper_->IsFrozen(entry.first); });
}

// Returns whether some block was not copied at `step` and never will be.
bool Shard::Impl::IsPast(uint64_t step) const {
  const auto cut = cuts_.find(step);
  return std::ranges::any_of(blocks_, [&](const auto& entry) {
    const Block& block = entry.second;
    return !stepper_->IsFrozen(block.spec().range.tensor) && block.version() > step &&
           (cut == cuts_.end() || !cut->second.blocks.contains(entry.first));
  });
}

void Shard::Impl::On(const ShardCut& cut) {
  using Kind = ShardCut::Kind;
  if (cut.kind == Kind::kNextFrozen) return CopyNextFrozen(cut.step);
  if (cut.kind == Kind::kLastAgain && done_cuts_.erase(cut.step) > 0) last_cut_ = 0;
  if (done_cuts_.contains(cut.step)) return;
  if (!Trains()) {
    if (cuts_.contains(cut.step)) return;
    BeginCut(cut.step);
    return CopyNextFrozen(cut.step);
  }
  if (IsPast(cut.step)) {
    outputs_.push_back(ShardCutDone{cut.step, nullptr, stepper_->SettingsAt(cut.step)});
    return;
  }
  asked_cuts_.insert(cut.step);
  if (cut.kind != Kind::kCopy) {
    passes_until_ = cut.step;
    for (auto& [id, block] : blocks_) StepIfComplete(block);
  }
  for (const auto& [id, block] : blocks_) {
    if (block.version() == cut.step) CopyIfDue(block);
  }
}

void Shard::Impl::CopyIfDue(const Block& block) {
  const uint64_t step = block.version();
  const uint64_t every = options_.cut_every;
  const bool is_due =
      asked_cuts_.contains(step) || (every > 0 && step > 0 && step % every == 0);
  if (!is_due || step <= last_cut_) return;
  const bool is_first = !cuts_.contains(step);
  if (is_first) BeginCut(step);
  Copy(block, step);
  if (is_first) SayWhetherMoreWait(step);
}

void Shard::Impl::BeginCut(uint64_t step) {
  Cut& cut = cuts_[step];
  for (const auto& [id, block] : blocks_) {
    if (stepper_->IsFrozen(block.spec().range.tensor)) cut.frozen.push_back(id);
  }
}

void Shard::Impl::CopyNextFrozen(uint64_t step) {
  const auto cut = cuts_.find(step);
  if (cut == cuts_.end() || cut->second.frozen.empty()) return;
  const Block& next = blocks_.at(cut->second.frozen.front());
  cut->second.frozen.pop_front();
  Copy(next, step);
  SayWhetherMoreWait(step);
}

// Sets `more` of the ShardCopied just given out. REQUIRES: the last output is a
// ShardCopied.
void Shard::Impl::SayWhetherMoreWait(uint64_t step) {
  std::get<ShardCopied>(outputs_.back()).more = !cuts_.at(step).frozen.empty();
}

void Shard::Impl::Copy(const Block& block, uint64_t step) {
  Cut& cut = cuts_.at(step);
  const uint32_t id = block.spec().block;
  if (!cut.blocks.insert(id).second) return;
  const uint32_t tensor = block.spec().range.tensor;
  if (auto factors = stepper_->FactorsOf(tensor); !factors.empty()) {
    cut.factors[tensor] = std::move(factors);
  }
  outputs_.push_back(
      ShardCopied{step, id, std::make_shared<const BlockSnapshot>(block.Save())});
}

// Called once everything that follows from an input is done. Only then is the loss scale
// that of the next step. What the optimizer remembers of the job stays until the next
// decision.
void Shard::Impl::SaveRest(uint64_t step, Cut& cut) const {
  if (cut.rest != nullptr || cut.blocks.size() + cut.frozen.size() < blocks_.size()) {
    return;
  }
  cut.rest = std::make_shared<ShardSnapshot>();
  stepper_->Save(*cut.rest);
  cut.rest->factors = std::move(cut.factors);
  cut.training = stepper_->SettingsAt(step);
}

void Shard::Impl::FinishCuts() {
  for (auto& [step, cut] : cuts_) SaveRest(step, cut);
  while (!cuts_.empty() && cuts_.begin()->second.blocks.size() == blocks_.size()) {
    const uint64_t step = cuts_.begin()->first;
    Cut& cut = cuts_.begin()->second;
    outputs_.push_back(ShardCutDone{step, std::move(cut.rest), std::move(cut.training)});
    last_cut_ = std::max(last_cut_, step);
    done_cuts_.insert(step);
    if (done_cuts_.size() > kMaxDoneCuts) done_cuts_.erase(done_cuts_.begin());
    cuts_.erase(cuts_.begin());
    asked_cuts_.erase(asked_cuts_.begin(), asked_cuts_.upper_bound(step));
  }
}

}  // namespace syncline
