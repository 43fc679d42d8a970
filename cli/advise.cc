#include "cli/advise.h"

#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/flags.h"
#include "cli/job_choice.h"
#include "cli/local_runs.h"
#include "comm/base/env.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/status_json.h"
#include "server/admin/advisor.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(3);
// The first step of an epoch does not count, so one look at the beginning is too few.
constexpr absl::Duration kLookEvery = absl::Seconds(1);

struct AdviseFlags {
  std::string job;
  std::string coordinator;
  std::string watch = "10s";
  OutputFormat format = OutputFormat::kTable;
  TlsOptions tls;
};

absl::StatusOr<int> ShowAdvice(const AdviseFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(const absl::Duration watch,
                            ParseDurationFlag("--watch", flags.watch));
  if (watch < absl::Seconds(1) || watch > absl::Hours(1)) {
    return WithFailure(absl::InvalidArgumentError(absl::StrCat(
                           "--watch is ", flags.watch, ", but must be in [1s, 1h]")),
                       Failure::kUsage);
  }
  const SteadyClock clock;
  Advisor advisor(watch);
  const absl::Duration end = clock.Now() + watch;
  for (absl::Duration left = watch; left >= absl::ZeroDuration();) {
    SYNCLINE_ASSIGN_OR_RETURN(const std::string status,
                              FetchStatusJson(flags.coordinator, flags.tls, kTimeout));
    SYNCLINE_RETURN_IF_ERROR(advisor.Add(status, clock.Now()));
    // A job that is not listed is not worth watching.
    const absl::Status found = advisor.FiguresOf(flags.job).status();
    if (absl::IsNotFound(found)) {
      SYNCLINE_RETURN_IF_ERROR(
          StatusOfJob(status, flags.job, JobsStartedWith(flags.coordinator)).status());
      return found;
    }
    left = end - clock.Now();
    absl::SleepFor(std::clamp(left, absl::ZeroDuration(), kLookEvery));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const JobFigures figures, advisor.FiguresOf(flags.job));
  if (flags.format == OutputFormat::kTable) {
    std::cout << AdviceAsText(flags.job, figures) << std::flush;
  } else {
    std::cout << AdviceAsJson(figures) << std::endl;
  }
  return kExitDone;
}

}  // namespace

void AddAdvise(CLI::App& app, Command* selected) {
  auto flags = std::make_shared<AdviseFlags>();
  CLI::App* advise = app.add_subcommand(
      "advise",
      "Show what limits a running job, what to change, and how much that would save");
  advise->add_option("job", flags->job, "The job's name")->required();
  AddCoordinatorFlag(*advise, &flags->coordinator);
  advise->add_option("--watch", flags->watch, "How long to observe its steps")
      ->capture_default_str();
  AddOutputFlag(*advise, &flags->format);
  AddTlsFlags(*advise, &flags->tls);
  advise->callback([=] { *selected = [flags] { return Asking(*flags, ShowAdvice); }; });
}

}  // namespace syncline
