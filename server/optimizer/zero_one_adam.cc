#include "server/optimizer/zero_one_adam.h"

#include <algorithm>
#include <array>
#include <vector>

#include "server/optimizer/uncorrected_adam.h"

namespace syncline {
namespace {

constexpr double kMaxUpdates = 1e12;

constexpr OptionSpec WholeOption(std::string_view name, double standard,
                                 std::string_view meaning) {
  return {.name = name,
          .standard = standard,
          .least = 1,
          .most = kMaxUpdates,
          .kind = OptionKind::kWhole,
          .meaning = meaning};
}

constexpr std::array kScheduleOptions = {
    WholeOption("var_freeze_step", 100000,
                "updates before the variance is frozen and workers push momenta"),
    WholeOption("var_update_scaler", 16,
                "updates of the variance before their interval doubles"),
    WholeOption("local_step_scaler", 32678,
                "local steps before the number of them in an update doubles"),
    WholeOption("local_step_clipper", 16, "most local steps in an update")};
constexpr auto kOptions = [] {
  std::array<OptionSpec, kUncorrectedAdamOptions.size() + kScheduleOptions.size()>
      options;
  const auto end = std::ranges::copy(kUncorrectedAdamOptions, options.begin()).out;
  std::ranges::copy(kScheduleOptions, end);
  return options;
}();

ZeroOneSchedule ScheduleOf(const OptionValues& values) {
  const auto whole = [&](std::string_view name) {
    return static_cast<uint64_t>(OptionOr(kOptions, values, name));
  };
  return {.var_freeze_step = whole("var_freeze_step"),
          .var_update_scaler = whole("var_update_scaler"),
          .local_step_scaler = whole("local_step_scaler"),
          .local_step_clipper = whole("local_step_clipper")};
}

class ZeroOneAdam final : public Optimizer {
 public:
  explicit ZeroOneAdam(const OptionValues& values)
      : adam_(UncorrectedAdamOf(values)), schedule_(ScheduleOf(values)) {}

  std::string_view name() const override { return "zero_one_adam"; }
  std::vector<StateSlot> slots() const override { return UncorrectedAdamSlots(); }
  ContributionPlan contributions() const override {
    return {.momentum_from = schedule_.var_freeze_step};
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    UncorrectedAdam adam = adam_;
    adam.learning_rate = scalars.learning_rate;
    auto moments = Moments::kFrozen;
    if (scalars.contribution == ContributionKind::kMomentum) {
      moments = Moments::kFromWorker;
      adam.learning_rate *=
          static_cast<double>(LocalSteps(schedule_, scalars.update + 1));
    } else if (UpdatesVariance(schedule_, scalars.update + 1)) {
      moments = Moments::kBoth;
    }
    ApplyUncorrectedAdam(adam, moments, scalars.gradient_scale, strip);
  }

 private:
  const UncorrectedAdam adam_;
  const ZeroOneSchedule schedule_;
};

}  // namespace

bool UpdatesVariance(const ZeroOneSchedule& schedule, uint64_t t) {
  if (t > schedule.var_freeze_step) return false;
  uint64_t interval = 1;
  uint64_t last = schedule.var_update_scaler;  // last update that uses `interval`
  while (t > last) {
    interval *= 2;
    last = last / interval * interval + schedule.var_update_scaler * interval;
  }
  return t % interval == 0;
}

uint64_t LocalSteps(const ZeroOneSchedule& schedule, uint64_t t) {
  if (t <= schedule.var_freeze_step) return 1;
  uint64_t left = t - schedule.var_freeze_step - 1;
  for (uint64_t steps = 1; steps < schedule.local_step_clipper; steps *= 2) {
    const uint64_t updates = (schedule.local_step_scaler + steps - 1) / steps;
    if (left < updates) return steps;
    left -= updates;
  }
  return schedule.local_step_clipper;
}

std::span<const OptionSpec> ZeroOneAdamOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeZeroOneAdam(const OptionValues& values) {
  return std::make_unique<ZeroOneAdam>(values);
}

}  // namespace syncline
