#include "server/optimizer/onebit_adam.h"

#include <algorithm>
#include <array>
#include <vector>

#include "server/optimizer/uncorrected_adam.h"

namespace syncline {
namespace {

constexpr OptionSpec kFreezeStep = {
    .name = "freeze_step",
    .standard = 100000,
    .least = 1,
    .most = 1e12,
    .kind = OptionKind::kWhole,
    .meaning = "updates before the variance is frozen and workers push momenta"};
constexpr auto kOptions = [] {
  std::array<OptionSpec, kUncorrectedAdamOptions.size() + 1> options;
  *std::ranges::copy(kUncorrectedAdamOptions, options.begin()).out = kFreezeStep;
  return options;
}();

class OnebitAdam final : public Optimizer {
 public:
  explicit OnebitAdam(const OptionValues& values)
      : adam_(UncorrectedAdamOf(values)),
        freeze_step_(static_cast<uint64_t>(OptionOr(kOptions, values, "freeze_step"))) {}

  std::string_view name() const override { return "onebit_adam"; }
  std::vector<StateSlot> slots() const override { return UncorrectedAdamSlots(); }
  ContributionPlan contributions() const override {
    return {.momentum_from = freeze_step_};
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    UncorrectedAdam adam = adam_;
    adam.learning_rate = scalars.learning_rate;
    const auto moments = scalars.contribution == ContributionKind::kMomentum
                             ? Moments::kFromWorker
                             : Moments::kBoth;
    ApplyUncorrectedAdam(adam, moments, scalars.gradient_scale, strip);
  }

 private:
  const UncorrectedAdam adam_;
  const uint64_t freeze_step_;
};

}  // namespace

std::span<const OptionSpec> OnebitAdamOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeOnebitAdam(const OptionValues& values) {
  return std::make_unique<OnebitAdam>(values);
}

}  // namespace syncline
