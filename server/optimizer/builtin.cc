// The list of optimizers, and the code that all of them share: validation of names and
// options, group options, wrappers.
#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/nearest.h"
#include "comm/base/status.h"
#include "server/optimizer/adadelta.h"
#include "server/optimizer/adafactor.h"
#include "server/optimizer/adagrad.h"
#include "server/optimizer/adam.h"
#include "server/optimizer/adamax.h"
#include "server/optimizer/asgd.h"
#include "server/optimizer/lamb.h"
#include "server/optimizer/lars.h"
#include "server/optimizer/lbfgs.h"
#include "server/optimizer/lion.h"
#include "server/optimizer/mean.h"
#include "server/optimizer/nadam.h"
#include "server/optimizer/onebit_adam.h"
#include "server/optimizer/optimizer.h"
#include "server/optimizer/option_ranges.h"
#include "server/optimizer/radam.h"
#include "server/optimizer/rmsprop.h"
#include "server/optimizer/rprop.h"
#include "server/optimizer/sgd.h"
#include "server/optimizer/signsgd.h"
#include "server/optimizer/sophia.h"
#include "server/optimizer/wrappers.h"
#include "server/optimizer/zero_one_adam.h"

namespace syncline {
namespace {

// Settings that a parameter group may change. kFrozen: only `frozen`, because the
// optimizer treats all weights of the job as one vector.
enum class GroupSupport { kAll, kFrozen };

struct Entry {
  std::string_view name;
  std::span<const OptionSpec> (*options)();
  std::unique_ptr<Optimizer> (*make)(const OptionValues&);
  // Checks more than the ranges of the table. Null: there is nothing more to check.
  absl::Status (*check)(const OptionValues&) = nullptr;
  GroupSupport groups = GroupSupport::kAll;
};

constexpr std::array kOptimizers = {
    Entry{"sgd", SgdOptions, MakeSgd, CheckSgd},
    Entry{"adam", AdamOptions, MakeAdam},
    Entry{"adamw", AdamWOptions, MakeAdamW},
    Entry{"nadam", NAdamOptions, MakeNAdam},
    Entry{"radam", RAdamOptions, MakeRAdam},
    Entry{"adagrad", AdagradOptions, MakeAdagrad},
    Entry{"rmsprop", RmspropOptions, MakeRmsprop},
    Entry{"adadelta", AdadeltaOptions, MakeAdadelta},
    Entry{"adamax", AdamaxOptions, MakeAdamax},
    Entry{"asgd", AsgdOptions, MakeAsgd},
    Entry{"rprop", RpropOptions, MakeRprop, CheckRprop},
    Entry{"lion", LionOptions, MakeLion},
    Entry{"signsgd", SignSgdOptions, MakeSignSgd},
    Entry{"sophia", SophiaOptions, MakeSophia},
    Entry{"onebit_adam", OnebitAdamOptions, MakeOnebitAdam},
    Entry{"zero_one_adam", ZeroOneAdamOptions, MakeZeroOneAdam},
    Entry{"lamb", LambOptions, MakeLamb},
    Entry{"lars", LarsOptions, MakeLars, CheckLars},
    Entry{"adafactor", AdafactorOptions, MakeAdafactor, CheckAdafactor},
    Entry{"lbfgs", LbfgsOptions, MakeLbfgs, nullptr, GroupSupport::kFrozen},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kOptimizers.size()> names;
  std::ranges::transform(kOptimizers, names.begin(), &Entry::name);
  return names;
}();

const Entry* FindEntry(std::string_view name) {
  const auto found = std::ranges::find(kOptimizers, name, &Entry::name);
  return found == kOptimizers.end() ? nullptr : &*found;
}

absl::Status Validate(const OptimizerSettings& settings, const OptionValues& values) {
  const Entry* entry = FindEntry(settings.name);
  if (entry == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown optimizer '", settings.name, "'", DidYouMean(settings.name, kNames)));
  }
  SYNCLINE_RETURN_IF_ERROR(ValidateOptions("optimizer '" + settings.name + "'",
                                           OptionsOf(settings.name), values));
  SYNCLINE_RETURN_IF_ERROR(CheckWrappers(values));
  if (entry->groups == GroupSupport::kFrozen &&
      OptionOr(WrapperOptions(), values, "lookahead_steps") != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("lookahead_steps: optimizer '", settings.name,
                     "' remembers its own steps, which Lookahead would undo"));
  }
  return entry->check == nullptr ? absl::OkStatus() : entry->check(values);
}

// Checks the options of a tensor with mean=1. Fails if the job's optimizer treats all
// weights as one vector, or if workers push something other than gradients at some steps.
absl::Status CheckMeanOf(const OptimizerSettings& settings, const GroupOptions& group) {
  const Entry* entry = FindEntry(settings.name);
  const bool has_other_steps =
      entry->make(settings.options)->contributions() != ContributionPlan{};
  if (has_other_steps || entry->groups == GroupSupport::kFrozen) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer '", settings.name,
                     "' steps in other ways than by the gradients of each tensor: it "
                     "leaves no room for "
                     "a tensor with mean=1"));
  }
  return CheckMean(group);
}

}  // namespace

absl::StatusOr<StateType> ParseStateType(std::string_view name) {
  constexpr std::array<std::string_view, 3> kTypes = {"f32", "bf16", "int8"};
  const auto found = std::ranges::find(kTypes, name);
  if (found != kTypes.end()) return static_cast<StateType>(found - kTypes.begin());
  return absl::InvalidArgumentError(absl::StrCat("optimizer state '", std::string(name),
                                                 "' is unknown, only f32, bf16 and int8",
                                                 DidYouMean(name, kTypes)));
}

std::span<const std::string_view> OptimizerNames() { return kNames; }

std::vector<OptionSpec> OptionsOf(std::string_view name) {
  const Entry* entry = FindEntry(name);
  SYNCLINE_CHECK(entry != nullptr);
  const auto own = entry->options();
  std::vector<OptionSpec> options(own.begin(), own.end());
  std::ranges::copy(WrapperOptions(), std::back_inserter(options));
  return options;
}

absl::Status ValidateOptimizer(const OptimizerSettings& settings) {
  SYNCLINE_RETURN_IF_ERROR(ParseStateType(settings.state).status());
  return Validate(settings, settings.options);
}

absl::Status ValidateGroup(const OptimizerSettings& settings, const GroupOptions& group) {
  if (TakesMean(group)) return CheckMeanOf(settings, group);
  constexpr OptionSpec kScale = {
      .name = "learning_rate_scale", .standard = 1, .most = kMaxRate};
  SYNCLINE_RETURN_IF_ERROR(
      ValidateOptions("parameter group", std::span(&kScale, 1),
                      {{std::string(kScale.name), group.learning_rate_scale}}));
  if (!group.state.empty()) {
    SYNCLINE_RETURN_IF_ERROR(ParseStateType(group.state).status());
  }
  SYNCLINE_RETURN_IF_ERROR(Validate(settings, Merge(settings.options, group.options)));
  const bool changes = group != GroupOptions{.frozen = group.frozen};
  if (changes && FindEntry(settings.name)->groups == GroupSupport::kFrozen) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer '", settings.name,
                     "' takes all weights for one vector: a parameter group can be "
                     "frozen, but have no learning rate, options or state of its own"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(
    const OptimizerSettings& settings, const GroupOptions& group) {
  SYNCLINE_RETURN_IF_ERROR(ValidateOptimizer(settings));
  SYNCLINE_RETURN_IF_ERROR(ValidateGroup(settings, group));
  if (TakesMean(group)) return MakeMean();
  const OptionValues values = Merge(settings.options, group.options);
  return Wrap(FindEntry(settings.name)->make(values), values);
}

}  // namespace syncline
