#include "comm/base/sync_mode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/base/limits.h"
#include "comm/base/nearest.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"bsp", "ssp", "asp"};

constexpr OptionSpec kBspOptions[] = {
    {.name = "quorum",
     .least = 1,
     .most = static_cast<double>(kMaxWorkers),
     .kind = OptionKind::kWhole,
     .meaning = "fewest contributions that make a step; default: all"},
    {.name = "grace_ms",
     .most = static_cast<double>(kMaxGraceMs),
     .kind = OptionKind::kWhole,
     .meaning = "how long the others may take once the quorum has contributed"},
    {.name = "whole",
     .kind = OptionKind::kFlag,
     .meaning = "1: what a dying worker pushed counts with all blocks or not at all"}};

constexpr OptionSpec kSspOptions[] = {
    {.name = "staleness",
     .standard = 3,
     .most = static_cast<double>(kMaxStaleness),
     .kind = OptionKind::kWhole,
     .meaning = "steps that a worker may be ahead of the slowest; 0: bsp"}};

constexpr OptionSpec kAspOptions[] = {
    {.name = "age_power",
     .most = 4,
     .meaning = "a contribution's weight is divided by (1 + age)^age_power"},
    {.name = "age_decay",
     .standard = 1,
     .least = 1e-3,
     .meaning = "a contribution's weight is multiplied by age_decay^age"},
    {.name = "age_limit",
     .most = 1e6,
     .meaning =
         "a contribution's weight falls with the cosine to 0 at that age; 0: no limit"},
    {.name = "compensation",
     .most = 100,
     .meaning = "strength of DC-ASGD's delay compensation; 0: none"},
    {.name = "view_ahead",
     .most = 1e6,
     .meaning = "workers see the weights minus view_ahead times the momentum"}};

// Adds to an error of a mode's options how the mode is written.
absl::Status WithExample(std::string_view name, const absl::Status& status) {
  if (status.ok()) return status;
  const std::string_view example =
      name == "ssp"
          ? "ssp:3 or ssp:staleness=3: a worker may be 3 steps ahead of the slowest"
      : name == "asp" ? "asp or asp:age_power=1"
      : name == "bsp" ? "bsp or bsp:quorum=3,grace_ms=200"
                      : "bsp, ssp:3 or asp";
  return absl::Status(status.code(), absl::StrCat(std::string(status.message()),
                                                  "; such as ", std::string(example)));
}

absl::Status CheckModeName(const std::string& name) {
  if (std::ranges::find(kNames, name) != kNames.end()) return absl::OkStatus();
  const std::string hint = DidYouMean(name, kNames);
  const absl::Status unknown = absl::InvalidArgumentError(
      absl::StrCat("there is no mode '", Printable(name), "', only bsp, ssp and asp, in ",
                   "lower case", hint));
  return hint.empty() ? WithExample("", unknown) : unknown;
}

absl::Status CheckQuorum(const OptionValues& values) {
  if (OptionOr(kBspOptions, values, "whole") != 0 && values.contains("quorum")) {
    return absl::InvalidArgumentError(
        "mode 'bsp': with a quorum, contributions are whole anyway, and whole=1 waits "
        "for all workers; say bsp:quorum=K or bsp:whole=1");
  }
  if (!values.contains("grace_ms") || values.contains("quorum")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "mode 'bsp': grace_ms is the time that workers have after a quorum, but there is "
      "no quorum; say bsp:quorum=K,grace_ms=MS, or no grace_ms");
}

}  // namespace

double SyncMode::WeightOfAge(uint64_t age) const {
  const auto versions = static_cast<double>(age);
  const double weight = std::pow(age_decay, versions) / std::pow(1 + versions, age_power);
  if (age_limit == 0) return weight;
  if (versions >= age_limit) return 0;
  return weight * (1 + std::cos(std::numbers::pi * versions / age_limit)) / 2;
}

std::span<const std::string_view> SyncModeNames() { return kNames; }

std::span<const OptionSpec> SyncModeOptionsOf(std::string_view name) {
  if (name.empty() || name == "bsp") return kBspOptions;
  if (name == "ssp") return kSspOptions;
  if (name == "asp") return kAspOptions;
  return {};
}

absl::StatusOr<NamedOptions> ParseModeText(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string name(text.substr(0, colon));
  const std::string rest(text.substr(std::min(colon + 1, text.size())));
  const bool is_value = !rest.empty() && rest != kSspOptions[0].name &&
                        rest.find_first_of("=,") == std::string::npos;
  if (name == "ssp" && is_value) {
    double staleness = 0;
    if (absl::SimpleAtod(rest, &staleness)) {
      return NamedOptions{.name = "ssp", .values = {{"staleness", staleness}}};
    }
    return WithExample(name,
                       absl::InvalidArgumentError(absl::StrCat(
                           "mode 'ssp': staleness is '", Printable(rest),
                           "', but must be a whole number in [0, ", kMaxStaleness, "]")));
  }
  absl::StatusOr<NamedOptions> named = ParseNamedOptions(text);
  if (named.ok()) return named;
  SYNCLINE_RETURN_IF_ERROR(CheckModeName(name));
  return WithExample(name, named.status());
}

absl::StatusOr<SyncMode> ParseSyncMode(const NamedOptions& mode) {
  const std::string name = mode.name.empty() ? "bsp" : mode.name;
  const auto found = std::ranges::find(kNames, name);
  SYNCLINE_RETURN_IF_ERROR(CheckModeName(name));
  const std::span<const OptionSpec> options = SyncModeOptionsOf(name);
  SYNCLINE_RETURN_IF_ERROR(WithExample(
      name, ValidateOptions(absl::StrCat("mode '", name, "'"), options, mode.values)));
  SyncMode parsed = {.kind = static_cast<SyncMode::Kind>(found - kNames.begin())};
  if (parsed.kind == SyncMode::Kind::kBsp) {
    SYNCLINE_RETURN_IF_ERROR(CheckQuorum(mode.values));
    parsed.quorum = static_cast<uint64_t>(OptionOr(options, mode.values, "quorum"));
    parsed.grace_ms = static_cast<uint64_t>(OptionOr(options, mode.values, "grace_ms"));
    parsed.is_whole = OptionOr(options, mode.values, "whole") != 0;
    if (parsed.is_whole) parsed.quorum = kMaxWorkers;
  }
  if (parsed.kind == SyncMode::Kind::kSsp) {
    parsed.staleness = static_cast<uint64_t>(OptionOr(options, mode.values, "staleness"));
  }
  if (parsed.is_async()) {
    parsed.age_power = OptionOr(options, mode.values, "age_power");
    parsed.age_decay = OptionOr(options, mode.values, "age_decay");
    parsed.age_limit = OptionOr(options, mode.values, "age_limit");
    parsed.compensation = OptionOr(options, mode.values, "compensation");
    parsed.view_ahead = static_cast<float>(OptionOr(options, mode.values, "view_ahead"));
    if (parsed.view_ahead != 0 && parsed.compensation != 0) {
      return absl::InvalidArgumentError(
          "mode 'asp': view_ahead and compensation correct the same delay, one before "
          "the gradient is computed and one after; leave one of them at 0");
    }
  }
  return parsed;
}

absl::Status CheckLocalAggregation(const NamedOptions& mode) {
  SYNCLINE_ASSIGN_OR_RETURN(const SyncMode parsed, ParseSyncMode(mode));
  if (parsed.is_lockstep() || parsed.is_whole) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("mode is ", FormatNamedOptions(mode),
                   ", but local aggregation needs bsp without a quorum, whose steps are "
                   "the same for all ranks of a host and leave no host out; use mode "
                   "bsp, or no local aggregation"));
}

}  // namespace syncline
