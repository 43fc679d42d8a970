// How a job changes its epoch: all servers prepare it, all servers commit it, then the
// workers are told.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "server/coordinator/job.h"

namespace syncline {

void Job::MaybeChangeEpoch() {
  // Changes during a hand-over go into the epoch that announces the new server.
  if (phase_ != Phase::kRunning || change_.has_value() || hand_over_) return;
  const bool has_news =
      next_training_ || cut_wanted_ || change_is_due_ || places_.HasUntoldMoves();
  if (workers_.AreMembers(committed_) && !has_news) return;
  change_is_due_ = false;
  const uint64_t epoch = counters_.epochs.Next(spec_.name);
  change_ = EpochChange{.epoch = epoch, .reasons = std::exchange(change_reasons_, {})};
  change_->training = std::exchange(next_training_, std::nullopt);
  change_->cuts = std::exchange(cut_wanted_, false);
  places_.BeginEpoch(epoch);
  for (const JobServer& server : places_) change_->unprepared.insert(server.server);
  ToServers(PrepareEpoch{id_, epoch});
}

void Job::OnPrepared(uint32_t server, const EpochPrepared& prepared) {
  if (!change_ || prepared.epoch != change_->epoch) return;
  if (!change_->Prepare(server, prepared.next_step)) return;
  if (change_->IsPrepared()) Commit();
}

// The members are the workers that are alive now. This includes those that came since the
// change began, and excludes those that died since.
void Job::Commit() {
  for (const auto& [rank, worker] : workers_) {
    if (worker.outside) continue;
    change_->members.push_back(
        {.rank = rank,
         .incarnation = worker.incarnation,
         .first_step = worker.welcomed ? worker.first_step : change_->next_step,
         .session_key = worker.session_key,
         .key = worker.key});
  }
  change_->reasons.Add(std::exchange(change_reasons_, {}));
  for (const JobServer& server : places_) change_->uncommitted.insert(server.server);
  begun_ = {.epoch = change_->epoch,
            .members = change_->members,
            .reason = change_->reasons.Text(),
            .training = change_->training,
            .training_from = FirstUpdateFrom(change_->next_step),
            .staleness = change_->training
                             ? std::optional(change_->training->sync().staleness)
                             : begun_.staleness};
  for (const MemberRecord& member : begun_.members) {
    begun_.names.push_back(workers_.at(member.rank).name);
  }
  outbox_.Persist();  // the coordinator fills it in
  const size_t before = outbox_.outputs().size();
  if (change_->cuts) OrderCut();
  CoordinatorOutputs orders = outbox_.TakeAfter(before);
  Store();  // with the cut, and before anybody hears of it
  outbox_.AddAll(std::move(orders));
  for (const JobServer& server : places_) SendCommit(server);
  may_close_ = true;
}

void Job::SendCommit(const JobServer& server) const {
  outbox_.Send(server.connection,
               CommitEpoch{.job = id_,
                           .epoch = begun_.epoch,
                           .members = begun_.members,
                           .reason = begun_.reason,
                           .training = begun_.training,
                           .training_from = begun_.training_from,
                           .server = {server.server, server.incarnation}});
}

// Returns the first step at or after `step` that begins an update. One update uses one
// set of options, even if several pushes make it.
uint64_t Job::FirstUpdateFrom(uint64_t step) const {
  const uint64_t pushes = spec_.training.accumulate_steps;
  return (step + pushes - 1) / pushes * pushes;
}

void Job::OnCommitted(uint32_t server, const EpochCommitted& committed) {
  if (journals_.SetRun(committed.run)) Store();
  if (!change_ || committed.epoch != change_->epoch) return;
  if (!change_->Commit(server) || !change_->uncommitted.empty()) return;
  if (change_->is_restored) return GoOn();
  FinishChange();
}

void Job::FinishChange() {
  const EpochChange change = *std::exchange(change_, std::nullopt);
  committed_ = change.members;
  shown_epoch_ = change.epoch;
  reason_ = change.reasons.Text();
  const bool is_by_loss = change.reasons.causes().contains(EpochCause::kDeath) ||
                          change.reasons.causes().contains(EpochCause::kServer);
  Log(absl::StrCat("epoch ", change.epoch, " with ", committed_.size(),
                   " members: ", reason_),
      is_by_loss ? LogReason::Level::kWarning : LogReason::Level::kInfo);
  Say({.kind = EventKind::kEpoch,
       .what =
           absl::StrCat("epoch ", change.epoch, " with ", committed_.size(),
                        committed_.size() == 1 ? " member: " : " members: ", reason_)});
  for (const EpochCause cause : change.reasons.causes()) {
    ++epoch_changes_[std::string(EpochCauseName(cause))];
  }
  const std::optional<uint32_t> seeder = Seeder();
  for (const MemberRecord& record : committed_) {
    JobWorker* found = workers_.Find(record.rank, record.incarnation);
    if (found == nullptr) continue;
    JobWorker& worker = *found;
    if (worker.welcomed) {
      TellEpoch(record.rank);
      continue;
    }
    worker.welcomed = true;
    worker.first_step = record.first_step;
    worker.barriers = workers_.barriers();
    worker.epoch = begun_.epoch;
    Welcome(record, seeder == record.rank);
  }
  LetFormerServersGo("another server has taken its place");
  MaybeReleaseBarrier();
  MaybeChangeEpoch();
  if (!saves_last_ || change_) return;
  SettleEnd(change.next_step);
}

std::optional<uint32_t> Job::Seeder() const {
  const auto seeder = std::ranges::find(committed_, 0, &MemberRecord::first_step);
  return seeder == committed_.end() ? std::nullopt : std::optional(seeder->rank);
}

// Tells the worker of the present epoch unless it knows it.
void Job::TellEpoch(uint32_t rank) {
  JobWorker& worker = workers_.at(rank);
  if (worker.is_awaited || worker.epoch >= begun_.epoch) return;
  worker.epoch = begun_.epoch;
  outbox_.Send(worker.connection,
               EpochChanged{.epoch = begun_.epoch,
                            .members = static_cast<uint32_t>(committed_.size()),
                            .seeder = Seeder() == rank,
                            .reason = begun_.reason,
                            .moved = places_.Moved(),
                            .staleness = StalenessInForce(),
                            .member = {id_, rank, worker.incarnation},
                            .key = worker.key});
}

void Job::TellMembers(const SlowestWorker& slowest) {
  for (const auto& [rank, worker] : workers_) {
    if (worker.welcomed && !worker.is_awaited) outbox_.Send(worker.connection, slowest);
  }
}

void Job::Welcome(const MemberRecord& member, bool is_seeder) const {
  const JobWorker& worker = workers_.at(member.rank);
  WorkerWelcome welcome{.job = id_,
                        .incarnation = worker.incarnation,
                        .session_key = worker.session_key,
                        .epoch = counters_.epochs.Of(spec_.name),
                        .first_step = worker.first_step,
                        .seeder = is_seeder,
                        .shard_addresses = places_.addresses(),
                        .placement = places_.placement(),
                        .members = static_cast<uint32_t>(committed_.size()),
                        .contributions = plan_->contributions(),
                        .barriers = workers_.barriers(),
                        .rank = member.rank,
                        .key = worker.key,
                        .staleness = StalenessInForce()};
  for (const JobServer& server : places_) {
    welcome.shard_servers.insert(welcome.shard_servers.end(),
                                 server.shard_addresses.size(),
                                 {server.server, server.incarnation});
  }
  outbox_.Send(worker.connection, std::move(welcome));
}

}  // namespace syncline
