#include "cli/launch_answers.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "comm/base/failure.h"
#include "comm/job/answers.h"

namespace syncline {
namespace {

absl::Status Refused(absl::string_view why) {
  return WithFailure(absl::InvalidArgumentError(absl::StrCat("--answers", why)),
                     Failure::kUsage);
}

// Fails if the answer exclude_straggler would end the run or its services.
absl::Status CheckGoesOn(const RunOptions& options, const LaunchPlan& plan) {
  if (plan.min_workers >= plan.world_size) {
    return Refused(
        " exclude_straggler takes a worker out of the job, and it is not started again; "
        "give the number of workers that must stay with --min-workers");
  }
  if (IsOneNode(options.nnodes) || (plan.servers == 0 && !plan.starts_coordinator)) {
    return absl::OkStatus();
  }
  return Refused(
      " exclude_straggler: if the last worker here is excluded, this launcher ends, and "
      "so do the coordinator and servers that workers on other nodes need; start those "
      "with syncline serve, and give --coordinator and --servers 0");
}

}  // namespace

absl::StatusOr<std::string> AnswersFor(const RunOptions& options,
                                       const LaunchPlan& plan) {
  const std::string said = options.Setting("answers");
  const absl::StatusOr<AnswerSpec> answers = ParseAnswers(said);
  if (!answers.ok()) {
    absl::string_view why = answers.status().message();
    absl::ConsumePrefix(&why, "answers: ");
    return Refused(absl::StrCat(": ", why));
  }
  if (!answers->excludes) return said;
  if (const absl::Status fits = CheckGoesOn(options, plan); !fits.ok()) return fits;
  if (options.local_aggregation) {
    if (answers->min_workers > 0) return said;
    return Refused(
        " exclude_straggler with --local-aggregation needs min_workers=N, the number of "
        "hosts that must stay: there a host counts as one worker");
  }
  const auto least = static_cast<uint32_t>(plan.min_workers);
  if (answers->min_workers >= least) return said;
  if (answers->min_workers > 0) {
    return Refused(absl::StrCat(": min_workers=", answers->min_workers,
                                " is less than --min-workers ", least,
                                ", without which the run ends"));
  }
  std::string told = absl::StrCat(said, ",min_workers=", least);
  if (told.size() <= kMaxAnswersBytes) return told;
  return Refused(absl::StrCat(
      " has ", said.size(), " bytes, and with min_workers=", least, " more than the ",
      kMaxAnswersBytes, " that are allowed; leave out blanks and zeros"));
}

}  // namespace syncline
