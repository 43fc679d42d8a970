#include "comm/job/checkpoint_every.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

constexpr uint64_t kMaxStepsBetweenCheckpoints = uint64_t{1} << 40;

// A double represents all whole numbers up to this one.
constexpr double kMaxWholeSeconds = 9e15;

struct Unit {
  std::string_view name;
  uint64_t seconds;  // 0: steps
};
// Of units with the same length, the one that is written comes first.
constexpr Unit kUnits[] = {{"steps", 0}, {"step", 0}, {"h", 3600},
                           {"min", 60},  {"m", 60},   {"s", 1}};

}  // namespace

bool CheckpointEvery::IsInRange() const {
  return seconds >= 0 && steps <= kMaxStepsBetweenCheckpoints;
}

absl::StatusOr<CheckpointEvery> ParseCheckpointEvery(std::string_view text) {
  CheckpointEvery every;
  if (text.empty()) return every;
  const size_t end = text.find_first_not_of("0123456789");
  const std::string digits(text.substr(0, end));
  std::string unit(end == std::string_view::npos ? "" : text.substr(end));
  absl::StripAsciiWhitespace(&unit);
  uint64_t count = 0;
  const bool is_number = absl::SimpleAtoi(digits, &count) && count > 0;
  for (const Unit& one : kUnits) {
    if (!is_number || one.name != unit) continue;
    if (one.seconds == 0) {
      every.steps = count;
    } else {
      every.seconds = static_cast<double>(one.seconds) * static_cast<double>(count);
    }
    return every;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", Printable(text),
      "' does not say when to save; write a whole number and a unit, such as "
      "'500 steps', '10 min', '30 s' or '1 h'"));
}

std::string FormatCheckpointEvery(const CheckpointEvery& every) {
  if (!every.IsScheduled()) return "";
  if (every.steps > 0) return absl::StrCat(every.steps, " steps");
  const auto whole = every.seconds < kMaxWholeSeconds
                         ? static_cast<uint64_t>(every.seconds)
                         : uint64_t{0};
  for (const Unit& unit : kUnits) {
    const bool fits = unit.seconds > 0 && whole > 0 && whole % unit.seconds == 0 &&
                      static_cast<double>(whole) == every.seconds;
    if (fits) return absl::StrCat(whole / unit.seconds, " ", std::string(unit.name));
  }
  return absl::StrCat(every.seconds, " s");
}

}  // namespace syncline
