#include "comm/job/job_settings.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/compression/transfer.h"

namespace syncline {
namespace {

// Returns a list such as "none, disk, peer and disk+peer".
std::string Listed(std::span<const std::string_view> words) {
  const std::vector<std::string> all(words.begin(), words.end());
  const auto last = all.end() - 1;
  return absl::StrCat(absl::StrJoin(all.begin(), last, ", "),
                      all.size() > 1 ? " and " : "", *last);
}

// Returns the end of a message such as "checkpoint_keep is 0, allowed are 1 to 10000".
std::string Allowed(const JobSetting& setting) {
  if (!setting.words.empty()) return Listed(setting.words);
  return absl::StrCat("whole numbers from ", setting.least, " to ", setting.most);
}

absl::Status Refused(const JobSetting& setting, std::string_view value) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(setting.name), " is '",
                                                 Printable(value), "', allowed are ",
                                                 Allowed(setting)));
}

// ---- Reading, writing and checking, by the type of the value ----

absl::Status Read(const JobSetting&, const std::string& from, std::string& value) {
  value = from;
  return absl::OkStatus();
}
absl::Status Read(const JobSetting& setting, const std::string& from, uint32_t& value) {
  return absl::SimpleAtoi(from, &value) ? absl::OkStatus() : Refused(setting, from);
}
absl::Status Read(const JobSetting& setting, const std::string& from,
                  CheckpointEvery& value) {
  const auto every = ParseCheckpointEvery(from);
  if (!every.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(setting.name), ": ", std::string(every.status().message())));
  }
  value = *every;
  return absl::OkStatus();
}

std::string Written(const std::string& value) { return value; }
std::string Written(uint32_t value) { return absl::StrCat(value); }
std::string Written(const CheckpointEvery& value) { return FormatCheckpointEvery(value); }

absl::Status Check(const JobSetting& setting, const std::string& value) {
  const auto& words = setting.words;
  if (!words.empty() && std::ranges::find(words, value) == words.end()) {
    return Refused(setting, value);
  }
  return setting.check == nullptr ? absl::OkStatus() : setting.check(value);
}
absl::Status Check(const JobSetting& setting, uint32_t value) {
  const bool fits = setting.least <= value && value <= setting.most;
  return fits ? absl::OkStatus() : Refused(setting, Written(value));
}
absl::Status Check(const JobSetting& setting, const CheckpointEvery& value) {
  if (value.IsInRange()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(setting.name), " is ",
                                                 value.steps, " steps or ", value.seconds,
                                                 " s: out of range"));
}

std::string Canonical(const JobSetting& setting, const std::string& value) {
  return setting.canonical == nullptr ? value : setting.canonical(value);
}
template <typename Value>
const Value& Canonical(const JobSetting&, const Value& value) {
  return value;
}

absl::Status CheckOne(const JobSetting& setting, const JobSettings& settings) {
  return std::visit([&](auto member) { return Check(setting, settings.*member); },
                    setting.member);
}

// Returns the allowed values for a cell of docs/settings.md.
std::string AllowedCell(const JobSetting& setting) {
  const bool is_number = std::holds_alternative<uint32_t JobSettings::*>(setting.member);
  return is_number || !setting.words.empty() ? Allowed(setting) : "";
}

}  // namespace

absl::Status CheckPushCodec(const std::string& codec) {
  return ParseTransfers(codec, "fp32", {}).status();
}

absl::Status CheckPublishCodec(const std::string& codec) {
  return ParseTransfers("fp32", codec, {}).status();
}

std::string CanonicalCodecs(std::string_view codec) { return CanonicalTransfer(codec); }

absl::Status CheckGoals(const std::string& goals) { return ParseGoals(goals).status(); }

absl::Status CheckTotalSteps(const std::string& steps) {
  return ParseTotalSteps(steps).status();
}

absl::Status CheckAnswers(const std::string& answers) {
  const absl::StatusOr<AnswerSpec> spec = ParseAnswers(answers);
  if (!spec.ok() || !spec->excludes || spec->min_workers > 0) return spec.status();
  return absl::InvalidArgumentError(
      "answers: 'exclude_straggler' needs min_workers=N, the workers that have to stay; "
      "the launcher must accept that few (syncline run --min-workers N sets it by "
      "itself)");
}

const JobSetting* FindJobSetting(std::string_view name) {
  const auto found = std::ranges::find(kJobSettings, name, &JobSetting::name);
  return found == kJobSettings.end() ? nullptr : &*found;
}

std::string VariableOf(const JobSetting& setting) {
  return absl::StrCat("SYNCLINE_", absl::AsciiStrToUpper(std::string(setting.name)));
}

std::string FlagOf(const JobSetting& setting) {
  return absl::StrCat("--", absl::StrReplaceAll(std::string(setting.name), {{"_", "-"}}));
}

absl::Status SetJobSetting(const JobSetting& setting, const std::string& value,
                           JobSettings& settings) {
  JobSettings changed = settings;
  const JobSettings defaults;
  SYNCLINE_RETURN_IF_ERROR(std::visit(
      [&](auto member) {
        if (!value.empty()) return Read(setting, value, changed.*member);
        changed.*member = defaults.*member;
        return absl::OkStatus();
      },
      setting.member));
  SYNCLINE_RETURN_IF_ERROR(CheckOne(setting, changed));
  settings = std::move(changed);
  return absl::OkStatus();
}

std::string GetJobSetting(const JobSetting& setting, const JobSettings& settings) {
  return std::visit([&](auto member) { return Written(settings.*member); },
                    setting.member);
}

absl::Status CheckJobSettings(const JobSettings& settings) {
  for (const JobSetting& setting : kJobSettings) {
    SYNCLINE_RETURN_IF_ERROR(CheckOne(setting, settings));
  }
  return absl::OkStatus();
}

const JobSetting* FindDifference(const JobSettings& ours, const JobSettings& theirs) {
  for (const JobSetting& setting : kJobSettings) {
    const auto means_the_same = [&](auto member) {
      return Canonical(setting, ours.*member) == Canonical(setting, theirs.*member);
    };
    if (!std::visit(means_the_same, setting.member)) return &setting;
  }
  return nullptr;
}

std::string JobSettingsTable() {
  std::string table =
      "| C and Python | flag of `syncline run` | default | what | allowed |\n"
      "|---|---|---|---|---|\n";
  for (const JobSetting& setting : kJobSettings) {
    const std::string flag = setting.said_by == SaidBy::kProgramOrLauncher
                                 ? absl::StrCat("`", FlagOf(setting), "`")
                                 : "";
    const std::string standard = GetJobSetting(setting, {});
    absl::StrAppend(&table, "| `", std::string(setting.option), "` | ", flag, " | ",
                    standard.empty() ? "" : absl::StrCat("`", standard, "`"), " | ",
                    std::string(setting.meaning), " | ", AllowedCell(setting), " |\n");
  }
  return table;
}

}  // namespace syncline
