#include "tests/sim/replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/job_seed.h"
#include "comm/codec/codec.h"
#include "server/optimizer/reduce.h"
#include "server/optimizer/state_storage.h"
#include "tests/sim/push_oracle.h"

namespace syncline::sim {
namespace {

template <typename Visit>
void ForEachTile(const BlockRange& range, const Visit& visit) {
  for (uint32_t tile = 0; tile < TilesOf(range.elements); ++tile) {
    visit(range.first_element + uint64_t{tile} * kTileElements,
          TileElements(range.elements, tile));
  }
}

// Returns the weight of a contribution of this age, by the formula in docs/modes.md.
double WeightOfAge(const OptionValues& options, uint64_t age) {
  const auto of = [&](const char* name, double otherwise) {
    const auto given = options.find(name);
    return given == options.end() ? otherwise : given->second;
  };
  const auto a = static_cast<double>(age);
  const double limit = of("age_limit", 0);
  if (limit > 0 && a >= limit) return 0;
  double weight = 1;
  for (uint64_t i = 0; i < age; ++i) weight *= of("age_decay", 1);  // d^a
  weight /= std::pow(1 + a, of("age_power", 0));
  if (limit > 0) weight *= (1 + std::cos(std::numbers::pi * a / limit)) / 2;
  return weight;
}

float SignOf(float value) {
  return std::isnan(value) || value == 0 ? 0 : std::copysign(1.0f, value);
}

// Returns the sign of a vote. Keeps infinity and NaN for the later check.
float FiniteSignOf(float value) {
  const bool is_finite = std::isfinite(value) && value != 0;
  return is_finite ? std::copysign(1.0f, value) : value;
}

}  // namespace

Replay::Replay(Reference& reference)
    : reference_(reference),
      job_(reference.job_),
      trained_(job_.Trained()),
      transfers_(*job_.Transfers()) {
  MakePlans();
  plan_ = &PlanAt(0);
  for (const TrainedTensor& tensor : trained_) {
    const size_t elements = tensor.shape.elements();
    const auto index = static_cast<uint32_t>(tensors_.size());
    const Optimizer& optimizer = plan_->optimizer(index);
    weights_.emplace_back(elements);
    Tensor& own = tensors_.emplace_back();
    own.sum.resize(elements);
    own.state.assign(optimizer.slots().size(), std::vector<float>(elements));
    for (size_t slot = 0; slot < own.state.size(); ++slot) {
      own.stored.emplace_back(StateBytes(TypeOf(index, slot), elements));
    }
    if (const auto* reduction = optimizer.tensor_reduction(); reduction != nullptr) {
      own.factors.resize(reduction->Factors(tensor.shape));
    }
  }
  for (uint32_t block = 0; block < reference_.blocks_.size(); ++block) {
    const BlockRange& range = reference_.blocks_[block];
    blocks_.push_back(
        {.range = range, .is_trained = !trained_[range.tensor].group.frozen});
    std::ranges::copy(reference_.seeds_[block],
                      weights_[range.tensor].begin() + range.first_element);
  }
  if (const auto* reduction = plan_->job_reduction(); reduction != nullptr) {
    job_memory_.resize(reduction->Memory());
  }
  views_ = weights_;
  for (uint32_t block = 0; block < blocks_.size(); ++block) {
    const uint32_t tensor = blocks_[block].range.tensor;
    if (!transfers_[tensor].publish.compresses()) Publish(block, Deltas::kNo, 0);
  }
  DecodePushes();
  loss_scale_ = plan_->InitialLossScale();
  if (job_.training.ScalesLoss()) scaler_ = StartLossScaling(job_.training.loss_scaling);
}

// Makes the plan of each step. Settings of later epochs override earlier ones.
void Replay::MakePlans() {
  plans_[0] = *TrainingPlan::Create(job_.training, trained_);
  for (const auto& [epoch, change] : reference_.changes_) {
    const auto& [from, training] = change;
    plans_.erase(plans_.lower_bound(from), plans_.end());
    plans_[from] = *TrainingPlan::Create(training, trained_);
  }
}

StateType Replay::TypeOf(uint32_t tensor, size_t slot) const {
  return EffectiveType(plan_->state_type(tensor),
                       plan_->optimizer(tensor).slots()[slot].kind,
                       trained_[tensor].shape.elements());
}

std::span<float> Replay::PartOf(std::vector<std::vector<float>>& tensors,
                                const BlockRange& range) {
  return std::span(tensors[range.tensor]).subspan(range.first_element, range.elements);
}

std::span<float> Replay::SumOf(const BlockRange& range) {
  return std::span(tensors_[range.tensor].sum)
      .subspan(range.first_element, range.elements);
}

void Replay::Step(uint64_t step) {
  plan_ = &PlanAt(step);
  for (const Reference::Pull& pull : reference_.pulls_[step]) CheckPull(pull);
  for (uint32_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_[block].is_trained) Add(block, step);
  }
  if (plan_->settings().Updates(step)) Update(step);
}

// Adds the contributions to a block in the order that the shard reported. This is rank
// order; with aggregation on arrival, the order does not matter for the values.
void Replay::Add(uint32_t block, uint64_t version) {
  Block& own = blocks_[block];
  const ShardApplied& applied = reference_.applied_[block][version];
  const uint64_t step = Reference::StepOf(applied);
  double samples = 0;
  double parting_samples = 0;
  for (const auto& one : applied.contributors) {
    (one.parting ? parting_samples : samples) += one.samples;
  }
  uint64_t oldest = std::numeric_limits<uint64_t>::max();
  const bool keeps_sum = plan_->settings().NeedsAccumulator();
  const bool votes = transfers_[own.range.tensor].push.votes;
  const bool is_judged = !plan_->settings().Updates(step) || plan_->NeedsDecision();
  std::vector<float> senders(own.range.elements);  // their weights, element by element
  for (const auto& one : applied.contributors) {
    const Reference::Push& push =
        reference_.pushes_.at({{one.rank, one.incarnation, step}, own.range.tensor});
    SYNCLINE_CHECK(push.samples == one.samples && push.parting == one.parting);
    if (!one.parting && one.incarnation < oldest) {
      oldest = one.incarnation;
      own.rate_factor = push.rate_factor;
    }
    const std::vector<float>& received =
        received_.at({{one.rank, one.incarnation, step}, own.range.tensor});
    const auto weight = static_cast<float>(
        keeps_sum ? one.samples : one.samples / Divisor(samples, parting_samples));
    const std::span<float> sum = SumOf(own.range);
    for (size_t i = 0; i < sum.size(); ++i) {
      const float value = received[own.range.first_element + i];
      sum[i] += !votes ? weight * value : is_judged ? FiniteSignOf(value) : SignOf(value);
      if (value != 0 && (!one.parting || samples == 0)) senders[i] += weight;
    }
  }
  DivideBySenders(transfers_[own.range.tensor].push, senders, own.range.first_element,
                  SumOf(own.range));
  own.samples += samples;
  own.parting_samples += parting_samples;
}

// Each process of a worker starts without error feedback.
void Replay::DecodePushes() {
  const bool follows = ResidualsFollow(job_);
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, PushOracle> lives;
  for (const auto& [which, push] : reference_.pushes_) {
    const auto& [key, tensor] = which;
    const PushOracle::Options options = {
        .transfer = transfers_[tensor].push,
        .tensor = tensor,
        .elements = static_cast<uint32_t>(trained_[tensor].shape.elements()),
        .seed = SeedOfRank(JobSeed(job_.name), key.rank),
        .follows = follows};
    PushOracle& life =
        lives.try_emplace({key.rank, key.incarnation, tensor}, options).first->second;
    const float rate =
        static_cast<float>(PlanAt(key.step).JobLearningRate(key.step)) * push.rate_factor;
    received_[which] =
        life.Receive(push, key.step, rate,
                     reference_.late_.contains(key) ? PushOracle::Fate::kLate
                                                    : PushOracle::Fate::kCounts);
  }
}

// Returns what workers see of the block: its weights, or what is ahead of its momentum.
std::vector<float> Replay::ShownOf(const Block& block) {
  const std::span<const float> weights = PartOf(weights_, block.range);
  std::vector<float> shown(weights.begin(), weights.end());
  const float ahead = job_.training.sync().view_ahead;
  if (ahead == 0 || !block.is_trained) return shown;
  const uint32_t tensor = block.range.tensor;
  const auto slots = PlanAt(0).optimizer(tensor).slots();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot].name != "momentum") continue;
    const float* momentum = &tensors_[tensor].state[slot][block.range.first_element];
    for (size_t i = 0; i < shown.size(); ++i) shown[i] = weights[i] - ahead * momentum[i];
  }
  return shown;
}

// Updates a view: by a delta if the codec compresses, as a whole if the delta cannot be
// encoded.
void Replay::Publish(uint32_t id, Deltas deltas, uint64_t revision) {
  const Block& block = blocks_[id];
  const uint32_t tensor = block.range.tensor;
  const Transfer& transfer = transfers_[tensor].publish;
  const std::span<float> view = PartOf(views_, block.range);
  const std::vector<float> weights = ShownOf(block);
  const float largest = transfer.codec->traits().largest;
  bool as_deltas = deltas == Deltas::kYes;
  for (size_t i = 0; as_deltas && i < view.size(); ++i) {
    as_deltas = std::abs(weights[i] - view[i]) <= largest;
  }
  if (transfer.compresses() && !as_deltas) {
    std::ranges::copy(weights, view.begin());
    return;
  }
  ForEachTile({.elements = block.range.elements}, [&](uint64_t first, uint32_t count) {
    const std::span<float> of_tile = view.subspan(first, count);
    const auto x = std::span(weights).subspan(first, count);
    std::vector<float> values(x.begin(), x.end());
    for (uint32_t i = 0; as_deltas && i < count; ++i) values[i] -= of_tile[i];
    const EncodeContext context = {.seed = JobSeed(job_.name),
                                   .step = revision,
                                   .tensor = tensor,
                                   .first_element = block.range.first_element + first};
    const std::vector<float> received = Travel(*transfer.codec, context, values);
    for (uint32_t i = 0; i < count; ++i) {
      of_tile[i] = as_deltas ? of_tile[i] + received[i] : received[i];
    }
  });
}

std::optional<float> Replay::Decide(uint64_t step) {
  const TrainingSettings& training = job_.training;
  const auto* reduction = plan_->job_reduction();
  std::vector<double> figures(reduction == nullptr ? 0 : reduction->Figures());
  double squares = 0;
  for (const Block& block : blocks_) {
    if (!block.is_trained) continue;
    std::vector<double> parts(figures.size());
    double of_block = 0;
    ForEachTile(block.range, [&](uint64_t first, uint32_t count) {
      const Strip strip = StripOf(block.range.tensor, first, count);
      const double of_tile = SumOfSquares(strip.gradient);
      const bool votes = transfers_[block.range.tensor].push.votes;
      of_block += votes && std::isfinite(of_tile) ? 0 : of_tile;
      if (reduction != nullptr) reduction->Reduce(strip, parts);
    });
    squares += of_block;
    for (size_t i = 0; i < parts.size(); ++i) figures[i] += parts[i];
  }
  const bool finite = std::isfinite(squares);
  float clip = 1;
  if (finite && training.clip_global_norm() > 0) {
    clip = static_cast<float>(std::min(
        1.0, training.clip_global_norm() / (std::sqrt(squares) / loss_scale_ + 1e-6)));
  }
  if (training.ScalesLoss()) {
    scaler_ = AdvanceLossScaling(training.loss_scaling, scaler_,
                                 finite ? Gradients::kFinite : Gradients::kNotFinite);
  }
  if (!finite && training.SkipsNonfinite()) return std::nullopt;
  if (reduction != nullptr) {
    const double samples = Divisor(blocks_[0].samples, blocks_[0].parting_samples);
    reduction->Finish({.step = blocks_[0].updates + 1,
                       .learning_rate = plan_->LearningRate(0, step, samples),
                       .gradient_scale = clip / loss_scale_,
                       .samples = samples},
                      figures, job_memory_);
  }
  return clip;
}

void Replay::Update(uint64_t step) {
  for (uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) Load(tensor);
  if (plan_->settings().NeedsAccumulator()) {
    for (const Block& block : blocks_) {
      const double samples = Divisor(block.samples, block.parting_samples);
      if (samples == 0) continue;
      const auto scale = static_cast<float>(1 / samples);
      for (float& value : SumOf(block.range)) value *= scale;
    }
  }
  for (uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (!transfers_[tensor].push.votes) continue;
    for (float& value : tensors_[tensor].sum) value = FiniteSignOf(value);
  }
  const auto clip = plan_->NeedsDecision() ? Decide(step) : std::optional(1.0f);
  const ContributionKind kind =
      plan_->contributions().KindAt(plan_->settings().UpdateOf(step));
  for (uint32_t id = 0; id < blocks_.size(); ++id) {
    Block& block = blocks_[id];
    if (!block.is_trained) continue;
    const bool skips = !clip || LacksSamples(block);
    if (skips != reference_.applied_[id][step].skipped) {
      reference_.Violate(absl::StrCat("block ", id, skips ? " did not skip" : " skipped",
                                      " step ", step));
    }
    const double samples = Divisor(block.samples, block.parting_samples);
    const uint32_t tensor = block.range.tensor;
    const bool whole = plan_->NeedsWholeTensor(tensor);
    if (!skips && (!whole || block.range.first_element == 0)) {
      const bool is_gradient = kind == ContributionKind::kGradient;
      const BlockRange all = {
          .tensor = tensor,
          .elements = static_cast<uint32_t>(trained_[tensor].shape.elements())};
      Apply(tensor, whole ? all : block.range,
            {.step = block.updates + 1,
             .update = plan_->settings().UpdateOf(step),
             .learning_rate =
                 plan_->LearningRate(tensor, step, samples) * block.rate_factor,
             .gradient_scale = transfers_[tensor].push.votes
                                   ? 1.0f
                                   : (is_gradient ? *clip : 1.0f) / loss_scale_,
             .samples = samples,
             .contribution = kind});
    }
    if (!skips && kind != ContributionKind::kHessian) ++block.updates;
  }
  for (uint32_t id = 0; id < blocks_.size(); ++id) {
    if (!blocks_[id].is_trained || reference_.applied_[id][step].skipped) continue;
    const Block& block = blocks_[id];
    const bool deltas = transfers_[block.range.tensor].publish.CompressesAt(step);
    // A delta also brings the view nearer to weights that did not change.
    const bool is_nearer = kind == ContributionKind::kHessian && deltas;
    Publish(id, deltas ? Deltas::kYes : Deltas::kNo, block.updates + (is_nearer ? 1 : 0));
  }
  for (Block& block : blocks_) block.samples = block.parting_samples = 0;
  for (uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) Store(tensor, step);
  for (Tensor& tensor : tensors_) std::ranges::fill(tensor.sum, 0.0f);
  if (job_.training.ScalesLoss()) loss_scale_ = scaler_.scale;
}

void Replay::Arrive(uint32_t id) {
  Block& block = blocks_[id];
  if (!block.is_trained) return;
  const SyncMode mode = job_.training.sync();
  const uint32_t tensor = block.range.tensor;
  const std::span<float> weights =
      std::span(weights_[tensor])
          .subspan(block.range.first_element, block.range.elements);
  std::vector<std::vector<float>> history;
  for (const ShardApplied& applied : reference_.applied_[id]) {
    history.emplace_back(weights.begin(), weights.end());
    if (applied.skipped != applied.contributors.empty()) {
      reference_.Violate(absl::StrCat("block ", id, " skipped a contribution"));
    }
    if (applied.contributors.empty()) continue;
    const auto& from = applied.contributors.front();
    const ContributionKey key = {from.rank, from.incarnation, applied.arrival->step};
    plan_ = &PlanAt(key.step);
    const Reference::Push& push = reference_.pushes_.at({key, tensor});
    const uint64_t version =
        push.parting ? applied.step - applied.arrival->age : push.versions.at(id);
    if (version + applied.arrival->age != applied.step) {
      reference_.Violate(absl::StrCat("block ", id, " version ", applied.step,
                                      " called what was computed from version ", version,
                                      " ", applied.arrival->age, " old"));
      return;
    }
    std::ranges::fill(SumOf(block.range), 0.0f);
    block.samples = block.parting_samples = 0;
    Add(id, applied.step);
    const double samples = Divisor(block.samples, block.parting_samples);
    const bool votes = transfers_[tensor].push.votes;
    if (mode.compensation > 0 && !votes) {
      CompensateDelay(static_cast<float>(mode.compensation),
                      {.gradient = SumOf(block.range),
                       .master = weights,
                       .backup = history.at(version)});
    }
    for (float& value : SumOf(block.range)) value = votes ? FiniteSignOf(value) : value;
    const double weight = WeightOfAge(job_.training.mode.values, applied.arrival->age);
    const bool remembers = plan_->RemembersGradients(tensor);
    Apply(tensor, block.range,
          {.step = ++block.updates,
           .update = applied.step,
           .learning_rate = plan_->LearningRate(tensor, key.step, samples) *
                            block.rate_factor * (remembers ? 1 : weight),
           .samples = samples},
          remembers ? static_cast<float>(weight) : 1);
  }
  Publish(id, Deltas::kNo, block.updates);
}

// Whether the block cannot step for lack of samples. A tensor whose blocks step together
// needs contributions to all of them.
bool Replay::LacksSamples(const Block& block) const {
  return std::ranges::any_of(blocks_, [&](const Block& other) {
    const bool together =
        &other == &block || (other.range.tensor == block.range.tensor &&
                             plan_->NeedsWholeTensor(block.range.tensor));
    return together && Divisor(other.samples, other.parting_samples) == 0;
  });
}

void Replay::Apply(uint32_t tensor, const BlockRange& range, const StepScalars& given,
                   float weight) {
  Tensor& own = tensors_[tensor];
  const TensorShape& shape = trained_[tensor].shape;
  const Optimizer& optimizer = plan_->optimizer(tensor);
  StepScalars scalars = given;
  const bool votes = transfers_[tensor].push.votes;
  for (float& value : own.sum) {
    if (votes) value = SignOf(value);
  }
  if (!plan_->transforms().empty() && !votes &&
      given.contribution == ContributionKind::kGradient) {
    const GradientTransforms& transforms = plan_->transforms();
    own.transform_figures.assign(transforms.Figures(shape), 0);
    const auto strip = [&](uint64_t first, size_t count) {
      return GradientStrip{.gradient = std::span(own.sum).subspan(first, count),
                           .master = std::span(weights_[tensor]).subspan(first, count),
                           .first_element = first,
                           .gradient_scale = given.gradient_scale};
    };
    for (int round = 0; round < transforms.rounds(); ++round) {
      ForEachTile(range, [&](uint64_t first, uint32_t count) {
        transforms.Reduce(round, strip(first, count), shape, own.transform_figures);
      });
      transforms.Finish(round, shape, own.transform_figures);
    }
    transforms.Apply(strip(range.first_element, range.elements), shape,
                     own.transform_figures);
    scalars.gradient_scale = 1;
  }
  for (float& value : SumOf(range)) value *= weight;
  const auto* reduction = optimizer.tensor_reduction();
  own.figures.assign(reduction == nullptr ? 0 : reduction->Figures(shape), 0);
  const TensorData data = {.shape = shape,
                           .factors = own.factors,
                           .figures = own.figures,
                           .job_memory = job_memory_};
  for (int round = 0; reduction != nullptr && round < reduction->rounds(); ++round) {
    ForEachTile(range, [&](uint64_t first, uint32_t count) {
      reduction->Reduce(round, scalars, StripOf(tensor, first, count), data);
    });
    reduction->Finish(round, scalars, data);
  }
  ForEachTile(range, [&](uint64_t first, uint32_t count) {
    optimizer.Apply(scalars, StripOf(tensor, first, count), data);
  });
}

Strip Replay::StripOf(uint32_t tensor, uint64_t first, size_t count) {
  Tensor& own = tensors_[tensor];
  own.pointers.clear();
  for (auto& slot : own.state) own.pointers.push_back(slot.data() + first);
  return {.gradient = std::span(own.sum).subspan(first, count),
          .master = std::span(weights_[tensor]).subspan(first, count),
          .state = own.pointers,
          .first_element = first};
}

StoredSlot Replay::SlotOf(uint32_t tensor, size_t slot) {
  return {.type = TypeOf(tensor, slot),
          .kind = plan_->optimizer(tensor).slots()[slot].kind,
          .memory = tensors_[tensor].stored[slot].data()};
}

void Replay::Load(uint32_t tensor) {
  Tensor& own = tensors_[tensor];
  for (size_t slot = 0; slot < own.state.size(); ++slot) {
    if (TypeOf(tensor, slot) == StateType::kF32) continue;
    LoadState(SlotOf(tensor, slot), 0, own.state[slot]);
  }
}

void Replay::Store(uint32_t tensor, uint64_t step) {
  Tensor& own = tensors_[tensor];
  for (size_t slot = 0; slot < own.state.size(); ++slot) {
    if (TypeOf(tensor, slot) == StateType::kF32) continue;
    StoreState(SlotOf(tensor, slot), 0, own.state[slot],
               {.seed = JobSeed(job_.name),
                .update = plan_->settings().UpdateOf(step),
                .tensor = tensor,
                .slot = static_cast<uint32_t>(slot)});
  }
}

}  // namespace syncline::sim
