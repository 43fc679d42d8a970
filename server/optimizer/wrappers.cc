#include "server/optimizer/wrappers.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

constexpr double kMaxUpdates = 1e12;

constexpr std::array kOptions = {
    OptionSpec{.name = "maximize",
               .kind = OptionKind::kFlag,
               .meaning = "1: steps go up the gradient, not down"},
    OptionSpec{.name = "lookahead_steps",
               .most = kMaxUpdates,
               .kind = OptionKind::kWhole,
               .meaning = "updates between two of the slow weights; 0: no Lookahead"},
    OptionSpec{.name = "lookahead_alpha",
               .standard = 0.5,
               .meaning = "share of the way that the slow weights follow"},
    Beta("ema_decay", 0, "memory of the moving average of the weights; 0: none"),
    OptionSpec{.name = "swa_start",
               .most = kMaxUpdates,
               .kind = OptionKind::kWhole,
               .meaning = "the first update whose weights are averaged; 0: none are"},
    OptionSpec{.name = "swa_every",
               .standard = 1,
               .least = 1,
               .most = kMaxUpdates,
               .kind = OptionKind::kWhole,
               .meaning = "updates between two averaged ones"}};

SYNCLINE_KERNEL void FollowBody(float share, size_t n, const float* master_in,
                                float* average_out) {
  const float* __restrict master = master_in;
  float* __restrict average = average_out;
  for (size_t i = 0; i < n; ++i) average[i] += share * (master[i] - average[i]);
}

// Computes average += share * (master - average). If share is 1 the average becomes
// exactly the weights.
void Follow(double share, std::span<const float> master, float* average) {
  if (share == 1) {
    std::ranges::copy(master, average);
  } else {
    Kernel<FollowBody>::Run(static_cast<float>(share), master.size(), master.data(),
                            average);
  }
}

StepScalars Negated(const StepScalars& scalars) {
  StepScalars negated = scalars;
  negated.gradient_scale = -scalars.gradient_scale;
  return negated;
}

// Gives the wrapped optimizer the negated gradient. It negates gradient_scale, because
// every optimizer multiplies the gradient with it first.
class Maximize final : public Optimizer, private TensorReduction, private JobReduction {
 public:
  explicit Maximize(std::unique_ptr<Optimizer> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  std::vector<StateSlot> slots() const override { return inner_->slots(); }
  ContributionPlan contributions() const override { return inner_->contributions(); }
  const TensorReduction* tensor_reduction() const override {
    return inner_->tensor_reduction() == nullptr ? nullptr : this;
  }
  const JobReduction* job_reduction() const override {
    return inner_->job_reduction() == nullptr ? nullptr : this;
  }
  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& tensor) const override {
    inner_->Apply(Negated(scalars), strip, tensor);
  }

 private:
  int rounds() const override { return inner_->tensor_reduction()->rounds(); }
  size_t Figures(const TensorShape& shape) const override {
    return inner_->tensor_reduction()->Figures(shape);
  }
  size_t Factors(const TensorShape& shape) const override {
    return inner_->tensor_reduction()->Factors(shape);
  }
  void Reduce(int round, const StepScalars& scalars, const Strip& strip,
              const TensorData& tensor) const override {
    inner_->tensor_reduction()->Reduce(round, Negated(scalars), strip, tensor);
  }
  void Finish(int round, const StepScalars& scalars,
              const TensorData& tensor) const override {
    inner_->tensor_reduction()->Finish(round, Negated(scalars), tensor);
  }

  size_t Figures() const override { return inner_->job_reduction()->Figures(); }
  size_t Memory() const override { return inner_->job_reduction()->Memory(); }
  void Reduce(const Strip& strip, std::span<double> figures) const override {
    inner_->job_reduction()->Reduce(strip, figures);
  }
  void Finish(const StepScalars& scalars, std::span<const double> sums,
              std::span<double> memory) const override {
    inner_->job_reduction()->Finish(Negated(scalars), sums, memory);
  }

  const std::unique_ptr<Optimizer> inner_;
};

// Adds one slot of weights to the wrapped optimizer, as the last one.
class Wrapper : public Optimizer {
 public:
  Wrapper(std::string_view slot, std::unique_ptr<Optimizer> inner)
      : slot_(slot), inner_(std::move(inner)), inner_slots_(inner_->slots().size()) {}

  std::string_view name() const final { return inner_->name(); }
  std::vector<StateSlot> slots() const final {
    auto slots = inner_->slots();
    slots.push_back({.name = slot_, .kind = SlotKind::kWeights});
    return slots;
  }
  ContributionPlan contributions() const final { return inner_->contributions(); }
  const TensorReduction* tensor_reduction() const final {
    return inner_->tensor_reduction();
  }
  const JobReduction* job_reduction() const final { return inner_->job_reduction(); }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& tensor) const final {
    SYNCLINE_CHECK(strip.state.size() == inner_slots_ + 1);
    Strip inner = strip;
    inner.state = strip.state.first(inner_slots_);
    float* average = strip.state[inner_slots_];
    const bool updates = scalars.contribution != ContributionKind::kHessian;
    if (updates && scalars.step == 1) std::ranges::copy(strip.master, average);
    inner_->Apply(scalars, inner, tensor);
    if (updates) AfterUpdate(scalars.step, strip.master, average);
  }

 private:
  virtual void AfterUpdate(uint64_t step, std::span<float> master,
                           float* average) const = 0;

  const std::string_view slot_;
  const std::unique_ptr<Optimizer> inner_;
  const size_t inner_slots_;
};

class Lookahead final : public Wrapper {
 public:
  Lookahead(std::unique_ptr<Optimizer> inner, uint64_t steps, double alpha)
      : Wrapper("lookahead", std::move(inner)), steps_(steps), alpha_(alpha) {}

 private:
  void AfterUpdate(uint64_t step, std::span<float> master, float* slow) const override {
    if (step % steps_ != 0) return;
    Follow(alpha_, master, slow);
    std::ranges::copy(std::span(slow, master.size()), master.begin());
  }

  const uint64_t steps_;
  const double alpha_;
};

class MovingAverage final : public Wrapper {
 public:
  MovingAverage(std::unique_ptr<Optimizer> inner, double decay)
      : Wrapper("ema", std::move(inner)), decay_(decay) {}

 private:
  void AfterUpdate(uint64_t /*step*/, std::span<float> master,
                   float* average) const override {
    Follow(1.0 - decay_, master, average);
  }

  const double decay_;
};

class EqualAverage final : public Wrapper {
 public:
  EqualAverage(std::unique_ptr<Optimizer> inner, uint64_t start, uint64_t every)
      : Wrapper("swa", std::move(inner)), start_(start), every_(every) {}

 private:
  void AfterUpdate(uint64_t step, std::span<float> master,
                   float* average) const override {
    if (step < start_ || (step - start_) % every_ != 0) return;
    const uint64_t averaged_before = (step - start_) / every_;
    Follow(1.0 / static_cast<double>(averaged_before + 1), master, average);
  }

  const uint64_t start_;
  const uint64_t every_;
};

uint64_t Whole(const OptionValues& values, std::string_view name) {
  return static_cast<uint64_t>(OptionOr(kOptions, values, name));
}

}  // namespace

std::span<const OptionSpec> WrapperOptions() { return kOptions; }

absl::Status CheckWrappers(const OptionValues& values) {
  const double decay = OptionOr(kOptions, values, "ema_decay");
  const uint64_t start = Whole(values, "swa_start");
  if (decay == 0 || start == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "ema_decay is ", decay, " and swa_start ", start,
      ", but one job keeps one average of its weights: leave one of them at 0"));
}

std::unique_ptr<Optimizer> Wrap(std::unique_ptr<Optimizer> optimizer,
                                const OptionValues& values) {
  if (OptionOr(kOptions, values, "maximize") != 0) {
    optimizer = std::make_unique<Maximize>(std::move(optimizer));
  }
  if (const uint64_t steps = Whole(values, "lookahead_steps"); steps != 0) {
    optimizer = std::make_unique<Lookahead>(
        std::move(optimizer), steps, OptionOr(kOptions, values, "lookahead_alpha"));
  }
  if (const double decay = OptionOr(kOptions, values, "ema_decay"); decay != 0) {
    return std::make_unique<MovingAverage>(std::move(optimizer), decay);
  }
  if (const uint64_t start = Whole(values, "swa_start"); start != 0) {
    return std::make_unique<EqualAverage>(std::move(optimizer), start,
                                          Whole(values, "swa_every"));
  }
  return optimizer;
}

}  // namespace syncline
