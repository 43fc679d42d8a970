// The backups of a job's servers in the memory of other servers (ADR 29). At first the
// backup of server i is on the next server. A stand-in holds it there: a node with its
// own engines and its own stream inside the process of the holder. Outside this file, a
// stand-in that takes over is treated like a server that has read a journal.
//
// A lost backup is stored as lost before its server hears that it may continue without
// it. From then on it cannot take over any more. A new backup is made on a server that
// has room. It counts once it has the whole state of the server's shards. If it is made
// while another one is there, the server sends its records to both until then. A
// coordinator that was restarted treats all backups as lost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/coordinator/job.h"

namespace syncline {
// ---- Stand-ins ----

// Returns a new order to start a stand-in for the place.
HoldBackup Job::NextOrder(size_t place) {
  const JobServer& server = places_[place];
  return {.job = id_,
          .server = server.server,
          .engines = static_cast<uint32_t>(server.shard_addresses.size()),
          .order = counters_.next_incarnation++,
          .has_journal = journals_.IsFenced()};
}

void Job::AskForBackup(size_t place, const JobServer& holder) {
  const HoldBackup order = NextOrder(place);
  backups_.Ask(place, holder, order.order);
  outbox_.Persist();
  outbox_.Send(holder.connection, order);
}

bool Job::AwaitsStandIn(const StandInFor& stand_in) const {
  const bool is_time = phase_ == Phase::kConfiguring || phase_ == Phase::kRunning;
  return is_time &&
         (missing_.OrderedBy(stand_in.order) || backups_.OrderedBy(stand_in.order));
}

void Job::OnStandIn(JobServer stand_in, const ServerHello& hello) {
  if (const auto place = missing_.OrderedBy(hello.stand_in->order)) {
    if (stand_in.shard_addresses.size() != places_[*place].shard_addresses.size()) {
      missing_.ForgetOrder(*place);
      outbox_.Send(stand_in.connection,
                   DropJob{id_, "it has a different number of engine threads"});
      return;
    }
    stand_in.host = missing_.Find(*place)->host;
    return Restore(*place, stand_in);
  }
  const size_t place = backups_.OrderedBy(hello.stand_in->order).value();
  const JobServer& server = places_[place];
  const bool fits = stand_in.shard_addresses.size() == server.shard_addresses.size();
  const uint32_t number = stand_in.server;
  backups_.Come(place, std::move(stand_in),
                {.sender = {server.server, server.incarnation},
                 .session_key = hello.session_key,
                 .key = hello.key});
  if (!fits) {
    return LoseBackupOf(number, "its stand-in has a different number of engine threads");
  }
  const HeldBackup& backup = backups_[place].latest();
  // A backup that is made later gets the present state of the shards from the server.
  const bool loads = beginning_.resumes && !backups_[place].is_being_made;
  outbox_.Send(
      backup.stand_in->connection,
      ConfigureJob{
          .job = id_,
          .declared = declared_,
          .placement = places_.placement(),
          .first_shard = places_.FirstShard(place),
          .checkpoint_run = options_.keeps_checkpoints ? beginning_.run : 0,
          .resume_from = loads ? std::optional(beginning_.from.name) : std::nullopt,
          .backup = backup.pair});
}

void Job::OnStandInConfigured(size_t place) {
  if (!backups_.SetReady(place)) return;
  const PlaceBackup& backup = backups_[place];
  Log(absl::StrCat(NameOf(backup.latest().holder),
                   backup.is_being_made ? " is given a new backup of server "
                                        : " holds the backup of server ",
                   places_[place].server));
  if (backup.is_being_made) return ConnectBackup(place);
  MaybeRun();
}

// Called once the server has its shards: it then sends their records to the backup.
void Job::ConnectBackup(size_t place) {
  const HeldBackup& backup = backups_[place].latest();
  outbox_.Send(places_[place].connection,
               BackupAt{.job = id_,
                        .addresses = backup.stand_in->shard_addresses,
                        .pair = backup.pair,
                        .with_state = backups_[place].is_being_made});
}

bool Job::HasBackup(size_t place) const {
  return phase_ == Phase::kRunning && HasBegun() && backups_.CanTakeOver(place);
}

void Job::DropStandIn(const std::optional<JobServer>& stand_in, const std::string& why) {
  if (stand_in) outbox_.Send(stand_in->connection, DropJob{id_, why});
}

void Job::DropStandIns(const std::string& reason) {
  for (size_t place = 0; place < backups_.size(); ++place) {
    if (backups_[place].is_being_made) DropStandIn(backups_[place].next.stand_in, reason);
    // A stand-in that took over is among the servers, or in missing_.
    if (!backups_[place].IsThere() || missing_.contains(place)) continue;
    DropStandIn(backups_[place].present.stand_in, reason);
  }
}

// ---- What is lost, and what takes over ----

void Job::OnBackupLost(uint32_t server, const BackupLost& lost) {
  const std::string& reason = lost.reason;
  if (backups_.HeldBy(server)) return LoseBackupOf(server, reason);
  const std::optional<size_t> place = places_.Of(server);
  if (!place || backups_.empty()) return;
  // The stand-in has closed the connection itself, and may have every step that anybody
  // was told of.
  if (IsHandedOver(*place)) return;
  const PlaceBackup& backup = backups_[*place];
  const auto is_of = [&lost](const HeldBackup& held) {
    return lost.session_key == 0 || lost.session_key == held.pair.session_key;
  };
  if (backup.IsThere() && is_of(backup.present)) return LoseBackup(*place, reason);
  // The server may not have heard of the new backup yet. Then it means the one before,
  // which is lost already.
  const bool is_next = backup.is_being_made && backup.next.is_ready;
  if (is_next && is_of(backup.next)) GiveUpNewBackup(*place, reason);
}

void Job::LoseBackupOf(uint32_t stand_in, const std::string& why) {
  const size_t place = backups_.HeldBy(stand_in).value();
  if (backups_.IsNext(place, stand_in)) return GiveUpNewBackup(place, why);
  LoseBackup(place, why);
}

// The loss is stored before the server hears of it: no backup has what the server
// publishes from then on.
void Job::LoseBackup(size_t place, const std::string& why) {
  if (phase_ == Phase::kOver || !backups_.Lose(place, why)) return;
  const JobServer& server = places_[place];
  Log(absl::StrCat("the backup of ", NameOf(server), " is lost: ", why,
                   "; the server goes on without one"),
      LogReason::Level::kWarning);
  Say({.kind = EventKind::kBackup,
       .what = absl::StrCat("the backup of ", NameOf(server), " is lost: ", why)});
  Store();
  DropStandIn(backups_.TakeStandIn(place), "the backup is lost");
  if (!IsHere(place) && CanWaitFor(place)) return GoBackToJournal(place, why);
  if (!IsHere(place)) {
    return Fail(absl::StrCat(NameOf(server), " is lost, and so is its backup: ", why,
                             HowToGoOn(place)));
  }
  const uint64_t key = backups_[place].present.pair.session_key;
  outbox_.Send(server.connection, BackupGone{id_, why, key});
  MaybeRun();
  if (!IsHandedOver(place)) return;
  // The server continues where it was, since the stand-in has told nobody of a step.
  hand_over_.reset();
  backups_.NoteMoveFailed(place);
  Say({.kind = EventKind::kMoved,
       .what = absl::StrCat(NameOf(server), " keeps its place: ", why)});
  MaybeChangeEpoch();
}

uint32_t Job::TellToTakeOver(size_t place) {
  TakeOver take = {.job = id_};
  if (journals_.IsFenced()) {
    take.run = journals_.run();
    take.generation = counters_.next_incarnation++;
    outbox_.Persist();
  }
  outbox_.Send(backups_[place].present.stand_in->connection, take);
  return take.generation;
}

void Job::Promote(size_t place) {
  if (backups_.GiveUp(place)) {
    DropStandIn(backups_.TakeNext(place), "its server died before it was complete");
  }
  const JobServer& stand_in = *backups_[place].present.stand_in;
  // If the server died during a hand-over, the stand-in was told to take over already.
  const uint32_t generation = IsHandedOver(place)
                                  ? std::exchange(hand_over_, std::nullopt)->generation
                                  : TellToTakeOver(place);
  missing_.Promote(place, stand_in, generation);
  const std::string what = absl::StrCat(
      NameOf(places_[place]), " died, and its backup takes over: ", stand_in.name);
  Report(EventKind::kServer, what, LogReason::Level::kWarning);
}

// ---- A new one ----

bool Job::SeeksBackup(size_t place) const {
  return phase_ == Phase::kRunning && !homecoming_ && !saves_last_ &&
         !committed_.empty() && IsHere(place) && backups_.Lacks(place);
}

bool Job::NeedsHost(const std::string& host, const LeavingHosts& leaving) const {
  if (phase_ != Phase::kRunning || backups_.empty()) return false;
  for (size_t place = 0; place < places_.size(); ++place) {
    if (const MissingServer* missing = missing_.Find(place)) {
      const auto& successor = missing->successor;
      if (successor && successor->host == host) return true;
      continue;
    }
    const std::string& served_on = places_[place].host;
    const std::string holder =
        HasBackup(place) ? backups_[place].present.stand_in->host : "";
    const auto at = leaving.find(served_on);
    // Either the backup is about to take over, or another one is to be made elsewhere.
    if (at != leaving.end() && holder == host) return true;
    const bool has_copy = !holder.empty() && !leaving.contains(holder);
    if (served_on == host && !has_copy) return true;
  }
  return false;
}

void Job::MoveBackups(const LeavingHosts& leaving, std::vector<JobServer> staying,
                      absl::Duration now) {
  for (size_t place = 0; place < backups_.size(); ++place) {
    if (!HasBackup(place) || missing_.contains(place) || IsHandedOver(place)) continue;
    const auto served_on = leaving.find(places_[place].host);
    // A server that may end is about to end. Its backup is what will be left.
    if (served_on == leaving.end() || served_on->second) continue;
    if (!leaving.contains(backups_[place].present.stand_in->host)) continue;
    if (!places_[place].feeds_two_backups) {
      LoseBackup(place, "its server and the server that holds it are being drained");
      continue;
    }
    if (!backups_[place].is_being_made && !saves_last_) SeekBackup(place, staying, now);
  }
}

bool Job::MakesBackups() const {
  const bool has_all = backups_.AreAllThere() && !backups_.IsAnyBeingMade();
  return phase_ == Phase::kRunning && !has_all;
}

CopyNeed Job::CopyOf(size_t place) const {
  return {.bytes = places_.BytesOf(place),
          .host = places_[place].host,
          .avoided = backups_[place].copy_failed_on};
}

// Returns whether one of `others` has the place's backup, is being given it, or has room
// for it. In the last case the copy is added to its memory in use.
bool Job::KeepsCopy(size_t place, std::vector<JobServer>& others) const {
  const PlaceBackup& backup = backups_[place];
  const auto is_other = [&others](const HeldBackup& held) {
    return std::ranges::count(others, held.holder.name, &JobServer::name) > 0;
  };
  if (HasBackup(place) && is_other(backup.present)) return true;
  if (backup.is_being_made && is_other(backup.next)) return true;
  const auto found = std::ranges::find_if(
      others, [&](const JobServer& one) { return MayHold(one, CopyOf(place)); });
  if (found == others.end()) return false;
  found->memory.placed_bytes += places_.BytesOf(place);
  return true;
}

void Job::SeekBackups(const std::vector<JobServer>& connected, absl::Duration now) {
  if (!MakesBackups()) return;  // a job that is over has no places any more
  std::vector<JobServer> holders = connected;
  for (size_t place = 0; place < backups_.size(); ++place) {
    if (backups_.IsLate(place, now)) {
      GiveUpNewBackup(place, "its stand-in did not come");
    }
    if (SeeksBackup(place)) SeekBackup(place, holders, now);
  }
}

// Starts a new backup of the place on one of `holders`, and adds it to the memory that is
// in use there.
void Job::SeekBackup(size_t place, std::vector<JobServer>& holders, absl::Duration now) {
  if (!backups_.MayTry(place, now)) {
    return backups_.NoteWhyNone(
        place, "the last one was lost soon, too; another try follows later");
  }
  CopyNeed copy = CopyOf(place);
  for (const JobServer& one : holders) {
    if (newcomers_.IsUnsteadyAgain(one, now)) copy.avoided.push_back(one.server);
  }
  JobServer* best = FindHolder(holders, copy);
  if (best == nullptr) {
    const bool is_alone = std::ranges::all_of(
        holders, [&](const JobServer& one) { return one.name == copy.host; });
    return backups_.NoteWhyNone(place, is_alone
                                           ? "no other server is attached that stays"
                                           : "no other attached server has room for one");
  }
  backups_.BeginNew(place, now);
  newcomers_.Give(*best, now);
  AskForBackup(place, *best);
  best->memory.placed_bytes += copy.bytes;
}

void Job::GiveUpNewBackup(size_t place, const std::string& why) {
  if (!backups_.GiveUpFailed(place)) return;
  const std::string what =
      absl::StrCat("the new backup of ", NameOf(places_[place]), " is lost: ", why);
  Report(EventKind::kBackup, what, LogReason::Level::kWarning);
  const HeldBackup& next = backups_[place].next;
  if (next.is_ready) {
    outbox_.Send(places_[place].connection, BackupGone{id_, why, next.pair.session_key});
  }
  DropStandIn(backups_.TakeNext(place), "the backup is lost");
}

void Job::OnBackedUp(uint32_t server, const BackedUp& backed_up) {
  const std::optional<size_t> place = places_.Of(server);
  if (!place || backups_.empty()) return;
  const bool replaces = backups_[*place].IsThere();
  const HeldBackup before = backups_[*place].present;
  if (!backups_.Complete(*place, backed_up.session_key)) return;
  Store();
  const std::string holder = NameOf(backups_[*place].present.holder);
  Report(
      EventKind::kBackup,
      absl::StrCat(
          NameOf(places_[*place]),
          replaces ? " has its backup with " : " has a backup again, with ", holder,
          replaces ? absl::StrCat(" now, no longer with ", NameOf(before.holder)) : ""));
  if (!replaces) return;
  const std::string why = absl::StrCat("another one, with ", holder, ", replaces it");
  outbox_.Send(places_[*place].connection, BackupGone{id_, why, before.pair.session_key});
  DropStandIn(before.stand_in, why);
}

}  // namespace syncline
