#include "server/optimizer/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/nearest.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr double kMaxSteps = 1e15;
constexpr double kDefaultTimescale = 10000;  // as in transformers

constexpr OptionSpec Steps(std::string_view name, double standard,
                           std::string_view meaning) {
  return {.name = name,
          .standard = standard,
          .most = kMaxSteps,
          .kind = OptionKind::kWhole,
          .meaning = meaning};
}
constexpr OptionSpec Factor(std::string_view name, double standard,
                            std::string_view meaning) {
  return {.name = name, .standard = standard, .most = 1e6, .meaning = meaning};
}

constexpr std::array kCommon = {
    Steps("warmup_steps", 0, "updates of linear warm-up"),
    OptionSpec{.name = "warmup_start_factor", .meaning = "where the warm-up begins"},
    OptionSpec{.name = "base_batch",
               .most = kMaxSteps,
               .meaning = "samples of an update that the learning rate was made for; 0: "
                          "no scaling with the batch"},
    OptionSpec{.name = "batch_exponent",
               .standard = 1,
               .meaning = "1 scales linearly with the batch, 0.5 with its square root"}};

constexpr OptionSpec kTotal = Steps("total_steps", 0, "updates of the whole schedule");
constexpr OptionSpec kMin = {.name = "min_factor", .meaning = "where it ends"};
constexpr OptionSpec kGamma = {.name = "gamma", .standard = 0.1, .meaning = "factor"};

constexpr std::array kLinear = {kTotal, kMin};
constexpr std::array kCosine = {
    kTotal, kMin, Steps("period", 0, "updates until the first restart; 0: no restarts"),
    OptionSpec{.name = "period_factor",
               .standard = 1,
               .least = 1,
               .most = 1000,
               .kind = OptionKind::kWhole,
               .meaning = "how much longer each next period is"}};
constexpr std::array kInverseSqrt = {
    Steps("timescale", 0, "0: the warm-up, or 10000 without one")};
constexpr std::array kPolynomial = {
    kTotal, kMin,
    OptionSpec{.name = "power", .standard = 1, .most = 100, .meaning = "exponent"}};
constexpr std::array kOneCycle = {
    kTotal,
    OptionSpec{.name = "pct_start",
               .standard = 0.3,
               .bound = Bound::kExcluded,
               .meaning = "share of the updates that rise"},
    OptionSpec{.name = "div_factor",
               .standard = 25,
               .least = 1,
               .most = 1e9,
               .meaning = "learning rate over where it begins"},
    OptionSpec{.name = "final_div_factor",
               .standard = 1e4,
               .least = 1,
               .most = 1e9,
               .meaning = "where it begins over where it ends"}};
constexpr std::array kWsd = {kTotal, kMin,
                             Steps("decay_steps", 0, "updates of the decay at the end"),
                             OptionSpec{.name = "decay_power",
                                        .standard = 1,
                                        .least = 0.01,
                                        .most = 100,
                                        .meaning = "1: straight; 0.5: 1 - sqrt"}};
constexpr std::array kStep = {kGamma, Steps("step_size", 1000, "updates between drops")};
constexpr std::array kExponential = {kGamma};
constexpr std::array kRangeTest = {kTotal,
                                   Factor("first_factor", 1e-4, "where it begins"),
                                   Factor("last_factor", 10, "where it ends")};

struct Entry {
  std::string_view name;
  std::span<const OptionSpec> options = {};
};
constexpr std::array kSchedules = {Entry{"constant", {}},
                                   Entry{"linear", kLinear},
                                   Entry{"cosine", kCosine},
                                   Entry{"inverse_sqrt", kInverseSqrt},
                                   Entry{"polynomial", kPolynomial},
                                   Entry{"one_cycle", kOneCycle},
                                   Entry{"wsd", kWsd},
                                   Entry{"step", kStep},
                                   Entry{"exponential", kExponential},
                                   Entry{"range_test", kRangeTest}};
constexpr auto kNames = [] {
  std::array<std::string_view, kSchedules.size()> names;
  std::ranges::transform(kSchedules, names.begin(), &Entry::name);
  return names;
}();

const Entry* FindEntry(std::string_view name) {
  const auto found = std::ranges::find(kSchedules, name, &Entry::name);
  return found == kSchedules.end() ? nullptr : &*found;
}

// Gives access to the options of a valid schedule.
class Schedule {
 public:
  explicit Schedule(const NamedOptions& schedule)
      : values_(schedule.values), own_(FindEntry(schedule.name)->options) {}

  double Get(std::string_view name) const {
    const bool is_common = std::ranges::count(kCommon, name, &OptionSpec::name) > 0;
    return OptionOr(is_common ? std::span<const OptionSpec>(kCommon) : own_, values_,
                    name);
  }
  bool Has(std::string_view name) const {
    return std::ranges::count(own_, name, &OptionSpec::name) > 0;
  }
  double warmup() const { return Get("warmup_steps"); }
  // Returns t / T, at most 1.
  double Progress(double t) const {
    return std::min(1.0, t / (Get("total_steps") - warmup()));
  }
  double FromOneToMin(double share_left) const {
    const double min = Get("min_factor");
    return min + (1 - min) * share_left;
  }

 private:
  const OptionValues& values_;
  const std::span<const OptionSpec> own_;
};

double HalfCosine(double progress) {
  return (1 + std::cos(std::numbers::pi * progress)) / 2;
}

double Cosine(const Schedule& schedule, double t) {
  double period = schedule.Get("period");
  if (period == 0) return schedule.FromOneToMin(HalfCosine(schedule.Progress(t)));
  const double growth = schedule.Get("period_factor");
  if (growth == 1) {
    t = std::fmod(t, period);
  } else {
    while (t >= period) {
      t -= period;
      period *= growth;
    }
  }
  return schedule.FromOneToMin(HalfCosine(t / period));
}

double InverseSqrt(const Schedule& schedule, double t) {
  double timescale = schedule.Get("timescale");
  if (timescale == 0) timescale = schedule.warmup();
  if (timescale == 0) timescale = kDefaultTimescale;
  return 1 / std::sqrt((t + timescale) / timescale);
}

double OneCycle(const Schedule& schedule, double t) {
  const double total = schedule.Get("total_steps");
  const double begin = 1 / schedule.Get("div_factor");
  const double end = begin / schedule.Get("final_div_factor");
  const double top = schedule.Get("pct_start") * total - 1;
  const auto between = [](double from, double to, double progress) {
    return to + (from - to) * HalfCosine(std::clamp(progress, 0.0, 1.0));
  };
  if (t <= top) return between(begin, 1, t / top);
  return between(1, end, (t - top) / (total - 1 - top));
}

double Wsd(const Schedule& schedule, double t) {
  const double total = schedule.Get("total_steps") - schedule.warmup();
  const double decay = schedule.Get("decay_steps");
  if (t < total - decay || decay == 0) return 1;
  const double progress = std::min(1.0, (t - (total - decay)) / decay);
  return schedule.FromOneToMin(1 - std::pow(progress, schedule.Get("decay_power")));
}

double RangeTest(const Schedule& schedule, double t) {
  const double first = schedule.Get("first_factor");
  return first * std::pow(schedule.Get("last_factor") / first, schedule.Progress(t));
}

absl::Status Invalid(const NamedOptions& schedule, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("schedule '", schedule.name, "': ", what));
}

absl::Status CheckLengths(const NamedOptions& named) {
  const Schedule schedule(named);
  const bool restarts = named.name == "cosine" && schedule.Get("period") > 0;
  if (named.name == "step" && schedule.Get("step_size") == 0) {
    return Invalid(named, "step_size is 0, but must be 1 or more");
  }
  if (named.name == "range_test" && schedule.Get("first_factor") == 0) {
    return Invalid(named, "first_factor is 0, but must be above 0");
  }
  if (!schedule.Has("total_steps") || restarts) return absl::OkStatus();
  const double total = schedule.Get("total_steps");
  if (total == 0) return Invalid(named, "total_steps is missing");
  const double decay = named.name == "wsd" ? schedule.Get("decay_steps") : 0;
  if (total <= schedule.warmup() || total < schedule.warmup() + decay) {
    return Invalid(
        named, absl::StrCat("total_steps is ", total, ", shorter than its ",
                            schedule.warmup(), " updates of warm-up",
                            decay > 0 ? absl::StrCat(" and ", decay, " of decay") : ""));
  }
  if (named.name == "one_cycle" &&
      (schedule.warmup() > 0 || schedule.Get("pct_start") * total <= 1)) {
    return Invalid(named,
                   "it has its own warm-up: warmup_steps must be 0 and pct_start * "
                   "total_steps above 1");
  }
  return absl::OkStatus();
}

}  // namespace

std::span<const std::string_view> ScheduleNames() { return kNames; }

std::vector<OptionSpec> ScheduleOptionsOf(std::string_view name) {
  const Entry* entry = FindEntry(name);
  SYNCLINE_CHECK(entry != nullptr);
  std::vector<OptionSpec> options(entry->options.begin(), entry->options.end());
  options.insert(options.end(), kCommon.begin(), kCommon.end());
  return options;
}

absl::Status ValidateSchedule(const NamedOptions& schedule) {
  if (FindEntry(schedule.name) == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown schedule '", schedule.name, "'", DidYouMean(schedule.name, kNames)));
  }
  SYNCLINE_RETURN_IF_ERROR(ValidateOptions("schedule '" + schedule.name + "'",
                                           ScheduleOptionsOf(schedule.name),
                                           schedule.values));
  return CheckLengths(schedule);
}

double ScheduleFactor(const NamedOptions& named, uint64_t update) {
  const Schedule schedule(named);
  const auto s = static_cast<double>(update);
  const double warmup = schedule.warmup();
  if (s < warmup) {
    const double start = schedule.Get("warmup_start_factor");
    return start + (1 - start) * s / warmup;
  }
  const double t = s - warmup;
  const std::string& name = named.name;
  if (name == "linear") return schedule.FromOneToMin(1 - schedule.Progress(t));
  if (name == "cosine") return Cosine(schedule, t);
  if (name == "inverse_sqrt") return InverseSqrt(schedule, t);
  if (name == "polynomial") {
    return schedule.FromOneToMin(
        std::pow(1 - schedule.Progress(t), schedule.Get("power")));
  }
  if (name == "one_cycle") return OneCycle(schedule, t);
  if (name == "wsd") return Wsd(schedule, t);
  if (name == "step") {
    return std::pow(schedule.Get("gamma"), std::floor(t / schedule.Get("step_size")));
  }
  if (name == "exponential") return std::pow(schedule.Get("gamma"), t);
  if (name == "range_test") return RangeTest(schedule, t);
  return 1;
}

double BatchScale(const NamedOptions& named, double samples) {
  const Schedule schedule(named);
  const double base = schedule.Get("base_batch");
  return base == 0 ? 1 : std::pow(samples / base, schedule.Get("batch_exponent"));
}

}  // namespace syncline
