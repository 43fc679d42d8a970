#include "server/optimizer/loss_scaler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/nearest.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr double kLeastScale = 0x1p-100;
constexpr double kMaxScale = 0x1p100;

// Defaults in which presets differ.
struct Defaults {
  double growth_interval = 2000;
  double min_scale = kLeastScale;
  double max_scale = kMaxScale;
  double hysteresis = 1;
  // 1: every clean step forgives earlier overflows. 0: only growth of the scale does.
  double refill_on_clean = 0;
};

constexpr std::array<OptionSpec, 8> Options(const Defaults& defaults) {
  return {
      {{.name = "init_scale",
        .standard = 65536,
        .least = kLeastScale,
        .most = kMaxScale,
        .meaning = "of the first step"},
       {.name = "growth_factor", .standard = 2, .least = 1, .most = 1024},
       {.name = "backoff_factor",
        .standard = 0.5,
        .least = 1.0 / 1024,
        .most = 1,
        .bound = Bound::kExcluded},
       {.name = "growth_interval",
        .standard = defaults.growth_interval,
        .least = 1,
        .most = 1e9,
        .kind = OptionKind::kWhole,
        .meaning = "clean steps until the scale grows"},
       {.name = "min_scale",
        .standard = defaults.min_scale,
        .least = kLeastScale,
        .most = kMaxScale},
       {.name = "max_scale",
        .standard = defaults.max_scale,
        .least = kLeastScale,
        .most = kMaxScale},
       {.name = "hysteresis",
        .standard = defaults.hysteresis,
        .least = 1,
        .most = 1e6,
        .kind = OptionKind::kWhole,
        .meaning = "overflows until the scale falls"},
       {.name = "refill_on_clean",
        .standard = defaults.refill_on_clean,
        .kind = OptionKind::kFlag,
        .meaning = "1: a clean step forgives earlier overflows; 0: only growth does"}}};
}

constexpr auto kTorch = Options({});
constexpr auto kDeepSpeed =
    Options({.growth_interval = 1000, .min_scale = 1, .hysteresis = 2});
constexpr auto kApex = Options({.max_scale = 0x1p24});

constexpr std::array<std::string_view, 3> kPresets = {"torch", "deepspeed", "apex"};

class Scaling {
 public:
  explicit Scaling(const NamedOptions& scaling)
      : specs_(LossScalingOptionsOf(scaling.name)), values_(scaling.values) {}

  double Get(std::string_view name) const { return OptionOr(specs_, values_, name); }
  float Bounded(double scale) const {
    return static_cast<float>(std::clamp(scale, Get("min_scale"), Get("max_scale")));
  }
  int32_t hysteresis() const { return static_cast<int32_t>(Get("hysteresis")); }

 private:
  const std::span<const OptionSpec> specs_;
  const OptionValues& values_;
};

}  // namespace

std::span<const std::string_view> LossScalingPresets() { return kPresets; }

std::span<const OptionSpec> LossScalingOptionsOf(std::string_view preset) {
  if (preset == "deepspeed") return kDeepSpeed;
  if (preset == "apex") return kApex;
  SYNCLINE_CHECK(preset == "torch");
  return kTorch;
}

absl::Status ValidateLossScaling(const NamedOptions& scaling) {
  if (std::ranges::count(kPresets, scaling.name) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown loss scaling '", scaling.name, "'", DidYouMean(scaling.name, kPresets)));
  }
  const std::string owner = "loss scaling '" + scaling.name + "'";
  SYNCLINE_RETURN_IF_ERROR(
      ValidateOptions(owner, LossScalingOptionsOf(scaling.name), scaling.values));
  const Scaling checked(scaling);
  const double least = checked.Get("min_scale");
  const double most = checked.Get("max_scale");
  const double first = checked.Get("init_scale");
  if (least <= first && first <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(owner, ": init_scale is ", first, ", but must be in [min_scale, ",
                   "max_scale] = [", least, ", ", most, "]"));
}

LossScalerState StartLossScaling(const NamedOptions& scaling) {
  const Scaling options(scaling);
  return {.scale = static_cast<float>(options.Get("init_scale")),
          .growth_tracker = 0,
          .hysteresis = options.hysteresis()};
}

LossScalerState AdvanceLossScaling(const NamedOptions& scaling,
                                   const LossScalerState& state, Gradients gradients) {
  const Scaling options(scaling);
  LossScalerState next = state;
  if (gradients == Gradients::kNotFinite) {
    next.growth_tracker = 0;
    if (state.hysteresis > 1) {
      --next.hysteresis;
    } else {
      next.scale = options.Bounded(state.scale * options.Get("backoff_factor"));
    }
    return next;
  }
  if (options.Get("refill_on_clean") != 0) next.hysteresis = options.hysteresis();
  if (++next.growth_tracker >= options.Get("growth_interval")) {
    next.growth_tracker = 0;
    next.hysteresis = options.hysteresis();
    next.scale = options.Bounded(state.scale * options.Get("growth_factor"));
  }
  return next;
}

}  // namespace syncline
