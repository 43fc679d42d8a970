// How a job continues after the death of a server whose shards write journals. The job
// waits until a process has read the journals, and continues with that process in the
// server's place. Nothing that anybody was told is lost (server/shard/shard_durable.cc).
// Workers push the rest again.
//
// The other servers stay as they are. The successor has new addresses and keys, which
// workers get with the next epoch.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/failure.h"
#include "server/checkpoint/manifest.h"
#include "server/coordinator/job.h"

namespace syncline {
namespace {

constexpr char kBothAreLost[] =
    "a job that clips, skips or scales the loss cannot survive the loss of the "
    "coordinator and a server at once";

absl::Duration Seconds(absl::Duration duration) {
  return absl::Trunc(duration, absl::Seconds(1));
}

}  // namespace

// Only mode bsp waits: in the other modes, views are not all that is held back (ADR 25).
// The last decision exists in the memory of the servers and of the coordinator, and is
// lost with both.
bool Job::CanWaitForServers() const {
  const bool lacks_decision = homecoming_ && plan_->NeedsDecision();
  return phase_ == Phase::kRunning && spec_.WaitsForServers() &&
         !journals_.run().empty() && !lacks_decision;
}

std::string Job::HowToGoOn(size_t place) const {
  const bool has_all =
      spec_.IsJournaled() && !journals_.run().empty() && journals_.Counts(place);
  return has_all
             ? "; run 'syncline replay' on its journals, and resume from the checkpoint "
               "that it writes"
             : absl::StrCat(journals_.WhyNotWhole(place), "; resume from a checkpoint");
}

std::string Job::WhyNotWait(size_t place) const {
  const bool lacks_decision = homecoming_ && plan_->NeedsDecision();
  const bool lacks_backup = !backups_.empty() && !backups_[place].IsThere();
  if (lacks_backup) {
    const PlaceBackup& backup = backups_[place];
    return absl::StrCat(
        "it no longer had a backup: ", backup.lost,
        backup.is_being_made ? "; a new one was being made" : "",
        lacks_decision && spec_.IsJournaled() ? absl::StrCat("; ", kBothAreLost) : "",
        HowToGoOn(place));
  }
  if (!spec_.IsJournaled()) {
    return spec_.HasBackups() ? "the job had not begun" : "so are its weights";
  }
  if (!spec_.WaitsForServers()) {
    return absl::StrCat("jobs of mode ", FormatNamedOptions(spec_.training.mode),
                        " do not wait for servers; run 'syncline replay' on its journal, "
                        "and resume from the checkpoint that it writes");
  }
  if (lacks_decision) return absl::StrCat(kBothAreLost, HowToGoOn(place));
  return "the job had not begun";
}

std::optional<std::string> Job::HarmOfLosing(const std::string& host,
                                             std::vector<JobServer>& others) const {
  const auto serves = [&](size_t place) {
    const MissingServer* missing = missing_.Find(place);
    if (missing == nullptr) return places_[place].host == host;
    return missing->successor && missing->successor->host == host;
  };
  std::vector<size_t> served;
  for (size_t place = 0; place < places_.size(); ++place) {
    if (serves(place)) served.push_back(place);
  }
  if (IsOver() || served.empty()) return std::nullopt;
  if (phase_ != Phase::kRunning) return "would fail: it is about to begin there";
  if (spec_.HasBackups()) {
    const auto is_kept = [&](size_t place) { return KeepsCopy(place, others); };
    if (std::ranges::all_of(served, is_kept)) return std::nullopt;
  }
  const bool waits =
      std::ranges::all_of(served, [&](size_t place) { return CanWaitFor(place); });
  if (spec_.HasBackups() && !waits) {
    return "would fail: there is no other server that can take what it has there";
  }
  if (waits) {
    return "would wait until a server is started with the journal that it has there";
  }
  return "would fail: no other server has the weights that it has there";
}

// A backup that is taking over counts as a backup until it has done so.
uint64_t Job::BytesOn(const std::string& host) const {
  uint64_t bytes = 0;
  for (size_t place = 0; place < places_.size(); ++place) {
    const MissingServer* missing = missing_.Find(place);
    const std::string& served_on = places_[place].host;
    if ((missing == nullptr ? served_on : missing->ReadOn()) == host) {
      bytes += places_.BytesOf(place);
    }
    if (!backups_.empty() && backups_.IsWith(place, host)) {
      bytes += places_.BytesOf(place);
    }
  }
  return bytes;
}

void Job::OnServerLost(const ServerLoss& loss) {
  const uint32_t number = loss.server;
  if (phase_ == Phase::kOver) return;
  // Gives up the stand-ins that the server was to start.
  while (const auto place = backups_.AwaitedOn(number)) {
    GiveUpNewBackup(*place, "its server is lost");
  }
  missing_.ForgetOrdersOf(number);
  std::erase_if(former_, [&](const JobServer& one) { return one.server == number; });
  if (const auto place = missing_.SucceededBy(number)) {
    return OnSuccessorLost(*place);
  }
  if (const auto place = backups_.HeldBy(number)) {
    const PlaceBackup& backup = backups_[*place];
    const HeldBackup& held =
        backups_.IsNext(*place, number) ? backup.next : backup.present;
    return LoseBackupOf(number,
                        absl::StrCat(NameOf(held.holder), ", which held it, is lost"));
  }
  const std::optional<size_t> found = places_.Of(number);
  if (!found || !IsHere(*found)) return;
  const size_t place = *found;
  if (CanWaitFor(place) || HasBackup(place)) return Miss(place, loss);
  Fail(absl::StrCat(NameOf(places_[place]), " is lost, and ", WhyNotWait(place)));
}

void Job::TakeFrom(size_t place, const std::string& why) {
  const JobServer& server = places_[place];
  stall_.Lost(server.server);
  decisions_.Forget(places_.BlocksOf(place));
  if (change_) change_->Lose(server.server);
  const std::string named = NameOf(server);
  for (const uint64_t step : cuts_.AwaitedOf(server.server)) {
    FailCut(step, absl::UnavailableError(absl::StrCat(named, " ", why)));
  }
}

void Job::Miss(size_t place, const ServerLoss& loss) {
  missing_.Add(place, loss.at);
  recoveries_.Begin(
      HasBackup(place) ? Recoveries::Cause::kBackup : Recoveries::Cause::kJournal,
      NameOf(places_[place]), loss.at);
  TakeFrom(place, "died");
  if (HasBackup(place)) return Promote(place);
  WaitForJournal(place);
}

void Job::WaitForJournal(size_t place) {
  // A new backup that was being made is incomplete.
  if (!backups_.empty() && backups_.GiveUp(place)) {
    DropStandIn(backups_.TakeNext(place), "its server died before it was complete");
  }
  if (!backups_.empty()) backups_.Lose(place, "its server is lost");
  const std::string what = absl::StrCat("waits for ", NameOf(places_[place]),
                                        "; start it again with its --journal-dir");
  outbox_.Log(absl::StrCat("job '", spec_.name, "' ", what), LogReason::Level::kWarning);
  Say({.kind = EventKind::kServer, .what = what});
}

bool Job::FitsFor(const JobServer& successor, size_t place) const {
  return successor.shard_addresses.size() == places_[place].shard_addresses.size() &&
         HasJournalOf(successor, place);
}

void Job::ReplaceServers(const std::vector<JobServer>& attached) {
  for (const auto& [lost, missing] : missing_) {
    if (missing.successor) continue;
    const size_t place = lost;
    const auto found = std::ranges::find_if(attached, [&](const JobServer& one) {
      return IsFree(one.server) && FitsFor(one, place);
    });
    if (found != attached.end()) {
      Restore(place, *found);
      continue;
    }
    // A server that has a place already may restore this one in a node of its own. It is
    // asked after a pause, because another server that sees the same directory may be
    // starting.
    const auto other = std::ranges::find_if(
        attached, [&](const JobServer& one) { return HasJournalOf(one, place); });
    const bool may_ask = journals_.IsFenced() && missing_.MayAsk(place);
    if (may_ask && other != attached.end()) AskToRestore(place, *other);
  }
}

void Job::Restore(size_t place, const JobServer& successor) {
  missing_.Restore(place, successor);
  const uint32_t run = options_.keeps_checkpoints ? beginning_.run : 0;
  outbox_.Send(successor.connection,
               ConfigureJob{.job = id_,
                            .declared = declared_,
                            .placement = places_.placement(),
                            .first_shard = places_.FirstShard(place),
                            .checkpoint_run = run,
                            .restore_run = journals_.run(),
                            .generation = journals_.GenerationOf(place)});
  Log(absl::StrCat(NameOf(successor), " reads the journal of ", NameOf(places_[place])));
}

void Job::OnSuccessorFailed(size_t place, const absl::Status& status) {
  const MissingServer missing = *missing_.Find(place);
  const std::string named = absl::StrCat("server ", missing.successor->name);
  if (missing.by_backup && CanWaitFor(place)) {
    return GoBackToJournal(place, std::string(status.message()));
  }
  // A node that was started to restore the place is told to end.
  if (missing.order > 0) {
    outbox_.Send(missing.successor->connection, DropJob{id_, "it cannot be restored"});
  }
  missing_.Fail(place, absl::StrCat(named, ": ", std::string(status.message())));
  // Unavailable: the process that wrote the journal has not released it yet.
  if (absl::IsUnavailable(status) && !missing.by_backup) return;
  Fail(absl::StrCat(named, " cannot go on from the ",
                    missing.by_backup ? "backup" : "journal", " of server ",
                    places_[place].server, ": ", std::string(status.message())));
}

// A worker counts the step that it has pushed and whose views it waits for, so it may be
// one step ahead. A server that trains nothing returns with the highest number as its
// step.
bool Job::IsBehindWorkers(size_t place, uint64_t step) const {
  const uint64_t reached = workers_.ReachedStep();
  return step < reached && reached - step > 1 && !places_.ShardsOf(place).empty();
}

// The successor has replayed all records of the place.
void Job::Succeed(size_t place, uint64_t step) {
  const JobServer& server = places_[place];
  const MissingServer missing = missing_.Take(place);
  const uint32_t before = server.server;
  const bool hears_of_it = change_ && !change_->is_restored;
  places_.Move(place, *missing.successor,
               hears_of_it ? std::optional(change_->epoch) : std::nullopt);
  if (IsBehindWorkers(place, step)) {
    return Fail(
        absl::StrCat("the ", missing.by_backup ? "backup" : "journal", " of server ",
                     server.server, " (", server.name, ") ends at step ", step,
                     ", but workers are at step ", workers_.ReachedStep(),
                     ": it had failed before the server did; resume from a checkpoint"));
  }
  if (change_) change_->Replace(before, server.server);
  if (homecoming_) homecoming_->Replace(before, server.server);
  const std::string named = NameOf(server);
  const std::string what =
      missing.by_backup
          ? absl::StrCat(
                named, " took the place of server ", before, " at step ", step,
                missing.lives_on ? ", which handed it over" : ", from its backup")
          : absl::StrCat(named, " came back at step ", step,
                         " from the journal of server ", before);
  if (!backups_.empty()) {
    if (missing.by_backup) backups_.UseUp(place);
    backups_.NoteSuccessor(place);
    if (missing.by_backup && journals_.IsFenced()) {
      journals_.Lose(place, "it starts over after a take-over");
      journals_.BeginAnew(place, missing.generation);
    }
    Store();  // from here on no earlier copy may return
  }
  Log(what);
  change_reasons_.Add(EpochCause::kServer, what);
  Say({.kind = missing.lives_on ? EventKind::kMoved : EventKind::kServer, .what = what});
  if (IsAwaited(server.server)) {
    return FinishHomecoming(place, {.job = id_});
  }
  // The last decision may concern a step that is not in the successor's records.
  if (decision_) outbox_.Send(server.connection, *decision_);
  if (!change_) return MaybeChangeEpoch();
  if (!change_->IsPrepared()) {
    outbox_.Send(server.connection, PrepareEpoch{id_, change_->epoch});
  } else {
    Store();
    SendCommit(server);
  }
}

void Job::EndRecoveries(absl::Duration now) {
  if (!recoveries_.IsUnderWay() || phase_ != Phase::kRunning) return;
  const bool goes_on =
      !homecoming_ && !change_ && !LacksServers() && !places_.HasUntoldMoves();
  if (const auto said = recoveries_.Look(goes_on, now)) {
    outbox_.Log(absl::StrCat("job '", spec_.name, "' ", *said));
    const RecoveryView view = recoveries_.View(now);
    Say({.kind = EventKind::kRecovery,
         .what = view.last_causes == "coordinator"
                     ? *said
                     : absl::StrCat(*said, " (", view.last_causes, ")"),
         .took = view.last_took});
  }
}

// ---- Meanwhile ----

std::string Job::WhichServersAreLost(absl::Duration now, const LostServers& lost) const {
  std::vector<std::string> all;
  bool have_backups = true;
  bool waits = true;
  for (size_t place = 0; place < places_.size(); ++place) {
    const auto found = lost.find(places_[place].server);
    if (found == lost.end() || !IsHere(place)) continue;
    have_backups = have_backups && HasBackup(place);
    waits = waits && CanWaitFor(place);
    all.push_back(absl::StrCat(NameOf(places_[place]), " was lost ",
                               absl::ToInt64Seconds(now - found->second), " s ago"));
  }
  if (all.empty() || phase_ == Phase::kOver) return "";
  const std::string what = absl::StrJoin(all, " and ");
  if (waits && !have_backups) return absl::StrCat(what, "; the job waits for it");
  return absl::StrCat(what, "; ",
                      have_backups ? "its backup takes over" : "the job fails",
                      " if its connection is not back after ",
                      absl::FormatDuration(options_.timeouts.reconnect_grace));
}

void Job::AwaitServers(absl::Duration now) {
  const MissingServers::Verdict verdict = missing_.Look(now);
  if (verdict.late) {
    const size_t place = *verdict.late;
    const MissingServer& missing = *missing_.Find(place);
    const std::string limit = absl::FormatDuration(Seconds(verdict.limit));
    if (missing.by_backup && CanWaitFor(place)) {
      return GoBackToJournal(place, absl::StrCat("it did not take over within ", limit));
    }
    const std::string advice =
        missing.by_backup
            ? absl::StrCat(", and its backup did not take over", HowToGoOn(place))
            : "; the journals of its servers have all of its steps: run 'syncline "
              "replay' on them, and resume from the checkpoint that it writes";
    const std::string error =
        missing.error.empty() ? "" : absl::StrCat(" (", missing.error, ")");
    return Fail(absl::StrCat(NameOf(places_[place]), " did not come back within ", limit,
                             error, advice));
  }
  if (!verdict.says) return;
  const std::string reason = missing_.Text(now, places_);
  for (const auto& [rank, worker] : workers_) {
    if (worker.connected) outbox_.Send(worker.connection, Waiting{reason});
  }
}

}  // namespace syncline
