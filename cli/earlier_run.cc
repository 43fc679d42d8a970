#include "cli/earlier_run.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/replay.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/job/durability.h"
#include "server/journal/run.h"

namespace syncline {
namespace {

bool BeginsWithTheLatest(const RunOptions& options) {
  const std::string resume = options.Setting("resume");
  return resume.empty() || resume == "auto" || resume == "latest";
}

// Returns nullopt if there is no run whose steps would be lost.
absl::StatusOr<std::optional<JournalRun>> FindUnsettled(const RunOptions& options) {
  absl::StatusOr<JournalRun> run = FindRun({options.journal_dir}, options.job);
  if (absl::IsNotFound(run.status())) return std::nullopt;
  SYNCLINE_RETURN_IF_ERROR(run.status());
  if (IsSettled(*run)) return std::nullopt;
  SYNCLINE_ASSIGN_OR_RETURN(const bool has_records, HasRecords(*run));
  if (!has_records) return std::nullopt;
  return *std::move(run);
}

absl::Status Refused(const RunOptions& options, const JournalRun& run,
                     const absl::Status& why) {
  return WithFailure(
      absl::FailedPreconditionError(absl::StrCat(
          "a run of job '", Printable(options.job), "' in ", options.journal_dir, " (",
          Printable(run.Describe()),
          ") has steps that no checkpoint has, and cannot be continued: ",
          std::string(why.message()),
          "; see syncline replay --help; --resume never starts over, and --resume NAME "
          "with that checkpoint")),
      Failure::kStateUnusable);
}

}  // namespace

absl::Status GoOnFromJournal(const RunOptions& options,
                             const std::function<void(const std::string&)>& say) {
  if (options.journal_dir.empty() ||
      ParseDurability(options.Setting("durability")) == Durability::kNone ||
      !BeginsWithTheLatest(options)) {
    return absl::OkStatus();
  }
  SYNCLINE_ASSIGN_OR_RETURN(const auto found, FindUnsettled(options));
  if (!found) return absl::OkStatus();
  const JournalRun& run = *found;
  const auto locks = LockRun(run);
  if (!locks.ok()) return Refused(options, run, locks.status());
  const auto leads_to_a_step = LeadsToAStep(run);
  if (!leads_to_a_step.ok()) return Refused(options, run, leads_to_a_step.status());
  if (!*leads_to_a_step) {
    return Settle(run, "mode asp: there is no step to continue from");
  }
  if (options.checkpoint_dir.empty()) {
    return WithFailure(absl::InvalidArgumentError(absl::StrCat(
                           "a run of job '", Printable(options.job), "' in ",
                           options.journal_dir, " (", Printable(run.Describe()),
                           ") did not finish: with --checkpoint-dir DIR this command "
                           "goes on from its last step; --resume never starts over")),
                       Failure::kUsage);
  }
  say(absl::StrCat("job ", options.job, ": checking whether run ", run.Describe(),
                   ", has steps that no checkpoint has"));
  const auto done = ReplayToCheckpoint(run, options.checkpoint_dir);
  if (absl::IsAlreadyExists(done.status())) {
    return Settle(run, std::string(done.status().message()));
  }
  if (!done.ok()) return Refused(options, run, done.status());
  const std::string name = done->name.ToString();
  for (const std::string& torn : done->torn) say(torn);
  say(absl::StrCat("job ", options.job, ": goes on from step ", done->name.step,
                   ", the last that the journal has; it is checkpoint ", name, " in ",
                   options.checkpoint_dir));
  return Settle(run, absl::StrCat("checkpoint ", name, " has its last step"));
}

absl::Status SettleJournal(const RunOptions& options) {
  // With a --checkpoint-dir, the next run checks whether the last step was saved, and
  // saves it otherwise.
  if (options.journal_dir.empty() || !options.checkpoint_dir.empty()) {
    return absl::OkStatus();
  }
  SYNCLINE_ASSIGN_OR_RETURN(const auto found, FindUnsettled(options));
  return found ? Settle(*found, "the job finished") : absl::OkStatus();
}

}  // namespace syncline
