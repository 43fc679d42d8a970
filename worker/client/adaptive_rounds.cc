#include "worker/client/adaptive_rounds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/options.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr std::string_view kName = "adaptive";
constexpr double kMostSteps = 1e6;
// A first round of this part of `most` measures a worker without making the others wait
// for long.
constexpr uint64_t kFirstPart = 4;
// Times that FP32 holds with room for weights.
constexpr double kLeastSeconds = 1e-9;
constexpr double kMostSeconds = 1e9;

constexpr std::array kOptions = {
    OptionSpec{.name = "most",
               .standard = 100,
               .least = 1,
               .most = kMostSteps,
               .kind = OptionKind::kWhole,
               .meaning = "steps of a round of the fastest worker"},
    OptionSpec{.name = "least",
               .standard = 1,
               .least = 1,
               .most = kMostSteps,
               .kind = OptionKind::kWhole,
               .meaning = "steps of a round of any worker, however slow"}};

absl::Status Malformed(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "adaptive rounds '", Printable(text), "': ", std::string(why),
      "; such as adaptive:100, or adaptive:most=100,least=10: rounds of 100 steps for "
      "the fastest worker, and of 10 at least for every other one"));
}

// The time of a step that the two numbers of a slot mean; nothing if they mean none.
std::optional<double> SecondsOf(std::span<const float> mean, size_t slot) {
  const double seconds = mean[slot];
  const double share = mean[AdaptiveRounds::kSlots + slot];
  const double quotient = seconds / share;
  if (!(seconds > 0) || !(share > 0) || !std::isfinite(quotient)) return std::nullopt;
  return quotient;
}

}  // namespace

absl::StatusOr<RoundBounds> ParseAdaptiveRounds(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  if (text.substr(0, colon) != kName) {
    return Malformed(text, "only 'adaptive' is known");
  }
  const std::string rest(text.substr(std::min(colon + 1, text.size())));
  OptionValues values;
  double most = 0;
  if (absl::SimpleAtod(rest, &most)) {
    values["most"] = most;
  } else {
    absl::StatusOr<OptionValues> parsed = ParseOptionList(rest);
    if (!parsed.ok()) return Malformed(text, std::string(parsed.status().message()));
    values = *std::move(parsed);
  }
  if (!values.contains("most")) return Malformed(text, "it lacks the number of steps");
  const absl::Status valid = ValidateOptions("adaptive rounds", kOptions, values);
  if (!valid.ok()) return Malformed(text, std::string(valid.message()));
  const RoundBounds bounds = {
      .most = static_cast<uint64_t>(OptionOr(kOptions, values, "most")),
      .least = static_cast<uint64_t>(OptionOr(kOptions, values, "least"))};
  if (bounds.least > bounds.most) return Malformed(text, "least is more than most");
  return bounds;
}

uint64_t AdaptiveRounds::steps() const {
  if (step_seconds_ == 0 || !fastest_.has_value()) {
    return std::max(bounds_.least, (bounds_.most + kFirstPart - 1) / kFirstPart);
  }
  const double own = own_.value_or(step_seconds_);
  const double fastest = std::min(*fastest_, own);
  const double steps = std::round(static_cast<double>(bounds_.most) * (fastest / own));
  return std::clamp(static_cast<uint64_t>(steps), bounds_.least, bounds_.most);
}

absl::Status AdaptiveRounds::Note(uint64_t steps, double seconds) {
  if (steps == 0 || !(seconds > 0) || !std::isfinite(seconds)) {
    return absl::InvalidArgumentError(
        absl::StrCat(steps, " steps in ", seconds,
                     " s: a measured round has at least one step and takes some time"));
  }
  const double measured =
      std::clamp(seconds / static_cast<double>(steps), kLeastSeconds, kMostSeconds);
  step_seconds_ = step_seconds_ == 0 ? measured : (step_seconds_ + measured) / 2;
  return absl::OkStatus();
}

void AdaptiveRounds::Write(uint32_t rank, std::span<float> pushed) const {
  SYNCLINE_CHECK(pushed.size() == kElements);
  std::ranges::fill(pushed, 0.0f);
  if (step_seconds_ == 0) return;
  pushed[rank % kSlots] = static_cast<float>(step_seconds_);
  pushed[kSlots + rank % kSlots] = 1;
}

// The own time is read back as well if it counted: it has been rounded as the others
// have, so the fastest worker's quotient is exactly 1.
void AdaptiveRounds::Read(uint32_t rank, std::span<const float> mean) {
  SYNCLINE_CHECK(mean.size() == kElements);
  fastest_.reset();
  for (size_t slot = 0; slot < kSlots; ++slot) {
    const std::optional<double> seconds = SecondsOf(mean, slot);
    if (!seconds.has_value()) continue;
    fastest_ = std::min(*seconds, fastest_.value_or(*seconds));
  }
  own_ = step_seconds_ == 0 ? std::nullopt : SecondsOf(mean, rank % kSlots);
}

}  // namespace syncline
