#include "tests/sim/server_process.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"

namespace syncline::sim {
namespace {

// As server/service/progress_convert.h has it.
void AddProgress(const ShardProgress& shard, JobProgress& job) {
  // One without blocks that are trained has no step.
  if (shard.trained > 0) {
    job.step = job.trained == 0 ? shard.step : std::min(job.step, shard.step);
  }
  job.trained += shard.trained;
  job.undecided += shard.undecided;
  job.unseeded += shard.unseeded;
  job.completed += shard.completed;
  for (const ShardProgress::Member& member : shard.members) {
    auto place = std::ranges::lower_bound(job.members, member.rank, {},
                                          &JobProgress::Member::rank);
    if (place == job.members.end() || place->rank != member.rank) {
      place = job.members.insert(place, {.rank = member.rank});
    }
    place->owed += member.owed;
    place->waits += member.waits;
    place->contributed += member.contributed;
    place->moved += member.moved;
  }
}

// Takes the engine out of those that are waited for.
bool WasLast(std::set<uint32_t>& waiting, uint32_t engine) {
  return waiting.erase(engine) > 0 && waiting.empty();
}

}  // namespace

ServerProcess::ServerProcess(Parts parts, std::string name)
    : parts_(std::move(parts)),
      name_(std::move(name)),
      random_(parts_.seed),
      session_key_(random_()) {
  parts_.disk.shards.resize(parts_.engines);
  for (uint32_t i = 0; i < parts_.engines; ++i) {
    engines_.push_back(std::make_unique<ServerEngine>(ServerEngine::Parts{
        .events = parts_.events,
        .network = parts_.network,
        .reference = parts_.reference,
        .traffic = parts_.traffic,
        .codecs = parts_.codecs,
        .disk = parts_.disk.shards[i],
        .seed = random_(),
        .fault = parts_.fault,
        .on_restored = parts_.on_restored,
        .on_output = [this, i](const ShardOutput& output) { OnOutput(i, output); },
        .on_backed_up = [this, i] { OnBackedUp(i); },
        .on_backup_lost = [this](const std::string& why) { SayLost(why); },
        .on_snapshot = parts_.on_snapshot,
        .on_pruned = parts_.on_pruned,
        .on_whole =
            [this, i] {
              without_journal_.erase(i);
              if (WasLast(begins_journal_, i)) OnWhole();
            },
        .on_lost_sync = parts_.on_lost_sync,
        .on_journal_ended = [this] { OnJournalEnded(); }}));
  }
  Attach();
  parts_.control.Send(connection_, MakeHello());
  Beat();
}

void ServerProcess::Attach() {
  connection_ = parts_.control.Attach(
      {.on_message = [this](const CoordinatorBody& body) { OnControl(body); },
       // The one before it is still taken for alive.
       .on_end =
           [this](const absl::Status&) {
             if (parts_.stand_in) return EndStandIn();
             SYNCLINE_CHECK(!identity_);
             After(parts_.heartbeat_interval, [this] { OnLost(); });
           },
       .on_lost = [this] { OnLost(); }});
}

void ServerProcess::After(absl::Duration delay, std::function<void()> fn) {
  parts_.events.After(delay, [alive = alive_, fn = std::move(fn)] {
    if (*alive) fn();
  });
}

void ServerProcess::Kill() {
  *alive_ = false;
  parts_.control.Break(connection_);
  for (const auto& engine : engines_) engine->Kill();
}

void ServerProcess::EndJournal() {
  if (!configured_ || !without_journal_.empty()) return;
  without_journal_ = AllEngines();
  for (const auto& engine : engines_) engine->EndJournal();
}

void ServerProcess::BeginJournalAnew() {
  if (!configured_) return;
  for (const auto& engine : engines_) engine->BeginJournalAnew();
}

void ServerProcess::FailSyncs() {
  for (const auto& engine : engines_) engine->FailSync();
}

bool ServerProcess::HasSynced() const {
  return without_journal_.empty() &&
         std::ranges::any_of(parts_.disk.shards,
                             [](const ShardDisk& disk) { return disk.synced > 0; });
}

ServerEngine* ServerProcess::EngineOf(uint32_t block) const {
  for (const auto& engine : engines_) {
    if (engine->Owns(block)) return engine.get();
  }
  return nullptr;
}

std::span<const float> ServerProcess::block_weights(uint32_t block) const {
  return EngineOf(block)->shard().block_weights(block);
}

std::vector<std::string> ServerProcess::addresses() const {
  std::vector<std::string> addresses;
  for (const auto& engine : engines_) addresses.push_back(engine->address());
  return addresses;
}

absl::Status ServerProcess::CheckRecords() {
  for (const auto& engine : engines_) {
    SYNCLINE_RETURN_IF_ERROR(engine->CheckRecords());
  }
  return absl::OkStatus();
}

// ---- What it says ----

// As ServerNode does.
void ServerProcess::OnLost() {
  Attach();
  parts_.control.Send(connection_, MakeHello());
  for (const BlockFigures& figures : memory_.undecided()) {
    parts_.control.Send(connection_, figures);
  }
  for (const StepHeld& held : memory_.unclosed()) parts_.control.Send(connection_, held);
  SayJournal();
}

ServerHello ServerProcess::MakeHello() const {
  ServerHello hello = {.name = name_,
                       .shard_addresses = addresses(),
                       .lanes = "inproc",
                       .identity = identity_};
  hello.stand_in = parts_.stand_in;
  hello.session_key = session_key_;
  if (configured_) hello.held.push_back(memory_.Describe(job_));
  if (configured_ && HasRun()) hello.held.back().run = "run";
  if (!parts_.disk.job.empty()) {
    JournaledRun run = {parts_.disk.job, "run", {}};
    for (uint32_t i = 0; i < parts_.engines; ++i) {
      run.shards.push_back(parts_.disk.first_shard + i);
    }
    hello.journals.push_back(std::move(run));
  }
  if (parts_.host_disk != nullptr) ListJournals(hello);
  return hello;
}

void ServerProcess::Beat() {
  Heartbeat beat{.step = 0};
  for (const auto& engine : engines_) beat.bytes += engine->bytes();
  if (configured_) beat.jobs.push_back(Progress());
  parts_.control.Send(connection_, std::move(beat));
  After(parts_.heartbeat_interval, [this] { Beat(); });
}

JobProgress ServerProcess::Progress() {
  JobProgress progress{.job = job_};
  for (const auto& engine : engines_) {
    AddProgress(engine->Progress(), progress);
    if (const auto backup = engine->backup()) progress.backup_bytes += backup->bytes;
  }
  return progress;
}

// ---- What the coordinator says ----

void ServerProcess::OnControl(const CoordinatorBody& body) {
  if (const auto* configure = std::get_if<ConfigureJob>(&body)) BuildSoon(*configure);
  if (const auto* welcome = std::get_if<ServerWelcome>(&body)) {
    identity_ = {welcome->server, welcome->incarnation};
  }
  if (const auto* drop = std::get_if<DropJob>(&body)) return OnDrop(*drop);
  OnBackup(body);
  if (const auto* prepare = std::get_if<PrepareEpoch>(&body)) {
    memory_.Prepare(prepare->epoch);
    prepared_epoch_ = prepare->epoch;
    preparing_ = AllEngines();
    next_step_ = 0;
    if (parts_.fault == Fault::kNoFence) {
      for (const auto& engine : engines_) {
        next_step_ = std::max(next_step_, engine->shard().Progress().step);
      }
      parts_.control.Send(connection_, EpochPrepared{job_, prepare->epoch, next_step_});
      return;
    }
    RunAll(ShardPrepare{prepare->epoch});
  }
  if (const auto* commit = std::get_if<CommitEpoch>(&body)) {
    committed_epoch_ = commit->epoch;
    if (later_journal_) {
      allowed_journal_ = std::exchange(later_journal_, std::nullopt);
      TryJournal();
    }
    if (commit->training) {
      parts_.reference.Changed(commit->epoch, *commit->training, commit->training_from);
    }
    committing_ = AllEngines();
    ShardCommit input{.epoch = commit->epoch,
                      .training = commit->training,
                      .training_from = commit->training_from};
    for (const MemberRecord& member : commit->members) {
      input.members.push_back(
          {member.rank, member.incarnation, member.first_step, member.session_key});
    }
    RunAll(input);
  }
  if (const auto* closed = std::get_if<StepClosed>(&body)) {
    memory_.Close(*closed);
    RunAll(ShardClosed{closed->step, closed->incarnations});
  }
  if (const auto* decision = std::get_if<StepDecision>(&body)) {
    memory_.Decide(*decision);
    const Decision& what = decision->decision;
    RunAll(ShardDecision{.step = decision->step,
                         .gradient_scale = what.gradient_scale,
                         .verdict = what.skip ? ShardDecision::Verdict::kSkip
                                              : ShardDecision::Verdict::kApply,
                         .loss_scale = what.loss_scale,
                         .figures = what.figures});
  }
}

void ServerProcess::OnDrop(const DropJob& drop) {
  if (drop.job == building_) building_.reset();
  if (drop.job != job_) return;
  configured_ = takes_records_ = false;
  without_journal_.clear();
  ForgetJournal();
  for (const auto& engine : engines_) engine->Drop();
}

// The memory of a job takes time, and what is said of the job meanwhile finds nothing.
void ServerProcess::BuildSoon(const ConfigureJob& configure) {
  building_ = configure.job;
  const int micros = std::uniform_int_distribution<int>(10, 30000)(random_);
  After(absl::Microseconds(micros), [this, configure] {
    if (building_ == configure.job) Configure(configure);
  });
}

void ServerProcess::Configure(const ConfigureJob& configure) {
  job_ = configure.job;
  memory_ = {};
  const JobSpec& spec = configure.declared->spec;
  first_shard_ = configure.first_shard;
  ForgetJournal();
  if (parts_.host_disk != nullptr && !configure.backup) {
    const absl::Status opened = OpenJournal(configure);
    if (!opened.ok()) {
      return parts_.control.Send(connection_, ConfigureFailed{job_, opened});
    }
  } else if (configure.restore_run.empty()) {
    parts_.disk.job = spec.IsJournaled() ? spec.name : "";
    parts_.disk.first_shard = configure.first_shard;
  }
  takes_records_ = configure.backup.has_value();
  uint64_t step = ~uint64_t{0};
  for (uint32_t i = 0; i < parts_.engines; ++i) {
    const auto begins = engines_[i]->Configure(configure, configure.first_shard + i);
    if (!begins.ok()) {
      return parts_.control.Send(connection_, ConfigureFailed{job_, begins.status()});
    }
    step = std::min(step, *begins);
  }
  configured_ = true;
  parts_.control.Send(connection_, JobConfigured{job_, step});
}

void ServerProcess::RunAll(const ShardInput& input) {
  for (const auto& engine : engines_) engine->Run(input);
}

// ---- What the engines answer ----

std::set<uint32_t> ServerProcess::AllEngines() const {
  std::set<uint32_t> all;
  for (uint32_t i = 0; i < parts_.engines; ++i) all.insert(i);
  return all;
}

void ServerProcess::OnOutput(uint32_t engine, const ShardOutput& output) {
  if (const auto* prepared = std::get_if<ShardPrepared>(&output)) {
    if (prepared->epoch != prepared_epoch_) return;
    next_step_ = std::max(next_step_, prepared->next_step);
    if (!WasLast(preparing_, engine)) return;
    parts_.control.Send(connection_, EpochPrepared{job_, prepared->epoch, next_step_});
  }
  if (const auto* committed = std::get_if<ShardCommitted>(&output)) {
    if (committed->epoch != committed_epoch_ || !WasLast(committing_, engine)) return;
    memory_.Commit(committed->epoch);
    parts_.control.Send(connection_,
                        EpochCommitted{job_, committed->epoch, HasRun() ? "run" : ""});
  }
  if (const auto* figures = std::get_if<ShardFigures>(&output)) {
    const BlockFigures report = {job_, figures->block, figures->step, figures->figures};
    memory_.Report(report);
    parts_.control.Send(connection_, report);
  }
  if (const auto* held = std::get_if<ShardHeld>(&output)) {
    const uint32_t shard = engines_[engine]->number();
    const StepHeld report = {job_, shard, held->step, held->incarnations};
    memory_.Hold(report);
    parts_.control.Send(connection_, report);
  }
}

// ---- Backups ----

void ServerProcess::OnBackup(const CoordinatorBody& body) {
  if (const auto* hold = std::get_if<HoldBackup>(&body)) parts_.on_hold(*hold);
  if (!configured_) return;
  if (const auto* at = std::get_if<BackupAt>(&body)) SendRecords(*at);
  if (std::holds_alternative<BackupGone>(body)) GoOnWithoutBackup();
  if (const auto* take = std::get_if<syncline::TakeOver>(&body)) TakeOver(*take);
  if (const auto* gone = std::get_if<JournalGone>(&body)) OnGone(*gone);
}

void ServerProcess::SendRecords(const BackupAt& at) {
  SYNCLINE_CHECK(at.addresses.size() == engines_.size());
  backup_key_ = at.pair.session_key;
  if (at.anew) {
    says_loss_ = true;
    backing_up_ = AllEngines();
  }
  for (size_t i = 0; i < engines_.size(); ++i) {
    engines_[i]->SendRecords(at.addresses[i], at);
  }
}

void ServerProcess::OnBackedUp(uint32_t engine) {
  if (!WasLast(backing_up_, engine)) return;
  parts_.control.Send(connection_, BackedUp{job_, backup_key_});
}

void ServerProcess::GoOnWithoutBackup() {
  for (const auto& engine : engines_) engine->StopRecords();
}

void ServerProcess::SayLost(const std::string& why) {
  if (!configured_ || !std::exchange(says_loss_, false)) return;
  parts_.control.Send(connection_, BackupLost{job_, why});
}

void ServerProcess::TakeOver(const syncline::TakeOver& take) {
  takes_records_ = false;
  if (!take.run.empty()) later_journal_ = take.generation;
  uint64_t lowest = ~uint64_t{0};
  for (const auto& engine : engines_) {
    const absl::StatusOr<uint64_t> step = engine->TakeOver();
    if (!step.ok()) {
      return parts_.control.Send(connection_, ConfigureFailed{job_, step.status()});
    }
    lowest = std::min(lowest, *step);
  }
  parts_.control.Send(connection_, JobConfigured{job_, lowest});
}

// The coordinator wants it no more.
void ServerProcess::EndStandIn() {
  configured_ = takes_records_ = false;
  for (const auto& engine : engines_) engine->Drop();
}

}  // namespace syncline::sim
