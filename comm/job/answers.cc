#include "comm/job/answers.h"

#include <array>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "comm/base/limits.h"
#include "comm/base/nearest.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr std::array<std::string_view, kAnswerKinds> kKinds = {"exclude_straggler",
                                                               "staleness", "add_server"};
constexpr double kMaxAnswerStaleness = 64;

// An option that may follow the answers.
struct Option {
  std::string_view name;
  double lowest;
  double highest;
  bool is_whole;
  bool is_of_exclusion;  // an option of exclude_straggler only
};
constexpr std::array<Option, 5> kOptions = {
    {{"factor", 1.2, 100, false, true},
     {"after_s", 10, 3600, false, true},
     {"pause_s", 30, 3600, false, false},
     {"per_hour", 1, 20, true, true},
     {"min_workers", 1, static_cast<double>(kMaxWorkers), true, true}}};

constexpr char kWhatThereIs[] =
    "exclude_straggler, staleness<=N and add_server, with factor=, after_s=, pause_s=, "
    "per_hour= and min_workers=";

absl::Status Wrong(absl::string_view part, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("answers: '", Printable(std::string(part)), "' ", why));
}

absl::Status Unknown(absl::string_view part, absl::string_view name) {
  std::vector<std::string_view> names(kKinds.begin(), kKinds.end());
  for (const Option& option : kOptions) names.push_back(option.name);
  const std::string_view near = NearestName({name.data(), name.size()}, names);
  const std::string meant =
      near.empty() ? "" : absl::StrCat("did you mean '", std::string(near), "'? ");
  return Wrong(part,
               absl::StrCat("is not an answer; ", meant, "there are ", kWhatThereIs));
}

absl::StatusOr<double> Number(absl::string_view part, absl::string_view digits,
                              const Option& option) {
  double value = 0;
  // NaN fails both comparisons.
  if (absl::SimpleAtod(digits, &value) && value >= option.lowest &&
      value <= option.highest && (!option.is_whole || value == std::floor(value))) {
    return value;
  }
  return Wrong(part, absl::StrCat("needs a ", option.is_whole ? "whole " : "",
                                  "number from ", option.lowest, " to ", option.highest));
}

void Set(const Option& option, double value, AnswerSpec& spec) {
  if (option.name == "factor") spec.factor = value;
  if (option.name == "after_s") spec.after = absl::Seconds(value);
  if (option.name == "pause_s") spec.pause = absl::Seconds(value);
  if (option.name == "per_hour") spec.per_hour = static_cast<uint32_t>(value);
  if (option.name == "min_workers") spec.min_workers = static_cast<uint32_t>(value);
}

double Get(const Option& option, const AnswerSpec& spec) {
  if (option.name == "factor") return spec.factor;
  if (option.name == "after_s") return absl::ToDoubleSeconds(spec.after);
  if (option.name == "pause_s") return absl::ToDoubleSeconds(spec.pause);
  return option.name == "per_hour" ? spec.per_hour : spec.min_workers;
}

// Parses `part` into `spec`. Returns its name.
absl::StatusOr<std::string_view> ParsePart(absl::string_view part, AnswerSpec& spec) {
  const size_t sign = part.find_first_of("<>=");
  const absl::string_view name = absl::StripAsciiWhitespace(part.substr(0, sign));
  const std::string_view named(name.data(), name.size());
  const absl::string_view rest = sign == absl::string_view::npos ? "" : part.substr(sign);
  if (named == kKinds[0]) {
    if (!rest.empty()) {
      return Wrong(part, "has no number; factor= and after_s= say when");
    }
    spec.excludes = true;
    return kKinds[0];
  }
  if (named == kKinds[1]) {
    if (rest.substr(0, 2) != "<=") return Wrong(part, "must be written staleness<=N");
    SYNCLINE_ASSIGN_OR_RETURN(const double most,
                              Number(part, absl::StripAsciiWhitespace(rest.substr(2)),
                                     {kKinds[1], 1, kMaxAnswerStaleness, true, false}));
    spec.staleness = static_cast<uint32_t>(most);
    return kKinds[1];
  }
  if (named == kKinds[2]) {
    if (!rest.empty()) return Wrong(part, "has no number");
    spec.adds_server = true;
    return kKinds[2];
  }
  for (const Option& option : kOptions) {
    if (named != option.name) continue;
    if (rest.empty() || rest[0] != '=') {
      return Wrong(part, absl::StrCat("must be written ", name, "=N"));
    }
    SYNCLINE_ASSIGN_OR_RETURN(
        const double value,
        Number(part, absl::StripAsciiWhitespace(rest.substr(1)), option));
    Set(option, value, spec);
    return option.name;
  }
  return Unknown(part, name);
}

}  // namespace

std::string_view AnswerName(AnswerKind kind) { return kKinds[static_cast<size_t>(kind)]; }

absl::StatusOr<AnswerSpec> ParseAnswers(std::string_view specification) {
  const absl::string_view all(specification.data(), specification.size());
  if (all.size() > kMaxAnswersBytes) {
    return absl::InvalidArgumentError(absl::StrCat("answers have ", all.size(),
                                                   " bytes, at most ", kMaxAnswersBytes,
                                                   " are allowed"));
  }
  AnswerSpec spec;
  const absl::string_view stripped = absl::StripAsciiWhitespace(all);
  if (stripped.empty() || stripped == "none") return spec;
  std::set<std::string_view> seen;
  for (const absl::string_view one : absl::StrSplit(stripped, ',')) {
    const absl::string_view part = absl::StripAsciiWhitespace(one);
    SYNCLINE_ASSIGN_OR_RETURN(const std::string_view name, ParsePart(part, spec));
    if (!seen.insert(name).second) return Wrong(part, "is given twice");
  }
  if (spec.empty()) {
    return Wrong(stripped, absl::StrCat("names no answer; there are ", kWhatThereIs));
  }
  for (const Option& option : kOptions) {
    if (spec.excludes || !option.is_of_exclusion || !seen.contains(option.name)) continue;
    return Wrong(std::string(option.name),
                 "belongs to exclude_straggler, which is not given");
  }
  return spec;
}

std::string CanonicalAnswers(std::string_view specification) {
  const absl::StatusOr<AnswerSpec> spec = ParseAnswers(specification);
  if (!spec.ok()) return std::string(specification);
  if (spec->empty()) return "none";
  std::vector<std::string> kinds;
  if (spec->excludes) kinds.emplace_back(kKinds[0]);
  if (spec->staleness > 0) kinds.push_back(absl::StrCat("staleness<=", spec->staleness));
  if (spec->adds_server) kinds.emplace_back(kKinds[2]);
  std::string written = absl::StrJoin(kinds, ",");
  for (const Option& option : kOptions) {
    const double value = Get(option, *spec);
    if (value == Get(option, {})) continue;
    absl::StrAppendFormat(&written, ",%s=%.10g", std::string(option.name), value);
  }
  return written;
}

}  // namespace syncline
