#include "cli/update.h"

#include <iostream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/flags.h"
#include "cli/local_runs.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/base/sync_mode.h"
#include "comm/job/job_settings.h"
#include "comm/rpc/coordinator_call.h"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {
namespace {

// Short, as for status, so that a wrong address shows soon. The change itself has more
// time, because it waits for the disk.
constexpr absl::Duration kConnectTimeout = absl::Seconds(3);
constexpr absl::Duration kTimeout = absl::Seconds(10);

struct UpdateOptions {
  std::string job;
  std::vector<std::string> options;
  std::string schedule;
  std::vector<std::string> schedule_options;
  std::string mode;
  std::optional<std::string> goals;
  std::optional<std::string> answers;
  std::string coordinator;
  TlsOptions tls;
};

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

template <typename Field>
void Write(const OptionValues& values, Field& field) {
  for (const auto& [name, value] : values) {
    v1::Option& option = *field.Add();
    option.set_name(name);
    option.set_value(value);
  }
}

// Returns the new value of a job setting (goals or answers), checked.
absl::StatusOr<std::optional<std::string>> SettingOf(
    std::string_view name, const std::optional<std::string>& given) {
  if (!given) return given;
  // A shell variable that is unset must not remove them.
  if (given->empty()) {
    return Usage(absl::StrCat("--", std::string(name), " is empty; write none for no ",
                              std::string(name)));
  }
  JobSettings settings;
  const absl::Status known = SetJobSetting(*FindJobSetting(name), *given, settings);
  if (!known.ok()) return Usage(std::string(known.message()));
  return given;
}

absl::StatusOr<JobChange> ChangeOf(const UpdateOptions& options) {
  if (options.job.empty()) return Usage("update needs the name of a running job");
  if (options.options.empty() && options.schedule.empty() && options.mode.empty() &&
      !options.goals && !options.answers) {
    return Usage(
        "nothing to change: give --option lr=1e-4, --schedule cosine, --mode ssp:4, "
        "--goals 'step_p95_ms<=150' or --answers 'staleness<=8'");
  }
  if (options.schedule.empty() && !options.schedule_options.empty()) {
    return Usage("--schedule-option needs --schedule: a schedule is replaced as a whole");
  }
  JobChange change = {.job = options.job};
  SYNCLINE_ASSIGN_OR_RETURN(change.optimizer, ParseOptions(options.options));
  if (!options.mode.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(change.mode, ParseModeText(options.mode));
    SYNCLINE_RETURN_IF_ERROR(ParseSyncMode(*change.mode).status());
  }
  SYNCLINE_ASSIGN_OR_RETURN(change.goals, SettingOf("goals", options.goals));
  SYNCLINE_ASSIGN_OR_RETURN(change.answers, SettingOf("answers", options.answers));
  if (options.schedule.empty()) return change;
  NamedOptions& schedule = change.schedule.emplace();
  schedule.name = options.schedule;
  SYNCLINE_ASSIGN_OR_RETURN(schedule.values, ParseOptions(options.schedule_options));
  return change;
}

absl::StatusOr<int> Update(const UpdateOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(const JobChange change, ChangeOf(options));
  SYNCLINE_ASSIGN_OR_RETURN(const JobChanged changed,
                            UpdateRunningJob(options.coordinator, options.tls, change));
  if (changed.changes.empty()) {
    std::cout << "job " << change.job
              << ": nothing changed: all options have these values already\n";
    return kExitDone;
  }
  const bool is_of_training = !change.optimizer.empty() || change.schedule || change.mode;
  std::cout << "job " << change.job << ": ";
  if (is_of_training) {
    std::cout << "the new options hold from epoch " << changed.epoch << " on\n";
  } else {
    const bool has_both = change.goals && change.answers;
    std::cout << "the new "
              << (has_both       ? "goals and answers"
                  : change.goals ? "goals"
                                 : "answers")
              << " hold from now on\n";
  }
  for (const std::string& one : changed.changes) std::cout << "  " << one << "\n";
  return kExitDone;
}

}  // namespace

absl::StatusOr<JobChanged> UpdateRunningJob(const std::string& coordinator,
                                            const TlsOptions& tls,
                                            const JobChange& change) {
  SYNCLINE_ASSIGN_OR_RETURN(
      const CoordinatorCaller caller,
      CoordinatorCaller::Connect(coordinator, tls, kConnectTimeout));
  v1::UpdateJobRequest request;
  request.set_job(change.job);
  Write(change.optimizer, *request.mutable_optimizer());
  if (change.schedule) {
    request.mutable_schedule()->set_name(change.schedule->name);
    Write(change.schedule->values, *request.mutable_schedule()->mutable_options());
  }
  if (change.mode) {
    request.mutable_mode()->set_name(change.mode->name);
    Write(change.mode->values, *request.mutable_mode()->mutable_options());
  }
  if (change.goals) request.set_goals(*change.goals);
  if (change.answers) request.set_answers(*change.answers);
  SYNCLINE_ASSIGN_OR_RETURN(
      const v1::UpdateJobReply reply,
      caller.Call(&v1::Coordinator::Stub::UpdateJob, request, kTimeout));
  return JobChanged{.epoch = reply.epoch(),
                    .changes = {reply.changes().begin(), reply.changes().end()}};
}

void AddUpdate(CLI::App& app, Command* selected) {
  auto options = std::make_shared<UpdateOptions>();
  CLI::App* update = app.add_subcommand("update", "Change options of a running job");
  update->add_option("job", options->job, "Name of the job");
  // Each flag takes one value, because the job's name may follow it.
  update
      ->add_option("--option", options->options,
                   "NAME=NUMBER of the optimizer, such as lr=1e-4; may be repeated")
      ->allow_extra_args(false);
  update->add_option("--schedule", options->schedule, "New schedule of the job");
  update
      ->add_option("--schedule-option", options->schedule_options,
                   "NAME=NUMBER of the new schedule; may be repeated")
      ->allow_extra_args(false);
  update->add_option("--mode", options->mode,
                     "ssp:N, for a job that began with mode ssp: how many steps a worker "
                     "may be ahead of the slowest, 0 to 64; bsp: ssp:0");
  update->add_option("--goals", options->goals,
                     "New goals of the job, as in syncline run; none: no goals");
  update->add_option(
      "--answers", options->answers,
      "New list of what the coordinator may do when goals are missed; none: nothing");
  AddCoordinatorFlag(*update, &options->coordinator);
  AddTlsFlags(*update, &options->tls);
  update->callback([=] { *selected = [options] { return Asking(*options, Update); }; });
}

}  // namespace syncline
