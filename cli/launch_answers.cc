#include "cli/launch_answers.h"

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/job/answers.h"

namespace syncline {

absl::StatusOr<std::string> AnswersFor(const RunOptions& options,
                                       const LaunchPlan& plan) {
  const std::string said = options.Setting("answers");
  SYNCLINE_ASSIGN_OR_RETURN(const AnswerSpec answers, ParseAnswers(said));
  if (!answers.excludes) return said;
  const bool may_lack_some = plan.min_workers < plan.world_size;
  if (!may_lack_some && options.max_restarts == 0) {
    return WithFailure(
        absl::InvalidArgumentError(
            "--answers exclude_straggler takes a worker out of the job, and the run "
            "would "
            "be stopped without it; say with --min-workers how many are to stay, or with "
            "--max-restarts that it is started again, to join later"),
        Failure::kUsage);
  }
  // With local aggregation members are hosts.
  if (!may_lack_some || answers.min_workers > 0 || options.local_aggregation) return said;
  return absl::StrCat(said, ",min_workers=", plan.min_workers);
}

}  // namespace syncline
