#include "cli/process_end.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "comm/base/exit_codes.h"

namespace syncline {
namespace {

constexpr absl::Duration kLongestPause = absl::Minutes(1);

}  // namespace

Failure FailureOfExit(int wait_status) {
  if (!WIFEXITED(wait_status)) return Failure::kNone;
  switch (WEXITSTATUS(wait_status)) {
    case kExitUsage:
      return Failure::kUsage;
    case kExitPortInUse:
      return Failure::kPortInUse;
    case kExitStateUnusable:
      return Failure::kStateUnusable;
    case kExitUnreachable:
      return Failure::kUnreachable;
    case kExitVersionMismatch:
      return Failure::kVersionMismatch;
    case kExitJobRefused:
      return Failure::kJobRefused;
    case kExitDeviceFailed:
      return Failure::kDeviceFailed;
    case kExitRetryable:
      return Failure::kRetryable;
    case kExitExcluded:
      return Failure::kExcluded;
    case kExitJobOver:
      return Failure::kJobOver;
    default:
      return Failure::kNone;
  }
}

bool Succeeded(int wait_status) {
  return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
}

Failure FailureOfWorker(int wait_status) {
  const Failure failure = FailureOfExit(wait_status);
  const bool is_of_the_job =
      failure == Failure::kRetryable || failure == Failure::kUnreachable ||
      failure == Failure::kVersionMismatch || failure == Failure::kJobRefused ||
      failure == Failure::kDeviceFailed || failure == Failure::kExcluded;
  return is_of_the_job ? failure : Failure::kNone;
}

std::string HowItFailed(int wait_status) {
  return FailureOfExit(wait_status) == Failure::kExcluded
             ? "was excluded from its job as a straggler, and is not started again,"
             : absl::StrCat("failed with ", DescribeExit(wait_status));
}

std::string SignalName(int signal) {
  if (signal == SIGINT) return "SIGINT (Ctrl-C)";
  return signal == SIGTERM ? "SIGTERM" : strsignal(signal);
}

std::string LastWords(const ProcessEvent& event) {
  for (auto line = event.tail.rbegin(); line != event.tail.rend(); ++line) {
    absl::string_view words(*line);
    if (absl::ConsumePrefix(&words, "syncline: error: "))
      return absl::StrCat(": ", words);
  }
  return "";
}

std::string LastLine(const ProcessEvent& event) {
  const auto line = std::find_if(
      event.tail.rbegin(), event.tail.rend(),
      [](const std::string& one) { return !absl::StripAsciiWhitespace(one).empty(); });
  return line == event.tail.rend() ? "" : std::string(absl::StripAsciiWhitespace(*line));
}

void FruitlessRestarts::NoteDeath(const JobSteps& steps) {
  for (const auto& [job, step] : steps) {
    uint64_t& furthest = steps_[job];
    if (step <= furthest) continue;
    furthest = step;
    count_ = 0;
  }
}

std::string FruitlessRestarts::Describe() const {
  std::vector<uint64_t> steps;
  for (const auto& [job, step] : steps_) steps.push_back(step);
  const std::string where = steps.size() < 2
                                ? absl::StrCat("the job has not got beyond step ",
                                               steps.empty() ? 0 : steps.front())
                                : absl::StrCat("its jobs have not got beyond steps ",
                                               absl::StrJoin(steps, " and "));
  return absl::StrCat("it was started again ", count_, " times, and ", where);
}

absl::Duration PauseBefore(int restart, absl::Duration unit) {
  if (restart <= 1) return absl::ZeroDuration();
  absl::Duration pause = unit;
  for (int i = 2; i < restart && pause < kLongestPause; ++i) pause *= 2;
  return std::min(pause, kLongestPause);
}

std::string DescribePause(absl::Duration pause) {
  return pause > absl::ZeroDuration()
             ? absl::StrCat("in ", absl::FormatDuration(pause), " ")
             : "";
}

}  // namespace syncline
