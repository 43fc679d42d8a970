#include "worker/c/option_table.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "comm/base/nearest.h"
#include "comm/base/options.h"
#include "comm/base/status.h"
#include "comm/base/sync_mode.h"
#include "worker/client/presets.h"

namespace syncline::c {
namespace {

absl::Status Set(std::string& option, const std::string& value) {
  option = value;
  return absl::OkStatus();
}

absl::Status Set(uint32_t& option, const std::string& value) {
  if (absl::SimpleAtoi(value, &option)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", value, "' is not a whole number"));
}

absl::Status Set(bool& option, const std::string& value) {
  if (absl::SimpleAtob(value, &option)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", value, "' is neither 0 nor 1"));
}

absl::Status Set(std::optional<uint32_t>& option, const std::string& value) {
  if (value != "auto") return Set(option.emplace(), value);
  option.reset();
  return absl::OkStatus();
}

absl::Status Set(absl::Duration& option, const std::string& value) {
  if (absl::ParseDuration(value, &option)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", value, "' is not a duration such as 10s or 500ms"));
}

absl::Status Set(NamedOptions& option, const std::string& value) {
  SYNCLINE_ASSIGN_OR_RETURN(option, ParseNamedOptions(value));
  return absl::OkStatus();
}

absl::Status Set(OptionValues& option, const std::string& value) {
  SYNCLINE_ASSIGN_OR_RETURN(option, ParseOptionList(value));
  return absl::OkStatus();
}

using TwoNames = std::array<std::string_view, 2>;

// Sets an option of an enumeration from the name of a value. `names`: in the enum's
// order.
template <typename Enum>
absl::Status SetEnum(Enum& option, const std::string& value, const TwoNames& names) {
  const auto found = std::ranges::find(names, value);
  if (found == names.end()) {
    return absl::InvalidArgumentError(absl::StrCat("'", value, "' is neither ",
                                                   std::string(names[0]), " nor ",
                                                   std::string(names[1])));
  }
  option = static_cast<Enum>(found - names.begin());
  return absl::OkStatus();
}

std::string Get(const std::string& option) { return option; }
std::string Get(bool option) { return option ? "1" : "0"; }
std::string Get(uint32_t option) { return absl::StrCat(option); }
std::string Get(const std::optional<uint32_t>& option) {
  return option ? absl::StrCat(*option) : "auto";
}
std::string Get(absl::Duration option) { return absl::FormatDuration(option); }
std::string Get(const NamedOptions& option) { return FormatNamedOptions(option); }
std::string Get(const OptionValues& option) { return FormatOptionList(option); }

constexpr TwoNames kNonfiniteSteps = {"apply", "skip"};
constexpr TwoNames kAccumulateOn = {"server", "worker"};
constexpr TwoNames kAggregation = {"rank_order", "arrival"};

struct Option {
  std::string_view key;
  absl::Status (*set)(SessionOptions& options, const std::string& value);
  std::string (*get)(const SessionOptions& options);
};

// Returns the option for a member whose type Set and Get support.
template <auto kMember>
constexpr Option Of(std::string_view key) {
  return {.key = key,
          .set = [](SessionOptions& options,
                    const std::string& value) { return Set(options.*kMember, value); },
          .get = [](const SessionOptions& options) { return Get(options.*kMember); }};
}

template <auto kMember>
constexpr Option OfTraining(std::string_view key) {
  return {
      .key = key,
      .set =
          [](SessionOptions& options, const std::string& value) {
            return Set(options.training.*kMember, value);
          },
      .get =
          [](const SessionOptions& options) { return Get(options.training.*kMember); }};
}

template <auto kMember, const auto& kNames>
constexpr Option OfEnum(std::string_view key) {
  return {
      .key = key,
      .set =
          [](SessionOptions& options, const std::string& value) {
            return SetEnum(options.training.*kMember, value, kNames);
          },
      .get =
          [](const SessionOptions& options) {
            return std::string(kNames[static_cast<size_t>(options.training.*kMember)]);
          }};
}

// Returns the option for the mode, which has a short form.
constexpr Option OfMode(std::string_view key) {
  return {
      .key = key,
      .set = [](SessionOptions& options, const std::string& value) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(options.training.mode, ParseModeText(value));
        return absl::OkStatus();
      },
      .get = [](const SessionOptions& options) { return Get(options.training.mode); }};
}

// Returns the option for a preset, which sets three other options.
constexpr Option OfPreset(std::string_view key) {
  return {
      .key = key,
      .set = [](SessionOptions& options,
                const std::string& value) { return ApplyPreset(value, options); },
      .get =
          [](const SessionOptions& options) { return std::string(PresetOf(options)); }};
}

// All options except the job's settings, which have their own table (comm/job).
constexpr std::array kOptions = {
    Of<&SessionOptions::coordinator>("coordinator"),
    Of<&SessionOptions::job>("job"),
    Of<&SessionOptions::run_id>("run_id"),
    Of<&SessionOptions::rejoins>("rejoin"),
    Of<&SessionOptions::rank>("rank"),
    Of<&SessionOptions::world_size>("world_size"),
    Of<&SessionOptions::ranks>("ranks"),
    OfTraining<&TrainingOptions::optimizer>("optimizer"),
    OfTraining<&TrainingOptions::state>("state"),
    OfTraining<&TrainingOptions::schedule>("schedule"),
    OfTraining<&TrainingOptions::gradient>("gradient"),
    OfTraining<&TrainingOptions::loss_scaling>("loss_scaling"),
    OfEnum<&TrainingOptions::nonfinite_steps, kNonfiniteSteps>("nonfinite_steps"),
    OfTraining<&TrainingOptions::accumulate_steps>("accumulate_steps"),
    OfEnum<&TrainingOptions::accumulate_on, kAccumulateOn>("accumulate_on"),
    OfEnum<&TrainingOptions::aggregation, kAggregation>("aggregation"),
    OfMode("mode"),
    OfPreset("preset"),
    Of<&SessionOptions::codec_threads>("codec_threads"),
    Of<&SessionOptions::failure_timeout>("failure_timeout"),
    Of<&SessionOptions::start_timeout>("start_timeout"),
    Of<&SessionOptions::tls_cert>("tls_cert"),
    Of<&SessionOptions::tls_key>("tls_key"),
    Of<&SessionOptions::tls_ca>("tls_ca"),
    Of<&SessionOptions::identities>("identities"),
};

const Option* Find(std::string_view key) {
  const auto found = std::ranges::find(kOptions, key, &Option::key);
  return found == kOptions.end() ? nullptr : &*found;
}

const JobSetting* FindSetting(std::string_view key) {
  const auto found = std::ranges::find(kJobSettings, key, &JobSetting::option);
  return found == kJobSettings.end() ? nullptr : &*found;
}

absl::Status UnknownOption(std::string_view key) {
  std::vector<std::string_view> keys;
  for (const Option& one : kOptions) keys.push_back(one.key);
  for (const JobSetting& one : kJobSettings) keys.push_back(one.option);
  return absl::InvalidArgumentError(
      absl::StrCat("there is no option '", std::string(key), "'", DidYouMean(key, keys)));
}

}  // namespace

absl::Status SetOption(SessionOptions& options, std::string_view key,
                       const std::string& value) {
  const Option* option = Find(key);
  const JobSetting* setting = FindSetting(key);
  if (option == nullptr && setting == nullptr) return UnknownOption(key);
  SessionOptions changed = options;  // so that a refused value changes nothing
  const absl::Status status = setting != nullptr
                                  ? SetJobSetting(*setting, value, changed.settings)
                                  : option->set(changed, value);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("option ", std::string(key), ": ", status.message()));
  }
  options = std::move(changed);
  return absl::OkStatus();
}

std::optional<std::string> GetOption(const SessionOptions& options,
                                     std::string_view key) {
  if (const JobSetting* setting = FindSetting(key); setting != nullptr) {
    return GetJobSetting(*setting, options.settings);
  }
  const Option* option = Find(key);
  if (option == nullptr) return std::nullopt;
  return option->get(options);
}

}  // namespace syncline::c
