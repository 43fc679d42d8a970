// How a job survives a restart of the coordinator: what is stored of it, and how it
// continues when its members return.
//
// Steps that need no decision are made while the coordinator is away. The last stored
// epoch is told again to servers that have not heard of it. A decision that the old
// coordinator stored, or told any server, is told to the other servers. Any other
// decision is made again, from figures that servers report again: the same figures give
// the same decision. A change of epoch that was not stored is begun again if its cause
// still exists, or if servers hold their blocks for it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/failure.h"
#include "server/coordinator/job.h"
#include "server/coordinator/mode_change.h"

namespace syncline {
namespace {

constexpr size_t kMissingShown = 8;

}  // namespace

// ---- What is stored ----

JobRecord Job::ToRecord() const {
  const bool brings_update =
      change_ && change_->training && change_->epoch > begun_.epoch;
  JobRecord record = {.id = id_,
                      .name = spec_.name,
                      .run_id = run_id_,
                      .digest = declared_->declaration.digest,
                      .epoch = begun_,
                      .training = spec_.training,
                      .goals = spec_.settings.goals,
                      .answers = spec_.settings.answers,
                      .excluded = exclusions_.ToRecord(),
                      .exclusions = exclusions_.count(),
                      .update_is_due = next_training_ || brings_update,
                      .scaler = decisions_.scaling().scaler,
                      .skipped = decisions_.scaling().skipped,
                      .decided = decisions_.decided(),
                      .decision = decision_,
                      .step = workers_.LowestStep(),
                      .placement_sum = SumOf(*places_.placement()),
                      .journal = journals_.run(),
                      .run = beginning_.run,
                      .last_cut = cuts_.last(),
                      .saves_last = saves_last_,
                      .saved = cuts_.saved()};
  for (size_t place = 0; place < places_.size(); ++place) {
    const JobServer& server = places_[place];
    record.servers.push_back({.identity = {server.server, server.incarnation},
                              .name = server.name,
                              .host = server.host,
                              .shard_addresses = server.shard_addresses,
                              .moved_in = server.moved_in,
                              .backup_lost = backups_.empty() ? "" : backups_[place].lost,
                              .journal_generation = journals_.GenerationOf(place),
                              .journal_lost = journals_.WhyLost(place)});
  }
  return record;
}

// Stores the job's record, from the first epoch on. Before it there are no weights to
// lose.
void Job::Store() {
  if (begun_.epoch == 0) return;
  if (!std::exchange(is_recorded_, true)) {
    outbox_.Store(DeclarationKey(id_), declared_->declaration.bytes);
  }
  outbox_.Store(RecordKey(id_),
                std::make_shared<const std::string>(WriteJobRecord(ToRecord())));
}

std::unique_ptr<Job> Job::Restore(const JobRecord& record,
                                  std::shared_ptr<const DeclaredJob> declared,
                                  std::shared_ptr<const JobPlacement> placement,
                                  const JobContext& context) {
  auto job =
      std::make_unique<Job>(record.id, std::move(declared), record.run_id, context);
  job->Take(record, std::move(placement));
  return job;
}

void Job::Take(const JobRecord& record, std::shared_ptr<const JobPlacement> placement) {
  phase_ = Phase::kRunning;
  search_ = Search::kDone;
  is_recorded_ = true;
  begun_ = record.epoch;
  spec_.training = record.training;
  spec_.settings.goals = record.goals;
  spec_.settings.answers = record.answers;
  exclusions_.Restore(record.excluded, record.exclusions);
  was_restored_ = true;
  plan_ = PlanOf(spec_.training);
  if (record.update_is_due) next_training_ = record.training;
  decisions_.Resume(record.decided, {record.scaler, record.skipped});
  cuts_.Restore(record.last_cut, record.saved);
  decision_ = record.decision;
  workers_.NoteStep(record.step);
  furthest_step_ = record.step;
  beginning_.run = record.run;
  journals_.SetRun(record.journal);
  saves_last_ = record.saves_last;
  shown_epoch_ = begun_.epoch;
  change_ =
      EpochChange{.epoch = begun_.epoch, .members = begun_.members, .is_restored = true};
  homecoming_ = Homecoming();
  recoveries_.Begin(Recoveries::Cause::kCoordinator, "the coordinator", std::nullopt);
  std::vector<JobServer> servers;
  for (const RecordedServer& server : record.servers) {
    const uint32_t number = server.identity.server;
    servers.push_back({.server = number,
                       .incarnation = server.identity.incarnation,
                       .name = server.name,
                       .host = server.host.empty() ? server.name : server.host,
                       .shard_addresses = server.shard_addresses,
                       .moved_in = server.moved_in});
    homecoming_->servers.insert(number);
    change_->uncommitted.insert(number);
  }
  places_.Begin(std::move(servers), std::move(placement), declared_->trained_blocks);
  quorum_.SetShards(places_.training_shards());
  const uint64_t planned = declared_->spec.training.sync().staleness;
  places_.Plan({.planned = planned,
                .staleness = std::max(planned, record.training.sync().staleness)});
  for (const RecordedServer& server : record.servers) {
    if (spec_.HasBackups()) backups_.AddLost(server.backup_lost);
    journals_.Add(server.journal_generation, server.journal_lost);
  }
  for (size_t i = 0; i < begun_.members.size(); ++i) {
    const MemberRecord& member = begun_.members[i];
    workers_.Add(member.rank, {.incarnation = member.incarnation,
                               .session_key = member.session_key,
                               .key = member.key,
                               .name = begun_.names[i],
                               .connected = false,
                               .welcomed = true,
                               .first_step = member.first_step,
                               .beat = {.step = record.step},
                               .is_awaited = true});
  }
  // The record does not say who left in order and who died.
  for (uint32_t rank = 0; rank < spec_.workers; ++rank) {
    if (!workers_.contains(rank)) lost_.insert(rank);
  }
}

// ---- Who comes back ----

void Job::OnServerBack(const JobServer& back, const HeldJob& held) {
  const auto place = places_.Of(back.server);
  if (phase_ == Phase::kOver || !place) {
    outbox_.Send(back.connection, DropJob{held.job, "it is over"});
    return;
  }
  if (missing_.contains(*place)) {
    if (const auto successor = missing_.Take(*place).successor) {
      outbox_.Send(successor->connection,
                   DropJob{held.job, "the server before it is back"});
    }
  }
  places_.Return(*place, back);
  journals_.SetRun(held.run);
  if (!backups_.empty()) {
    Store();
    outbox_.Send(back.connection, BackupGone{id_, backups_[*place].lost});
  }
  FinishHomecoming(*place, held);
}

void Job::FinishHomecoming(size_t place, const HeldJob& held) {
  const JobServer& server = places_[place];
  const uint32_t number = server.server;
  if (!homecoming_ || !homecoming_->Take(number, held)) return;
  cuts_.NoteLost(held.cut);
  if (held.decided && held.decided->step >= decisions_.decided()) {
    decision_ = held.decided;
    decisions_.Resume(held.decided->step + 1,
                      {held.decided->scaler, held.decided->skipped});
    cuts_.NoteResumed();
  }
  TakeClosed(held);
  if (held.committed >= begun_.epoch) {
    change_->Commit(number);
  } else if (!HasQuorum()) {
    SendCommit(server);
  }
  if (!homecoming_->HasAllServers()) return;
  RepeatDecision();
  if (HasQuorum()) InformServers();
  if (change_->uncommitted.empty()) GoOn();
}

// Tells the last decision to the servers that lack it. The old coordinator may have told
// some servers or none.
void Job::RepeatDecision() {
  if (!decision_) return;
  for (const JobServer& server : places_) {
    const bool lacks_it = homecoming_->LacksDecision(server.server, decisions_.decided());
    if (lacks_it) outbox_.Send(server.connection, *decision_);
  }
}

// Continues the job once all servers are back in the last epoch.
void Job::GoOn() {
  if (saves_last_) return GiveUpLast();
  committed_ = begun_.members;
  change_.reset();
  reason_ = begun_.reason;
  counters_.epochs.AtLeast(spec_.name, homecoming_->prepared);
  if (homecoming_->prepared > begun_.epoch) {
    change_is_due_ = true;
    change_reasons_.Add(EpochCause::kCoordinator,
                        "the coordinator was restarted during a change");
  }
  if (next_training_) change_reasons_.Add(EpochCause::kSettings, "new options");
  if (places_.HasUntoldMoves())
    change_reasons_.Add(EpochCause::kServer, "a server came back");
  GiveUpLostCuts();
  for (const MemberRecord& member : committed_) {
    const bool is_here = workers_.Find(member.rank, member.incarnation) != nullptr;
    if (is_here) TellEpoch(member.rank);
  }
  SayWhoIsBack();
  MaybeReleaseBarrier();
  MaybeChangeEpoch();
}

absl::Status Job::Return(ConnectionId connection, const WorkerHello& hello,
                         absl::Duration now) {
  const HeldMembership& member = *hello.member;
  JobWorker* found = workers_.Find(hello.rank, member.incarnation);
  const bool is_member = phase_ == Phase::kRunning && found != nullptr &&
                         member.job == id_ && found->welcomed &&
                         found->session_key == member.session_key;
  if (!is_member) {
    return absl::AbortedError(absl::StrCat("worker ", hello.rank, " (", hello.name,
                                           ") is no longer a member of job '", spec_.name,
                                           "'; connect again to rejoin"));
  }
  JobWorker& worker = *found;
  if (!worker.is_awaited) {
    return WithFailure(
        absl::UnavailableError(absl::StrCat("rank ", hello.rank, " of job '", spec_.name,
                                            "' is back already on another connection")),
        Failure::kRetryable);
  }
  worker.connection = connection;
  worker.connected = true;
  worker.is_awaited = false;
  worker.heard_at = now;
  worker.beat.step = member.step;
  worker.barrier = member.barrier;
  worker.barriers = member.barriers;
  worker.epoch = member.epoch;
  workers_.NoteBarriers(member.barriers);
  outbox_.AddAll(workers_.ReleaseThoseLeftBehind());
  // If the epoch is still being committed, the worker hears of it with the others.
  const bool is_committed = !change_ || change_->epoch > begun_.epoch;
  if (is_committed) TellEpoch(hello.rank);
  SayWhoIsBack();
  MaybeReleaseBarrier();
  return absl::OkStatus();
}

// ---- Who does not ----

void Job::AwaitReturn(absl::Duration now) {
  if (!homecoming_) return;
  if (!homecoming_->since) homecoming_->since = now;
  const absl::Duration limit = options_.timeouts.time_to_return;
  if (now - *homecoming_->since < limit) return;
  const std::string within =
      absl::StrCat("did not come back within ", absl::FormatDuration(limit),
                   " after the coordinator was restarted");
  for (size_t place = 0; place < places_.size(); ++place) {
    const JobServer& server = places_[place];
    if (!homecoming_->Awaits(server.server) || !IsHere(place)) continue;
    if (!CanWaitFor(place)) {
      return Fail(absl::StrCat(NameOf(server), " ", within, ", and ", WhyNotWait(place)));
    }
    Miss(place, {server.server});
  }
  std::vector<uint32_t> missing;
  for (const auto& [rank, worker] : workers_) {
    if (worker.is_awaited) missing.push_back(rank);
  }
  for (const uint32_t rank : missing) {
    DropWorker(rank, within, Readmission::Cause::kDied);
  }
  if (workers_.empty() && LacksServers()) {
    const uint32_t server = places_[missing_.begin()->first].server;
    return Fail(
        absl::StrCat("its workers and server ", server, " ", within,
                     "; the journals of its servers have all of its steps: run 'syncline "
                     "replay' on them, and resume from the checkpoint that it writes"));
  }
  SayWhoIsBack();
  MaybeReleaseBarrier();
  MaybeChangeEpoch();
}

absl::Duration Job::TimeToReturn() const {
  return homecoming_ ? options_.timeouts.time_to_return : options_.timeouts.no_progress;
}

std::string Job::WhoIsAwaited() const {
  std::vector<std::string> who;
  for (const uint32_t number : homecoming_->servers) {
    who.push_back(NameOf(places_[places_.Of(number).value()]));
  }
  for (const auto& [rank, worker] : workers_) {
    if (worker.is_awaited && who.size() < kMissingShown)
      who.push_back(workers_.Named(rank));
  }
  return absl::StrCat("the coordinator came back; waiting for ",
                      who.empty() ? "the last epoch" : absl::StrJoin(who, ", "));
}

// Ends the homecoming once nobody is awaited any more.
void Job::SayWhoIsBack() {
  if (!homecoming_ || change_ || workers_.awaited() > 0) return;
  const auto back = std::ranges::count_if(committed_, [this](const auto& member) {
    return workers_.Find(member.rank, member.incarnation) != nullptr;
  });
  homecoming_.reset();
  outbox_.Log(absl::StrCat("the coordinator came back: job '", spec_.name,
                           "' goes on at step ", workers_.LowestStep(), " in epoch ",
                           begun_.epoch, " with ", back, " of ", committed_.size(),
                           " members"));
}

}  // namespace syncline
