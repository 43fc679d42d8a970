#include "server/optimizer/rprop.h"

#include <array>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

constexpr std::array kOptions = {
    OptionSpec{.name = "lr",
               .standard = 1e-2,
               .most = kMaxRate,
               .meaning = "each weight's step at the first update"},
    OptionSpec{.name = "eta_minus",
               .standard = 0.5,
               .least = kLeastEpsilon,
               .bound = Bound::kExcluded,
               .meaning = "multiplies the step where the gradient's sign turned"},
    OptionSpec{.name = "eta_plus",
               .standard = 1.2,
               .least = 1,
               .most = kMaxRate,
               .meaning = "multiplies the step where it did not"},
    OptionSpec{.name = "step_size_min",
               .standard = 1e-6,
               .most = kMaxRate,
               .meaning = "least step"},
    OptionSpec{.name = "step_size_max",
               .standard = 50,
               .most = kMaxRate,
               .meaning = "largest step"}};

struct Coefficients {
  float gradient_scale;
  float start;  // first update: the initial step size; later 0
  float minus;
  float plus;
  float least;
  float most;
};

struct Arrays {
  const float* gradient;
  float* master;
  float* before;
  float* step;
};

SYNCLINE_KERNEL void UpdateBody(const Coefficients& coefficients, size_t n,
                                Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict before = arrays.before;
  float* __restrict step = arrays.step;
  for (size_t i = 0; i < n; ++i) {
    const float g = gradient[i] * c.gradient_scale;
    const float sign = (g > 0.0f ? 1.0f : 0.0f) - (g < 0.0f ? 1.0f : 0.0f);
    const float last =
        (before[i] > 0.0f ? 1.0f : 0.0f) - (before[i] < 0.0f ? 1.0f : 0.0f);
    const float turn = sign * last;
    const float kept = turn > 0.0f ? c.plus : 1.0f;
    const float wanted = (step[i] + c.start) * (turn < 0.0f ? c.minus : kept);
    const float enough = wanted < c.least ? c.least : wanted;
    const float s = enough > c.most ? c.most : enough;
    step[i] = s;
    before[i] = turn < 0.0f ? 0.0f : g;
    master[i] -= (turn < 0.0f ? 0.0f : sign) * s;
  }
}

class Rprop final : public Optimizer {
 public:
  explicit Rprop(const OptionValues& values)
      : minus_(OptionOr(kOptions, values, "eta_minus")),
        plus_(OptionOr(kOptions, values, "eta_plus")),
        least_(OptionOr(kOptions, values, "step_size_min")),
        most_(OptionOr(kOptions, values, "step_size_max")) {}

  std::string_view name() const override { return "rprop"; }
  std::vector<StateSlot> slots() const override {
    return {{.name = "before", .kind = SlotKind::kSigned},
            {.name = "step", .kind = SlotKind::kUnsigned}};
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    SYNCLINE_CHECK(strip.master.size() == strip.gradient.size());
    SYNCLINE_CHECK(strip.state.size() == 2);
    const double start = scalars.step == 1 ? scalars.learning_rate : 0;
    const Coefficients c = {.gradient_scale = scalars.gradient_scale,
                            .start = static_cast<float>(start),
                            .minus = static_cast<float>(minus_),
                            .plus = static_cast<float>(plus_),
                            .least = static_cast<float>(least_),
                            .most = static_cast<float>(most_)};
    Kernel<UpdateBody>::Run(c, strip.gradient.size(),
                            Arrays{strip.gradient.data(), strip.master.data(),
                                   strip.state[0], strip.state[1]});
  }

 private:
  const double minus_;
  const double plus_;
  const double least_;
  const double most_;
};

}  // namespace

std::span<const OptionSpec> RpropOptions() { return kOptions; }

absl::Status CheckRprop(const OptionValues& values) {
  const double least = OptionOr(kOptions, values, "step_size_min");
  const double most = OptionOr(kOptions, values, "step_size_max");
  if (least <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer 'rprop': step_size_min is ", least,
                   ", but must not be above step_size_max, ", most));
}

std::unique_ptr<Optimizer> MakeRprop(const OptionValues& values) {
  return std::make_unique<Rprop>(values);
}

}  // namespace syncline
