#include "comm/job/total_steps.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/base/printable.h"

namespace syncline {

absl::StatusOr<uint64_t> ParseTotalSteps(std::string_view text) {
  if (text == "none") return 0;
  uint64_t steps = 0;
  if (absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &steps) &&
      steps >= 1 && steps <= kMostTotalSteps) {
    return steps;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "total_steps is '", Printable(text), "', allowed are whole numbers from 1 to ",
      kMostTotalSteps, ", and none"));
}

std::string CanonicalTotalSteps(std::string_view) { return "none"; }

}  // namespace syncline
