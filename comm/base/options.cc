#include "comm/base/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "comm/base/check.h"
#include "comm/base/nearest.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

const OptionSpec* FindSpec(std::span<const OptionSpec> specs, std::string_view name) {
  const auto found = std::ranges::find(specs, name, &OptionSpec::name);
  return found == specs.end() ? nullptr : &*found;
}

absl::Status Unknown(std::string_view owner, std::span<const OptionSpec> specs,
                     const std::string& name) {
  std::vector<std::string_view> names;
  std::string all;
  for (const OptionSpec& spec : specs) {
    names.push_back(spec.name);
    absl::StrAppend(&all, all.empty() ? "; it has " : ", ", std::string(spec.name));
  }
  const std::string hint = DidYouMean(name, names);
  return absl::InvalidArgumentError(absl::StrCat(std::string(owner), " has no option '",
                                                 name, "'", hint.empty() ? all : hint));
}

std::string Allowed(const OptionSpec& spec) {
  switch (spec.kind) {
    case OptionKind::kFlag:
      return "0 or 1";
    case OptionKind::kWhole:
      return absl::StrCat("a whole number in [", spec.least, ", ", spec.most, "]");
    case OptionKind::kReal:
      break;
  }
  return absl::StrCat("in [", spec.least, ", ", spec.most,
                      spec.bound == Bound::kExcluded ? ")" : "]");
}

// Returns false also for NaN.
bool IsAllowed(const OptionSpec& spec, double value) {
  if (spec.kind == OptionKind::kFlag) return value == 0 || value == 1;
  const bool fits =
      value >= spec.least &&
      (spec.bound == Bound::kExcluded ? value < spec.most : value <= spec.most);
  return fits && (spec.kind != OptionKind::kWhole || value == std::floor(value));
}

}  // namespace

absl::Status ValidateOptions(std::string_view owner, std::span<const OptionSpec> specs,
                             const OptionValues& values) {
  for (const auto& [name, value] : values) {
    const OptionSpec* spec = FindSpec(specs, name);
    if (spec == nullptr) return Unknown(owner, specs, name);
    if (!IsAllowed(*spec, value)) {
      return absl::InvalidArgumentError(absl::StrCat(std::string(owner), ": ", name,
                                                     " is ", value, ", but must be ",
                                                     Allowed(*spec)));
    }
  }
  return absl::OkStatus();
}

double OptionOr(std::span<const OptionSpec> specs, const OptionValues& values,
                std::string_view name) {
  if (const auto found = values.find(name); found != values.end()) return found->second;
  const OptionSpec* spec = FindSpec(specs, name);
  SYNCLINE_CHECK(spec != nullptr);
  return spec->standard;
}

namespace {

// Returns the error for text such as "3", "staleness" or "age_power=x".
absl::Status NoOption(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  double number = 0;
  std::string why = "it has no name; write NAME=NUMBER";
  if (equals == std::string::npos && absl::SimpleAtod(assignment, &number)) {
    why = absl::StrCat("it has no name; write NAME=", assignment);
  } else if (equals == std::string::npos && !assignment.empty()) {
    why = absl::StrCat("it has no value; write ", assignment, "=NUMBER");
  } else if (equals != std::string::npos && equals > 0) {
    why = absl::StrCat("'", assignment.substr(equals + 1), "' is not a number");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", assignment, "' is not an option: ", why));
}

}  // namespace

absl::StatusOr<OptionValues> ParseOptions(std::span<const std::string> assignments) {
  OptionValues values;
  for (const std::string& assignment : assignments) {
    const size_t equals = assignment.find('=');
    double value = 0;
    if (equals == std::string::npos || equals == 0 ||
        !absl::SimpleAtod(assignment.substr(equals + 1), &value)) {
      return NoOption(assignment);
    }
    values[assignment.substr(0, equals)] = value;
  }
  return values;
}

absl::StatusOr<OptionValues> ParseOptionList(std::string_view list) {
  if (list.empty()) return OptionValues();
  const std::vector<std::string> assignments =
      absl::StrSplit(absl::string_view(list.data(), list.size()), ',');
  return ParseOptions(assignments);
}

absl::StatusOr<NamedOptions> ParseNamedOptions(std::string_view choice) {
  const size_t colon = std::min(choice.find(':'), choice.size());
  NamedOptions named{.name = std::string(choice.substr(0, colon))};
  if (colon == choice.size()) return named;
  SYNCLINE_ASSIGN_OR_RETURN(named.values, ParseOptionList(choice.substr(colon + 1)));
  return named;
}

std::string FormatOptionList(const OptionValues& values) {
  std::string list;
  for (const auto& [name, value] : values) {
    std::array<char, 32> number = {};  // the longest double has 24 characters
    const auto end = std::to_chars(number.begin(), number.end(), value).ptr;
    if (!list.empty()) list += ',';
    list += name;
    list += '=';
    list.append(number.begin(), end);
  }
  return list;
}

std::string FormatNamedOptions(const NamedOptions& choice) {
  if (choice.values.empty()) return choice.name;
  return choice.name + ":" + FormatOptionList(choice.values);
}

OptionValues WithoutDefaults(std::span<const OptionSpec> specs,
                             const OptionValues& values) {
  OptionValues changed = values;
  std::erase_if(changed, [specs](const auto& entry) {
    const OptionSpec* spec = FindSpec(specs, entry.first);
    return spec != nullptr && spec->standard == entry.second;
  });
  return changed;
}

OptionValues Merge(const OptionValues& values, const OptionValues& changes) {
  OptionValues merged = changes;
  merged.insert(values.begin(), values.end());
  return merged;
}

}  // namespace syncline
