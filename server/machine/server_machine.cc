#include "server/machine/server_machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

ShardDecision DecisionForShards(const StepDecision& decision) {
  return {.step = decision.step,
          .gradient_scale = decision.decision.gradient_scale,
          .verdict = decision.decision.skip ? ShardDecision::Verdict::kSkip
                                            : ShardDecision::Verdict::kApply,
          .loss_scale = decision.decision.loss_scale,
          .figures = decision.decision.figures};
}

ShardCut::Kind KindOf(const CutAt& cut) {
  if (cut.again) return ShardCut::Kind::kLastAgain;
  return cut.last ? ShardCut::Kind::kLast : ShardCut::Kind::kCopy;
}

}  // namespace

ServerMachine::ServerMachine(ServerMachineOptions options)
    : options_(std::move(options)) {}

ServerMachine::Job* ServerMachine::Find(uint32_t job) {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

ServerMachine::Engines ServerMachine::AllEngines() const {
  Engines all;
  for (uint32_t i = 0; i < options_.engines; ++i) all.insert(i);
  return all;
}

bool ServerMachine::WasLast(Engines& waiting, uint32_t engine) {
  return waiting.erase(engine) > 0 && waiting.empty();
}

// ---- The link ----

ServerOutputs ServerMachine::Apply(const CoordinatorBody& said) {
  ServerOutputs outputs;
  std::visit([&](const auto& message) { On(message, outputs); }, said);
  return outputs;
}

ServerOutputs ServerMachine::Apply(const LinkLost& /*lost*/) {
  identity_.reset();
  jobs_.clear();
  return {DropAllShards{}};
}

void ServerMachine::On(const ServerWelcome& welcome, ServerOutputs& outputs) {
  identity_ = {welcome.server, welcome.incarnation};
  outputs.emplace_back(Attached{*identity_});
  // A restarted coordinator has not heard it.
  if (drains_ && !has_drained_) outputs.push_back(Say{Drain{}});
}

std::vector<HeldJob> ServerMachine::Held() const {
  std::vector<HeldJob> held;
  for (const auto& [id, job] : jobs_) held.push_back(job.memory.Describe(id));
  return held;
}

std::vector<MemberBody> ServerMachine::Unanswered() const {
  std::vector<MemberBody> all;
  for (const auto& [id, job] : jobs_) {
    for (BlockFigures& figures : job.memory.undecided()) {
      all.emplace_back(std::move(figures));
    }
    for (StepHeld& held : job.memory.unclosed()) all.emplace_back(std::move(held));
  }
  for (const auto& [id, job] : jobs_) {
    if (job.journal_lost) all.emplace_back(JournalLost{id, *job.journal_lost});
    if (job.whole_generation > 0) {
      all.emplace_back(JournalWhole{id, job.whole_generation});
    }
  }
  return all;
}

std::optional<MemberBody> ServerMachine::Report(const DrainAsked& asked) {
  drains_ = true;
  const bool has_backups =
      asked.stand_ins > 0 || std::ranges::any_of(jobs_, [](const auto& entry) {
        return entry.second.has_had_backup;
      });
  has_drained_ = !has_backups || !identity_;
  if (has_drained_) return std::nullopt;
  return Drain{};
}

void ServerMachine::On(const Drained& /*drained*/, ServerOutputs& /*outputs*/) {
  has_drained_ = true;
}

void ServerMachine::On(const EndServer& /*end*/, ServerOutputs& outputs) {
  outputs.emplace_back(EndProcess{});
}

// ---- Jobs that come and go ----

void ServerMachine::On(const ConfigureJob& configure, ServerOutputs& outputs) {
  outputs = Apply(JobOrder{.job = configure.job,
                           .first_shard = configure.first_shard,
                           .holds_backup = configure.backup.has_value()});
}

ServerOutputs ServerMachine::Apply(const JobOrder& order) {
  jobs_[order.job] = {.first_shard = order.first_shard, .order = ++orders_};
  return {BuildShards{order.job, orders_, order.holds_backup}};
}

ServerOutputs ServerMachine::Apply(const ShardsBuilt& built) {
  Job* const job = Find(built.job);
  if (job == nullptr || job->order != built.order) return {};
  if (!built.status.ok()) {
    jobs_.erase(built.job);
    return {Say{ConfigureFailed{built.job, built.status}}};
  }
  job->has_shards = true;
  ServerOutputs outputs = {Say{JobConfigured{built.job, built.step}}};
  if (job->lacks_backup) outputs.emplace_back(StopRecords{built.job, job->why_gone});
  return outputs;
}

void ServerMachine::On(const DropJob& drop, ServerOutputs& outputs) {
  jobs_.erase(drop.job);
  outputs.emplace_back(DropShards{drop.job, drop.reason});
  if (options_.is_stand_in) outputs.emplace_back(EndNode{"its job is over"});
}

// ---- Epochs ----

void ServerMachine::On(const PrepareEpoch& prepare, ServerOutputs& outputs) {
  Job* const job = Find(prepare.job);
  if (job == nullptr) return;
  job->memory.Prepare(prepare.epoch);
  job->prepared_epoch = prepare.epoch;
  job->preparing = AllEngines();
  job->next_step = 0;
  outputs.push_back(ToShards{prepare.job, ShardPrepare{prepare.epoch}});
}

void ServerMachine::On(const CommitEpoch& commit, ServerOutputs& outputs) {
  Job* const job = Find(commit.job);
  if (job == nullptr) return;
  job->committed_epoch = commit.epoch;
  job->committing = AllEngines();
  ShardCommit input{.epoch = commit.epoch,
                    .training = commit.training,
                    .training_from = commit.training_from};
  for (const MemberRecord& member : commit.members) {
    input.members.push_back(
        {member.rank, member.incarnation, member.first_step, member.session_key});
  }
  // AdmitMembers names the journal, which must have begun. The new members may connect
  // before the shards know them.
  BeginLaterJournal(commit.job, *job, outputs);
  outputs.push_back(
      AdmitMembers{commit.job, commit.epoch, commit.members, commit.reason});
  outputs.push_back(ToShards{commit.job, std::move(input)});
}

// ---- Steps ----

void ServerMachine::On(const StepDecision& decision, ServerOutputs& outputs) {
  Job* const job = Find(decision.job);
  if (job == nullptr) return;
  job->memory.Decide(decision);
  outputs.push_back(ToShards{decision.job, DecisionForShards(decision)});
}

void ServerMachine::On(const StepClosed& closed, ServerOutputs& outputs) {
  Job* const job = Find(closed.job);
  if (job == nullptr) return;
  job->memory.Close(closed);
  outputs.push_back(ToShards{closed.job, ShardClosed{closed.step, closed.incarnations}});
}

std::optional<MemberBody> ServerMachine::Report(const EngineOutput& report) {
  Job* const job = Find(report.job);
  if (job == nullptr) return std::nullopt;
  if (const auto* figures = std::get_if<ShardFigures>(&report.output)) {
    BlockFigures said = {report.job, figures->block, figures->step, figures->figures};
    job->memory.Report(said);
    return said;
  }
  if (const auto* held = std::get_if<ShardHeld>(&report.output)) {
    StepHeld said = {report.job, job->first_shard + report.engine, held->step,
                     held->incarnations};
    job->memory.Hold(said);
    return said;
  }
  if (const auto* prepared = std::get_if<ShardPrepared>(&report.output)) {
    if (prepared->epoch != job->prepared_epoch) return std::nullopt;
    job->next_step = std::max(job->next_step, prepared->next_step);
    if (!WasLast(job->preparing, report.engine)) return std::nullopt;
    return EpochPrepared{report.job, prepared->epoch, job->next_step};
  }
  if (const auto* committed = std::get_if<ShardCommitted>(&report.output)) {
    if (committed->epoch != job->committed_epoch) return std::nullopt;
    if (!WasLast(job->committing, report.engine)) return std::nullopt;
    job->memory.Commit(committed->epoch);
    return EpochCommitted{report.job, committed->epoch, report.run};
  }
  return std::nullopt;
}

// ---- Checkpoints ----

void ServerMachine::On(const CutAt& cut, ServerOutputs& outputs) {
  Job* const job = Find(cut.job);
  if (job == nullptr) return;
  job->memory.Cut(cut.step);
  if (!options_.has_checkpoint_store) {
    outputs.push_back(Say{CheckpointWritten{
        .job = cut.job,
        .step = cut.step,
        .status = absl::FailedPreconditionError(absl::StrCat(
            "server ", options_.name, " was started without --checkpoint-dir"))}});
    return;
  }
  if (cut.again) outputs.push_back(BeginLastCut{cut.job, cut.step});
  outputs.push_back(ToShards{cut.job, ShardCut{.step = cut.step, .kind = KindOf(cut)}});
}

std::optional<MemberBody> ServerMachine::Report(CheckpointWritten written) {
  Job* const job = Find(written.job);
  if (job == nullptr) return std::nullopt;
  job->memory.Cut(written.step);
  return written;
}

// ---- Backups ----

void ServerMachine::On(const HoldBackup& hold, ServerOutputs& outputs) {
  outputs.push_back(StartStandIn{hold});
}

void ServerMachine::On(const BackupAt& at, ServerOutputs& outputs) {
  Job* const job = Find(at.job);
  if (job == nullptr) return;
  const uint64_t key = at.pair.session_key;
  job->backups[key] = {.filling = at.with_state ? AllEngines() : Engines()};
  if (at.addresses.size() != options_.engines) {
    auto said =
        Report(BackupFailed{at.job, key, "it has a different number of engine threads"});
    if (said) outputs.push_back(Say{*std::move(said)});
    return;
  }
  job->has_had_backup = true;
  outputs.push_back(SendRecords{at});
}

std::optional<MemberBody> ServerMachine::Report(const BackupFilled& filled) {
  Job* const job = Find(filled.job);
  if (job == nullptr) return std::nullopt;
  const auto backup = job->backups.find(filled.session_key);
  if (backup == job->backups.end()) return std::nullopt;
  if (!WasLast(backup->second.filling, filled.engine)) return std::nullopt;
  job->lacks_backup = false;
  return BackedUp{filled.job, filled.session_key};
}

// A server then waits for BackupGone, and a stand-in for its end. Only the coordinator
// knows whether the loss matters: the job may be over.
std::optional<MemberBody> ServerMachine::Report(const BackupFailed& failed) {
  Job* const job = Find(failed.job);
  if (job == nullptr) return std::nullopt;
  bool* reports = &job->reports_failure;
  if (failed.session_key != 0) {
    const auto backup = job->backups.find(failed.session_key);
    // An engine may report the loss of a backup that has been replaced since then.
    if (backup == job->backups.end()) return std::nullopt;
    reports = &backup->second.reports_loss;
  }
  if (!std::exchange(*reports, false)) return std::nullopt;
  return BackupLost{failed.job, failed.why, failed.session_key};
}

void ServerMachine::On(const BackupGone& gone, ServerOutputs& outputs) {
  Job* const job = Find(gone.job);
  if (job == nullptr) return;
  const uint64_t key = gone.session_key;
  // It was replaced by another one, which stays.
  if (key != 0 && !job->backups.empty() && !job->backups.contains(key)) return;
  if (key == 0) job->backups.clear();
  job->backups.erase(key);
  job->lacks_backup = std::ranges::none_of(
      job->backups, [](const auto& entry) { return entry.second.filling.empty(); });
  job->why_gone = gone.reason;
  // Shards that are still being built stop when they are there.
  if (!job->has_shards) return;
  outputs.push_back(StopRecords{gone.job, gone.reason, job->backups.empty() ? 0 : key});
}

void ServerMachine::ExpectBackup(uint32_t id) {
  if (Job* const job = Find(id)) job->has_had_backup = true;
}

bool ServerMachine::HasBackup(uint32_t id) const {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return false;
  const Job& job = found->second;
  const bool is_whole =
      job.backups.empty() || std::ranges::any_of(job.backups, [](const auto& entry) {
        return entry.second.filling.empty();
      });
  return job.has_had_backup && !job.lacks_backup && is_whole;
}

void ServerMachine::On(const TakeOver& take, ServerOutputs& outputs) {
  Job* const job = Find(take.job);
  if (job == nullptr) return;
  job->reports_failure = false;
  // The run has no name before the first epoch was committed.
  if (take.generation > 0) {
    job->later_journal = BeginJournal{take.job, take.run, take.generation};
  }
  job->order = ++orders_;
  job->has_shards = false;  // no engine has them yet
  outputs.push_back(FinishBackup{take.job, job->order});
}

// ---- Journals beside backups ----

// By the first commit the coordinator has stored the take-over. A stand-in of which nobody
// knows must write nothing.
void ServerMachine::BeginLaterJournal(uint32_t id, Job& job, ServerOutputs& outputs) {
  if (!job.later_journal) return;
  if (options_.has_journal_directory) {
    outputs.emplace_back(*std::exchange(job.later_journal, std::nullopt));
    return;
  }
  job.later_journal.reset();
  job.journal_lost = absl::StrCat("server ", options_.name,
                                  " has no place for one; start it with --journal-dir");
  outputs.push_back(Say{JournalLost{id, *job.journal_lost}});
}

std::optional<MemberBody> ServerMachine::Report(const JournalFailed& failed) {
  Job* const job = Find(failed.job);
  if (job == nullptr || job->journal_endings >= failed.endings) return std::nullopt;
  job->journal_endings = failed.endings;
  job->journal_lost = failed.why;
  job->whole_generation = 0;
  return JournalLost{failed.job, failed.why};
}

void ServerMachine::On(const JournalGone& gone, ServerOutputs& outputs) {
  Job* const job = Find(gone.job);
  // A restarted coordinator was told twice, and answers twice. The journal may have
  // started over since the first answer.
  if (job == nullptr || !job->journal_lost) return;
  job->journal_lost.reset();
  // In this order: the engines stop waiting before the journal asks them to start over.
  outputs.push_back(LoseJournal{gone.job});
  outputs.push_back(AllowJournal{gone.job, gone.generation});
}

std::optional<MemberBody> ServerMachine::Report(const JournalCompleted& completed) {
  Job* const job = Find(completed.job);
  if (job == nullptr || job->journal_lost) return std::nullopt;
  job->whole_generation = completed.generation;
  return JournalWhole{completed.job, completed.generation};
}

// ---- Messages for workers ----

void ServerMachine::On(const Waiting& /*waiting*/, ServerOutputs& outputs) {
  outputs.push_back(Misdirected{"waiting"});
}

void ServerMachine::On(const WorkerWelcome& /*welcome*/, ServerOutputs& outputs) {
  outputs.push_back(Misdirected{"worker_welcome"});
}

void ServerMachine::On(const EpochChanged& /*changed*/, ServerOutputs& outputs) {
  outputs.push_back(Misdirected{"epoch_changed"});
}

void ServerMachine::On(const BarrierReleased& /*released*/, ServerOutputs& outputs) {
  outputs.push_back(Misdirected{"barrier_released"});
}

void ServerMachine::On(const JobFailed& /*failed*/, ServerOutputs& outputs) {
  outputs.push_back(Misdirected{"job_failed"});
}

void ServerMachine::On(const DescribeJob& /*describe*/, ServerOutputs& outputs) {
  outputs.push_back(Misdirected{"describe_job"});
}

void ServerMachine::On(const SlowestWorker& /*slowest*/, ServerOutputs& outputs) {
  outputs.push_back(Misdirected{"slowest_worker"});
}

}  // namespace syncline
