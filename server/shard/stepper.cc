#include "server/shard/stepper.h"

#include <algorithm>
#include <utility>

#include "comm/base/check.h"
#include "comm/base/status.h"

namespace syncline {

absl::StatusOr<std::unique_ptr<Stepper>> Stepper::Create(const ShardOptions& options,
                                                         BufferPool& pool) {
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<const TrainingPlan> plan,
                            TrainingPlan::Create(options.training, options.tensors));
  return std::unique_ptr<Stepper>(new Stepper(options, std::move(plan), pool));
}

Stepper::Stepper(const ShardOptions& options, std::shared_ptr<const TrainingPlan> plan,
                 BufferPool& pool)
    : tensors_(options.tensors),
      transfers_(options.transfers),
      fp32_(*options.seed_codec),
      checksum_(options.checksum),
      pool_(pool),
      pass_(options, pool) {
  if (const JobReduction* reduction = plan->job_reduction(); reduction != nullptr) {
    job_memory_.resize(reduction->Memory());
  }
  loss_scale_ = next_loss_scale_ = plan->InitialLossScale();
  revisions_.push_back({0, std::move(plan), Revision::Of::kJob});
}

// ---- Memory ----

absl::Status Stepper::Reserve(const std::vector<ShardBlock>& blocks) {
  size_t bytes = 0;
  block_bytes_ = 0;
  for (const ShardBlock& block : blocks) {
    Layout(block.range, [&](size_t part) {
      bytes += SlabMemory::Needs(part);
      block_bytes_ += part;
      return nullptr;
    });
  }
  SYNCLINE_ASSIGN_OR_RETURN(memory_, SlabMemory::Create(bytes));
  return absl::OkStatus();
}

BlockMemory Stepper::Allocate(const BlockRange& range) {
  return Layout(range, [this](size_t bytes) { return memory_.Take(bytes); });
}

BlockMemory Stepper::Layout(const BlockRange& range,
                            absl::FunctionRef<std::byte*(size_t bytes)> take) const {
  const TrainingPlan& plan = *revisions_.back().plan;
  const auto floats = [&] {
    return std::span(reinterpret_cast<float*>(take(range.elements * sizeof(float))),
                     range.elements);
  };
  BlockMemory memory;
  memory.weights = floats();
  if (IsFrozen(range.tensor)) return memory;
  if (transfers_[range.tensor].publish.compresses()) memory.view = floats();
  if (plan.settings().NeedsAccumulator()) memory.accumulator = floats();
  const uint64_t tensor_elements = tensors_[range.tensor].shape.elements();
  for (const StateSlot& slot : plan.optimizer(range.tensor).slots()) {
    const StateType type =
        EffectiveType(plan.state_type(range.tensor), slot.kind, tensor_elements);
    if (slot.name == kMomentumSlot) {
      memory.view_ahead = plan.settings().sync().view_ahead;
      memory.momentum = memory.state.size();
    }
    memory.state.push_back({.type = type,
                            .kind = slot.kind,
                            .memory = take(StateBytes(type, range.elements))});
  }
  return memory;
}

size_t Stepper::resident_bytes() const {
  size_t bytes = block_bytes_;
  for (const auto& [tensor, whole] : wholes_)
    bytes += whole.factors.size() * sizeof(float);
  return bytes;
}

// ---- Settings ----

const TrainingPlan& Stepper::PlanAt(uint64_t step) const {
  auto revision = revisions_.rbegin();
  while (revision->first_step > step && revision + 1 != revisions_.rend()) ++revision;
  return *revision->plan;
}

absl::Status Stepper::Change(const TrainingSettings& settings, uint64_t first_step) {
  SYNCLINE_RETURN_IF_ERROR(
      CheckChange(revisions_.back().plan->settings(), settings, tensors_));
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<const TrainingPlan> plan,
                            TrainingPlan::Create(settings, tensors_));
  // The new settings supersede those of all later steps. A reader that knew only the last
  // change and hears all of them again must end with the same settings.
  std::erase_if(revisions_, [first_step](const Revision& one) {
    return one.of != Revision::Of::kJob && one.first_step >= first_step;
  });
  revisions_.push_back({first_step, std::move(plan)});
  return absl::OkStatus();
}

void Stepper::ForgetSettingsBefore(uint64_t step) {
  while (revisions_.size() > 1 && revisions_[1].first_step <= step) {
    revisions_.pop_front();
  }
}

bool Stepper::StepsWhole(uint32_t tensor) const {
  return revisions_.back().plan->NeedsWholeTensor(tensor);
}

bool Stepper::AddsOnArrival() const {
  return revisions_.back().plan->settings().aggregation == Aggregation::kArrival;
}

ContributionKind Stepper::KindAt(uint64_t step) const {
  const TrainingPlan& plan = PlanAt(step);
  return plan.contributions().KindAt(plan.settings().UpdateOf(step));
}

// ---- Steps ----

void Stepper::Accumulate(Block& block) {
  block.SetWeights();
  pass_.Accumulate(block.Sum());
  block.MarkAdded();
}

std::vector<double> Stepper::Figures(const Block& block) {
  if (IsMean(block.spec().range.tensor)) return {0};
  return pass_.Figures(block.Sum(), PlanAt(block.version()).job_reduction());
}

void Stepper::Prepare(const ShardDecision& decision, const Block& block) {
  next_loss_scale_ = decision.loss_scale;
  const TrainingPlan& plan = PlanAt(decision.step);
  const JobReduction* reduction = plan.job_reduction();
  if (reduction == nullptr || decision.verdict == ShardDecision::Verdict::kSkip) return;
  if (decision.figures.size() != reduction->Figures()) return;
  // The settings of tensor 0 serve for all: with a job reduction, tensors have no scales
  // of their own.
  const double samples = block.samples();
  const StepScalars scalars = {
      .step = block.updates() + 1,
      .learning_rate = plan.LearningRate(0, decision.step, samples),
      .gradient_scale = decision.gradient_scale / loss_scale_,
      .samples = samples};
  reduction->Finish(scalars, decision.figures, job_memory_);
}

Stepper::WholeTensor& Stepper::WholeOf(uint32_t tensor, const TrainingPlan& plan) {
  WholeTensor& whole = wholes_[tensor];
  const TensorShape& shape = tensors_[tensor].shape;
  if (const auto* reduction = plan.optimizer(tensor).tensor_reduction();
      reduction != nullptr) {
    whole.factors.resize(reduction->Factors(shape));
    whole.figures.assign(reduction->Figures(shape), 0);
  }
  whole.transform_figures.assign(plan.transforms().Figures(shape), 0);
  return whole;
}

std::vector<Payload> Stepper::Update(std::span<Block* const> blocks,
                                     const ShardDecision& decision, uint64_t epoch) {
  const Block& first = *blocks.front();
  const uint32_t tensor = first.spec().range.tensor;
  const TrainingPlan& plan = PlanAt(first.version());
  const ContributionKind kind = KindAt(first.version());
  // Votes have no size that could be unscaled, clipped or transformed.
  const bool votes = transfers_[tensor].push.votes;
  const bool is_gradient = kind == ContributionKind::kGradient && !votes;
  const float clip = is_gradient ? decision.gradient_scale : 1.0f;
  const bool transforms = is_gradient && !IsMean(tensor) && !plan.transforms().empty();
  const double samples = first.samples();
  TensorUpdate update = {
      .optimizer = plan.optimizer(tensor),
      .transforms = transforms ? &plan.transforms() : nullptr,
      .scalars = {.step = first.updates() + 1,
                  .update = plan.settings().UpdateOf(first.version()),
                  .learning_rate = plan.LearningRate(tensor, first.version(), samples) *
                                   first.rate_factor(),
                  .gradient_scale = votes ? 1 : clip / loss_scale_,
                  .samples = samples,
                  .contribution = kind},
      .data = {.shape = tensors_[tensor].shape, .job_memory = job_memory_}};
  if (plan.NeedsWholeTensor(tensor)) {
    WholeTensor& whole = WholeOf(tensor, plan);
    update.data.factors = whole.factors;
    update.data.figures = whole.figures;
    update.transform_figures = whole.transform_figures;
    std::vector<BlockSum> sums;
    for (const Block* block : blocks) sums.push_back(block->Sum());
    pass_.Gather(update, sums);
  }
  std::vector<Payload> views;
  for (const Block* block : blocks) {
    BlockLabel label = block->Label(epoch);
    label.step = block->version() + 1;
    views.push_back(pass_.Apply(update, block->Sum(),
                                {.label = label, .revision = block->updates() + 1}));
  }
  return views;
}

// The schedule counts the contributor's own steps, as in other modes.
//
// The weight by age scales the gradient if the optimizer remembers gradients: it must
// remember only what counts (CGAD, arXiv 2605.09126). For other optimizers the weight
// scales the learning rate, which has the same effect, and also works for signs, which
// have no size.
Payload Stepper::UpdateOnArrival(const Block& block, WorkerId from,
                                 const ShardApplied::Arrival& arrival, uint64_t epoch) {
  const uint32_t tensor = block.spec().range.tensor;
  const TrainingPlan& plan = PlanAt(arrival.step);
  const SyncMode mode = plan.settings().sync();
  const double weight = mode.WeightOfAge(arrival.age);
  const bool remembers = plan.RemembersGradients(tensor);
  const bool votes = transfers_[tensor].push.votes;
  const double samples = block.samples();
  const TensorUpdate update = {
      .optimizer = plan.optimizer(tensor),
      .transforms = votes || IsMean(tensor) || plan.transforms().empty()
                        ? nullptr
                        : &plan.transforms(),
      .scalars = {.step = block.updates() + 1,
                  .update = block.version(),
                  .learning_rate = plan.LearningRate(tensor, arrival.step, samples) *
                                   block.rate_factor() * (remembers ? 1.0 : weight),
                  .samples = samples},
      .data = {.shape = tensors_[tensor].shape, .job_memory = job_memory_},
      .weight = remembers ? static_cast<float>(weight) : 1.0f};
  BlockSum sum = block.Sum();
  sum.shown = block.ShownTo(from);
  sum.compensation = static_cast<float>(mode.compensation);
  BlockLabel label = block.Label(epoch);
  label.step = block.version() + 1;
  return pass_.Apply(update, sum, {.label = label, .revision = block.updates() + 1});
}

void Stepper::Save(ShardSnapshot& snapshot) const {
  for (const auto& [tensor, whole] : wholes_) {
    if (!whole.factors.empty()) snapshot.factors[tensor] = whole.factors;
  }
  snapshot.job_memory = job_memory_;
  snapshot.loss_scale = loss_scale_;
}

std::vector<float> Stepper::FactorsOf(uint32_t tensor) const {
  const auto whole = wholes_.find(tensor);
  return whole == wholes_.end() ? std::vector<float>() : whole->second.factors;
}

void Stepper::SetFactors(uint32_t tensor, std::vector<float> factors) {
  if (!factors.empty()) wholes_[tensor].factors = std::move(factors);
}

std::vector<SettingsRecord> Stepper::ChangesOfSettings() const {
  std::vector<SettingsRecord> changes;
  for (const Revision& one : revisions_) {
    if (one.of == Revision::Of::kJob) continue;
    changes.push_back({one.plan->settings(), one.first_step});
  }
  return changes;
}

void Stepper::Load(const ShardSnapshot& snapshot) {
  for (const auto& [tensor, factors] : snapshot.factors) SetFactors(tensor, factors);
  if (snapshot.job_memory.size() == job_memory_.size()) {
    job_memory_ = snapshot.job_memory;
  }
  loss_scale_ = next_loss_scale_ = snapshot.loss_scale;
}

// Copies the average, which may change while it is being sent.
std::optional<Payload> Stepper::EncodeAverage(const Block& block, uint64_t epoch) {
  const BlockRange& range = block.spec().range;
  const auto slots = PlanAt(block.version()).optimizer(range.tensor).slots();
  const auto slot = std::ranges::find_if(
      slots, [](const StateSlot& one) { return one.name == "ema" || one.name == "swa"; });
  if (slot == slots.end()) return std::nullopt;
  std::span<float> values = block.memory().weights;
  // Before the first update there is nothing to average; frozen tensors have no state.
  if (block.updates() > 0) {
    values = {reinterpret_cast<float*>(block.memory().state[slot - slots.begin()].memory),
              range.elements};
  }
  return Payload{Slice::Of(
      Gather(EncodeBlock(fp32_, block.Label(epoch), values, checksum_, pool_)))};
}

std::optional<Payload> Stepper::EncodeState(const Block& block, uint32_t array,
                                            uint64_t epoch) {
  const std::vector<StoredSlot>& state = block.memory().state;
  if (array >= state.size()) return std::nullopt;
  std::vector<float> values(block.spec().range.elements);
  LoadState(state[array], 0, values);
  return Payload{Slice::Of(
      Gather(EncodeBlock(fp32_, block.Label(epoch), values, checksum_, pool_)))};
}

void Stepper::SeedState(const Block& block, uint32_t array, const BlockView& values) {
  const BlockRange& range = block.spec().range;
  const std::vector<StoredSlot>& state = block.memory().state;
  SYNCLINE_CHECK(array < state.size());
  std::vector<float> decoded(range.elements);
  for (const TileView& tile : values.tiles) {
    const auto of_tile = std::span(decoded).subspan(tile.first_element, tile.elements);
    SYNCLINE_CHECK(tile.codec->Decode(tile.bytes, of_tile).ok());
  }
  StoreState(
      state[array], 0, decoded,
      {.tensor = range.tensor, .slot = array, .first_element = range.first_element});
}

Payload Stepper::Encode(const Block& block, uint64_t epoch) {
  return pass_.Encode(block.memory(),
                      {.label = block.Label(epoch), .revision = block.updates()});
}

}  // namespace syncline
