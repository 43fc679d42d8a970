// Backups of servers in the memory of others (ADR 29). Server i's is with the one after it,
// in a stand-in: a process within the process, with engines and a stream of its own. To all
// but this file a stand-in that takes over is a server that has read a journal.
//
// A backup that is lost is stored as lost before its server hears that it may go on
// without: from then on nothing makes it a server any more. A new one, on whichever server
// has room, counts from the moment that it has all that the server's shards are. A
// coordinator that is started anew takes all of them for lost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/coordinator/job.h"

namespace syncline {
// ---- Stand-ins ----

// The next order to start a stand-in for that place.
HoldBackup Job::NextOrder(size_t place) {
  const JobServer& server = places_[place];
  return {.job = id_,
          .server = server.server,
          .engines = static_cast<uint32_t>(server.shard_addresses.size()),
          .order = counters_.next_incarnation++,
          .has_journal = journals_.IsFenced()};
}

void Job::AskForBackup(size_t place, const JobServer& holder,
                       CoordinatorOutputs& outputs) {
  const HoldBackup order = NextOrder(place);
  backups_.Ask(place, holder, order.order);
  outputs.push_back(PersistState{});
  outputs.push_back(ToMember{holder.connection, order});
}

bool Job::AwaitsStandIn(const StandInFor& stand_in) const {
  const bool is_time = phase_ == Phase::kConfiguring || phase_ == Phase::kRunning;
  return is_time &&
         (missing_.OrderedBy(stand_in.order) || backups_.OrderedBy(stand_in.order));
}

void Job::OnStandIn(JobServer stand_in, const ServerHello& hello,
                    CoordinatorOutputs& outputs) {
  if (const auto place = missing_.OrderedBy(hello.stand_in->order)) {
    if (stand_in.shard_addresses.size() != places_[*place].shard_addresses.size()) {
      missing_.ForgetOrder(*place);
      outputs.push_back(ToMember{stand_in.connection,
                                 DropJob{id_, "it has another number of engines"}});
      return;
    }
    stand_in.host = missing_.Find(*place)->host;
    return Restore(*place, stand_in, outputs);
  }
  const size_t place = backups_.OrderedBy(hello.stand_in->order).value();
  const JobServer& server = places_[place];
  const bool fits = stand_in.shard_addresses.size() == server.shard_addresses.size();
  backups_.Come(place, std::move(stand_in),
                {.sender = {server.server, server.incarnation},
                 .session_key = hello.session_key,
                 .key = hello.key});
  if (!fits) {
    return LoseBackup(place, "its stand-in has another number of engines", outputs);
  }
  const PlaceBackup& backup = backups_[place];
  // A new one gets what the shards are by now from the server.
  const bool loads = beginning_.resumes && !backup.is_being_made;
  outputs.push_back(ToMember{
      backup.stand_in->connection,
      ConfigureJob{
          .job = id_,
          .declared = declared_,
          .placement = places_.placement(),
          .first_shard = places_.FirstShard(place),
          .checkpoint_run = options_.keeps_checkpoints ? beginning_.run : 0,
          .resume_from = loads ? std::optional(beginning_.from.name) : std::nullopt,
          .backup = backup.pair}});
}

void Job::OnStandInConfigured(size_t place, CoordinatorOutputs& outputs) {
  if (!backups_.SetReady(place)) return;
  const PlaceBackup& backup = backups_[place];
  outputs.push_back(
      LogReason{absl::StrCat("job '", spec_.name, "': ", NameOf(backup.holder),
                             backup.is_being_made ? " is given a new backup of server "
                                                  : " holds the backup of server ",
                             places_[place].server)});
  if (backup.is_being_made) return ConnectBackup(place, outputs);
  MaybeRun(outputs);
}

// Once the server has its shards, whose records these are.
void Job::ConnectBackup(size_t place, CoordinatorOutputs& outputs) {
  const PlaceBackup& backup = backups_[place];
  outputs.push_back(ToMember{places_[place].connection,
                             BackupAt{.job = id_,
                                      .addresses = backup.stand_in->shard_addresses,
                                      .pair = backup.pair,
                                      .anew = backup.is_being_made}});
}

bool Job::HasBackup(size_t place) const {
  return phase_ == Phase::kRunning && !committed_.empty() && backups_.CanTakeOver(place);
}

void Job::DropStandIn(size_t place, const std::string& why, CoordinatorOutputs& outputs) {
  const std::optional<JobServer> stand_in = backups_.TakeStandIn(place);
  if (stand_in) outputs.push_back(ToMember{stand_in->connection, DropJob{id_, why}});
}

void Job::DropStandIns(const std::string& reason, CoordinatorOutputs& outputs) {
  for (size_t place = 0; place < backups_.size(); ++place) {
    const auto& stand_in = backups_[place].stand_in;
    // One that took over is among the servers, or missing_ has it.
    if (!stand_in || backups_.Lacks(place) || missing_.contains(place)) continue;
    outputs.push_back(ToMember{stand_in->connection, DropJob{id_, reason}});
  }
}

// ---- What is lost, and what takes over ----

void Job::OnBackupLost(uint32_t server, const std::string& reason,
                       CoordinatorOutputs& outputs) {
  if (const auto place = backups_.HeldBy(server))
    return LoseBackup(*place, reason, outputs);
  const std::optional<size_t> place = places_.Of(server);
  if (place && !backups_.empty()) LoseBackup(*place, reason, outputs);
}

// Stored before the server hears of it: what it publishes from then on no backup has.
void Job::LoseBackup(size_t place, const std::string& why, CoordinatorOutputs& outputs) {
  if (phase_ == Phase::kOver) return;
  if (!backups_.Lose(place, why)) return GiveUpNewBackup(place, why, outputs);
  const JobServer& server = places_[place];
  outputs.push_back(
      LogReason{absl::StrCat("job '", spec_.name, "': the backup of ", NameOf(server),
                             " is lost: ", why, "; it goes on without one"),
                LogReason::Level::kWarning});
  Say({.kind = EventKind::kBackup,
       .what = absl::StrCat("the backup of ", NameOf(server), " is lost: ", why)},
      outputs);
  Store(outputs);
  DropStandIn(place, "the backup is lost", outputs);
  if (!IsHere(place) && CanWaitFor(place)) return GoBackToJournal(place, why, outputs);
  if (!IsHere(place)) {
    return Fail(absl::StrCat(NameOf(server), " is lost, and so is its backup: ", why,
                             HowToGoOn(place)),
                outputs);
  }
  outputs.push_back(ToMember{server.connection, BackupGone{id_, why}});
  MaybeRun(outputs);
}

void Job::Promote(size_t place, CoordinatorOutputs& outputs) {
  const JobServer& stand_in = *backups_[place].stand_in;
  TakeOver take = {.job = id_};
  if (journals_.IsFenced()) {
    take.run = journals_.run();
    take.generation = counters_.next_incarnation++;
    outputs.push_back(PersistState{});
  }
  missing_.Promote(place, stand_in, take.generation);
  outputs.push_back(ToMember{stand_in.connection, take});
  const std::string what = absl::StrCat(
      NameOf(places_[place]), " is dead, and its backup takes over: ", stand_in.name);
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what),
                              LogReason::Level::kWarning});
  Say({.kind = EventKind::kServer, .what = what}, outputs);
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
    const std::string holder = HasBackup(place) ? backups_[place].stand_in->host : "";
    const auto at = leaving.find(served_on);
    const bool is_gone_soon = at != leaving.end() && at->second;
    if (is_gone_soon && holder == host) return true;
    const bool has_copy = !holder.empty() && !leaving.contains(holder);
    if (served_on == host && !has_copy) return true;
  }
  return false;
}

void Job::MoveBackups(const LeavingHosts& leaving, CoordinatorOutputs& outputs) {
  for (size_t place = 0; place < backups_.size(); ++place) {
    if (!HasBackup(place) || missing_.contains(place)) continue;
    const auto served_on = leaving.find(places_[place].host);
    // One that may end is about to: its backup is what will be left.
    if (served_on == leaving.end() || served_on->second) continue;
    if (!leaving.contains(backups_[place].stand_in->host)) continue;
    LoseBackup(place, "its server and its holder are to end", outputs);
  }
}

bool Job::LacksBackups() const {
  return phase_ == Phase::kRunning && !backups_.AreAllThere();
}

CopyNeed Job::CopyOf(size_t place) const {
  return {.bytes = places_.BytesOf(place), .host = places_[place].host};
}

// One of the others has, is being given or could be given the backup, which then takes its
// memory.
bool Job::KeepsCopy(size_t place, std::vector<JobServer>& others) const {
  const PlaceBackup& backup = backups_[place];
  const bool is_held = HasBackup(place) || backup.is_being_made;
  if (is_held && std::ranges::count(others, backup.holder.name, &JobServer::name) > 0) {
    return true;
  }
  const auto found = std::ranges::find_if(
      others, [&](const JobServer& one) { return MayHold(one, CopyOf(place)); });
  if (found == others.end()) return false;
  found->memory.placed_bytes += places_.BytesOf(place);
  return true;
}

void Job::SeekBackups(const std::vector<JobServer>& connected, absl::Duration now,
                      CoordinatorOutputs& outputs) {
  if (!LacksBackups()) return;  // one that is over has no places any more
  std::vector<JobServer> holders = connected;
  for (size_t place = 0; place < backups_.size(); ++place) {
    if (backups_.IsLate(place, now)) {
      GiveUpNewBackup(place, "its stand-in did not come", outputs);
    }
    if (!SeeksBackup(place)) continue;
    if (!backups_.MayTry(place, now)) {
      backups_.NoteWhyNone(place,
                           "the last one was lost soon, too; the next try follows");
      continue;
    }
    const CopyNeed copy = CopyOf(place);
    JobServer* best = FindHolder(holders, copy);
    if (best == nullptr) {
      const bool is_alone = std::ranges::all_of(
          holders, [&](const JobServer& one) { return one.name == copy.host; });
      backups_.NoteWhyNone(
          place, is_alone ? "no other server that stays is attached"
                          : "no other server that is attached has room for one");
      continue;
    }
    backups_.BeginNew(place, now);
    AskForBackup(place, *best, outputs);
    best->memory.placed_bytes += copy.bytes;
  }
}

void Job::GiveUpNewBackup(size_t place, const std::string& why,
                          CoordinatorOutputs& outputs) {
  if (!backups_.GiveUp(place)) return;
  const std::string what =
      absl::StrCat("the new backup of ", NameOf(places_[place]), " is lost: ", why);
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what),
                              LogReason::Level::kWarning});
  Say({.kind = EventKind::kBackup, .what = what}, outputs);
  if (backups_[place].is_ready) {
    outputs.push_back(ToMember{places_[place].connection, BackupGone{id_, why}});
  }
  DropStandIn(place, "the backup is lost", outputs);
}

void Job::OnBackedUp(uint32_t server, const BackedUp& backed_up,
                     CoordinatorOutputs& outputs) {
  const std::optional<size_t> place = places_.Of(server);
  if (!place || backups_.empty()) return;
  if (!backups_.Complete(*place, backed_up.session_key)) return;
  Store(outputs);
  const std::string what =
      absl::StrCat(NameOf(places_[*place]), " has a backup again, with ",
                   NameOf(backups_[*place].holder));
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what)});
  Say({.kind = EventKind::kBackup, .what = what}, outputs);
}

}  // namespace syncline
