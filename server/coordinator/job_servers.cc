// A server that died, and whose shards write journals: the job waits until a process has
// read them, and goes on with that one in its place. Nothing that anyone was told is lost
// (server/shard/shard_durable.cc); workers push again what was not told.
//
// The others stay as they are. The successor has new addresses and keys, which workers get
// with the next epoch.
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
    "a job that clips, skips or scales the loss does not outlive its coordinator and a "
    "server at once";

absl::Duration Seconds(absl::Duration duration) {
  return absl::Trunc(duration, absl::Seconds(1));
}

}  // namespace

// In the other modes more is on its way than views that are held back: ADR 25. The last
// decision is in the memory of servers and of the coordinator: it dies with both.
bool Job::CanWaitForServers() const {
  const bool lacks_decision = homecoming_ && plan_->NeedsDecision();
  return phase_ == Phase::kRunning && spec_.WaitsForServers() &&
         !journals_.run().empty() && !lacks_decision;
}

std::string Job::HowToGoOn(size_t place) const {
  const bool has_all =
      spec_.IsJournaled() && !journals_.run().empty() && journals_.Counts(place);
  return has_all
             ? "; play its journals with syncline replay, and resume from that"
             : absl::StrCat(journals_.WhyNotWhole(place), "; go on from a checkpoint");
}

std::string Job::WhyNotWait(size_t place) const {
  const bool lacks_decision = homecoming_ && plan_->NeedsDecision();
  const bool lacks_backup = !backups_.empty() && !backups_[place].IsThere();
  if (lacks_backup) {
    const PlaceBackup& backup = backups_[place];
    return absl::StrCat(
        "it had no backup any more: ", backup.lost,
        backup.is_being_made ? "; a new one was being made" : "",
        lacks_decision && spec_.IsJournaled() ? absl::StrCat("; ", kBothAreLost) : "",
        HowToGoOn(place));
  }
  if (!spec_.IsJournaled()) {
    return spec_.HasBackups() ? "the job had not begun" : "its weights with it";
  }
  if (!spec_.WaitsForServers()) {
    return absl::StrCat("jobs of mode ", FormatNamedOptions(spec_.training.mode),
                        " do not wait for servers; syncline replay plays its journal");
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
    return "would fail: there is no other server that could have what it has there";
  }
  if (waits) {
    return "would stand still until a server is started with the journal that it has "
           "there";
  }
  return "would fail: it has weights there that are nowhere else";
}

// A backup that takes over is a backup until it has.
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

void Job::OnServerLost(const ServerLoss& loss, CoordinatorOutputs& outputs) {
  const uint32_t number = loss.server;
  if (phase_ == Phase::kOver) return;
  // What it was to start nodes for.
  while (const auto place = backups_.AwaitedOn(number)) {
    GiveUpNewBackup(*place, "its server is lost", outputs);
  }
  missing_.ForgetOrdersOf(number);
  if (const auto place = missing_.SucceededBy(number)) {
    return OnSuccessorLost(*place, outputs);
  }
  if (const auto place = backups_.HeldBy(number)) {
    const std::string why =
        absl::StrCat(NameOf(backups_[*place].holder), ", which held it, is lost");
    return LoseBackup(*place, why, outputs);
  }
  const std::optional<size_t> found = places_.Of(number);
  if (!found || !IsHere(*found)) return;
  const size_t place = *found;
  if (CanWaitFor(place) || HasBackup(place)) return Miss(place, loss, outputs);
  Fail(absl::StrCat(NameOf(places_[place]), " is lost, and ", WhyNotWait(place)),
       outputs);
}

void Job::Miss(size_t place, const ServerLoss& loss, CoordinatorOutputs& outputs) {
  const JobServer& server = places_[place];
  missing_.Add(place, loss.at);
  stall_.Lost(server.server);
  recoveries_.Begin(
      HasBackup(place) ? Recoveries::Cause::kBackup : Recoveries::Cause::kJournal,
      NameOf(server), loss.at);
  decisions_.Forget(places_.BlocksOf(place));
  if (change_) change_->Lose(server.server);
  const std::string named = NameOf(server);
  for (const uint64_t step : cuts_.AwaitedOf(server.server)) {
    FailCut(step, absl::UnavailableError(absl::StrCat(named, " died")), outputs);
  }
  if (HasBackup(place)) return Promote(place, outputs);
  WaitForJournal(place, outputs);
}

void Job::WaitForJournal(size_t place, CoordinatorOutputs& outputs) {
  // One that was being made lacks something.
  if (!backups_.empty() && backups_.GiveUp(place)) {
    DropStandIn(place, "its server died before it had all", outputs);
  }
  if (!backups_.empty()) backups_.Lose(place, "its server is lost");
  const std::string what =
      absl::StrCat("waits for ", NameOf(places_[place]),
                   "; start it again with its --journal-dir: it goes on from there");
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "' ", what),
                              LogReason::Level::kWarning});
  Say({.kind = EventKind::kServer, .what = what}, outputs);
}

bool Job::FitsFor(const JobServer& successor, size_t place) const {
  return successor.shard_addresses.size() == places_[place].shard_addresses.size() &&
         HasJournalOf(successor, place);
}

void Job::ReplaceServers(const std::vector<JobServer>& attached,
                         CoordinatorOutputs& outputs) {
  for (const auto& [lost, missing] : missing_) {
    if (missing.successor) continue;
    const size_t place = lost;
    const auto found = std::ranges::find_if(attached, [&](const JobServer& one) {
      return IsFree(one.server) && FitsFor(one, place);
    });
    if (found != attached.end()) {
      Restore(place, *found, outputs);
      continue;
    }
    // Beside what it has; but others may be on their way that see the same directory.
    const auto other = std::ranges::find_if(
        attached, [&](const JobServer& one) { return HasJournalOf(one, place); });
    const bool may_ask = journals_.IsFenced() && missing_.MayAsk(place);
    if (may_ask && other != attached.end()) AskToRestore(place, *other, outputs);
  }
}

void Job::Restore(size_t place, const JobServer& successor, CoordinatorOutputs& outputs) {
  missing_.Restore(place, successor);
  const uint32_t run = options_.keeps_checkpoints ? beginning_.run : 0;
  outputs.push_back(ToMember{successor.connection,
                             ConfigureJob{.job = id_,
                                          .declared = declared_,
                                          .placement = places_.placement(),
                                          .first_shard = places_.FirstShard(place),
                                          .checkpoint_run = run,
                                          .restore_run = journals_.run(),
                                          .generation = journals_.GenerationOf(place)}});
  outputs.push_back(
      LogReason{absl::StrCat("job '", spec_.name, "': ", NameOf(successor),
                             " reads the journal of ", NameOf(places_[place]))});
}

void Job::OnSuccessorFailed(size_t place, const absl::Status& status,
                            CoordinatorOutputs& outputs) {
  const MissingServer missing = *missing_.Find(place);
  const std::string named = absl::StrCat("server ", missing.successor->name);
  if (missing.by_backup && CanWaitFor(place)) {
    return GoBackToJournal(place, std::string(status.message()), outputs);
  }
  // Of a node that was started for it nothing is left.
  if (missing.order > 0) {
    outputs.push_back(
        ToMember{missing.successor->connection, DropJob{id_, "it cannot be restored"}});
  }
  missing_.Fail(place, absl::StrCat(named, ": ", std::string(status.message())));
  // Whoever writes the journal has not let go of it yet.
  if (absl::IsUnavailable(status) && !missing.by_backup) return;
  Fail(absl::StrCat(named, " cannot go on from the ",
                    missing.by_backup ? "backup" : "journal", " of server ",
                    places_[place].server, ": ", std::string(status.message())),
       outputs);
}

// Its records are all back.
void Job::Succeed(size_t place, uint64_t step, CoordinatorOutputs& outputs) {
  const JobServer& server = places_[place];
  const MissingServer missing = missing_.Take(place);
  const uint32_t before = server.server;
  const uint64_t reached = workers_.ReachedStep();
  const bool hears_of_it = change_ && !change_->is_restored;
  places_.Move(place, *missing.successor,
               hears_of_it ? std::optional(change_->epoch) : std::nullopt);
  // A worker counts the step that it has pushed and whose views it waits for. One that
  // trains nothing comes back at no step: the highest number there is.
  if (step < reached && reached - step > 1 && !places_.ShardsOf(place).empty()) {
    return Fail(absl::StrCat("the ", missing.by_backup ? "backup" : "journal",
                             " of server ", server.server, " (", server.name,
                             ") ends at step ", step, ", and workers are at ", reached,
                             ": it had failed before the server did; go on from a "
                             "checkpoint"),
                outputs);
  }
  if (change_) change_->Replace(before, server.server);
  if (homecoming_) homecoming_->Replace(before, server.server);
  const std::string named = NameOf(server);
  const std::string what = missing.by_backup
                               ? absl::StrCat(named, " took the place of server ", before,
                                              " at step ", step, ", from its backup")
                               : absl::StrCat(named, " came back at step ", step,
                                              " from the journal of server ", before);
  if (!backups_.empty()) {
    if (missing.by_backup) backups_.UseUp(place);
    backups_.NoteSuccessor(place);
    if (missing.by_backup && journals_.IsFenced()) {
      journals_.Lose(place, "it begins anew after a take-over");
      journals_.BeginAnew(place, missing.generation);
    }
    Store(outputs);  // there is no other copy that could come back
  }
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what)});
  change_reasons_.Add(EpochCause::kServer, what);
  Say({.kind = EventKind::kServer, .what = what}, outputs);
  if (IsAwaited(server.server)) {
    return FinishHomecoming(place, {.job = id_}, outputs);
  }
  // The last decision may be of a step that is not in its records.
  if (decision_) outputs.push_back(ToMember{server.connection, *decision_});
  if (!change_) return MaybeChangeEpoch(outputs);
  if (!change_->IsPrepared()) {
    outputs.push_back(ToMember{server.connection, PrepareEpoch{id_, change_->epoch}});
  } else {
    Store(outputs);
    SendCommit(server, outputs);
  }
}

void Job::EndRecoveries(absl::Duration now, CoordinatorOutputs& outputs) {
  if (!recoveries_.IsUnderWay() || phase_ != Phase::kRunning) return;
  const bool goes_on =
      !homecoming_ && !change_ && !LacksServers() && !places_.HasUntoldMoves();
  if (const auto said = recoveries_.Look(goes_on, now)) {
    outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "' ", *said)});
    const RecoveryView view = recoveries_.View(now);
    Say({.kind = EventKind::kRecovery,
         .what = view.last_causes == "coordinator"
                     ? *said
                     : absl::StrCat(*said, " (", view.last_causes, ")"),
         .took = view.last_took},
        outputs);
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

void Job::AwaitServers(absl::Duration now, CoordinatorOutputs& outputs) {
  const MissingServers::Verdict verdict = missing_.Look(now);
  if (verdict.late) {
    const size_t place = *verdict.late;
    const MissingServer& missing = *missing_.Find(place);
    const std::string limit = absl::FormatDuration(Seconds(verdict.limit));
    if (missing.by_backup && CanWaitFor(place)) {
      return GoBackToJournal(place, absl::StrCat("it did not take over within ", limit),
                             outputs);
    }
    const std::string advice =
        missing.by_backup
            ? absl::StrCat(", and its backup did not take over", HowToGoOn(place))
            : "; what the job did is in the journals of its servers: play them with "
              "syncline replay, and resume from that";
    const std::string error =
        missing.error.empty() ? "" : absl::StrCat(" (", missing.error, ")");
    return Fail(absl::StrCat(NameOf(places_[place]), " did not come back within ", limit,
                             error, advice),
                outputs);
  }
  if (!verdict.says) return;
  const std::string reason = missing_.Text(now, places_);
  for (const auto& [rank, worker] : workers_) {
    if (worker.connected) outputs.push_back(ToMember{worker.connection, Waiting{reason}});
  }
}

}  // namespace syncline
