#include "worker/client/checkpoint_every.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

constexpr absl::Duration kShortest = absl::Seconds(1);

struct Unit {
  std::string_view name;
  absl::Duration length;  // zero: steps
};
constexpr Unit kUnits[] = {
    {"step", absl::ZeroDuration()}, {"steps", absl::ZeroDuration()},
    {"s", absl::Seconds(1)},        {"m", absl::Minutes(1)},
    {"min", absl::Minutes(1)},      {"h", absl::Hours(1)}};

}  // namespace

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
    if (one.length == absl::ZeroDuration()) {
      every.steps = count;
    } else {
      every.time = one.length * static_cast<int64_t>(count);
    }
    if (every.steps > 0 || every.time >= kShortest) return every;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", Printable(text),
      "' does not say when to save; write a whole number and a unit, such as "
      "'500 steps', '10 min', '30 s' or '1 h'"));
}

}  // namespace syncline
