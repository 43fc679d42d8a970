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
namespace {

// Those that follow each other more quickly wait longer and longer.
constexpr int kRestsAfterATry = 64;  // failure timeouts
constexpr int kMostDoublings = 6;

}  // namespace

// ---- Stand-ins ----

void Job::AskForBackups(CoordinatorOutputs& outputs) {
  backups_.resize(places_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    AskForBackup(i, places_[(i + 1) % places_.size()], outputs);
  }
}

void Job::AskForBackup(size_t place, const JobServer& holder,
                       CoordinatorOutputs& outputs) {
  Backup& backup = backups_[place];
  backup.holder = holder;
  backup.order = counters_.next_incarnation++;
  backup.stand_in.reset();
  backup.is_ready = false;
  places_.AddCopy(place, holder.server);
  const JobServer& server = places_[place];
  outputs.push_back(PersistState{});
  outputs.push_back(
      ToMember{holder.connection,
               HoldBackup{.job = id_,
                          .server = server.server,
                          .engines = static_cast<uint32_t>(server.shard_addresses.size()),
                          .order = backup.order,
                          .has_journal = IsFenced()}});
}

bool Job::AwaitsStandIn(const StandInFor& stand_in) const {
  const bool is_time = phase_ == Phase::kConfiguring || phase_ == Phase::kRunning;
  const auto is_to_restore = [&](const auto& entry) {
    return entry.second.order == stand_in.order && !entry.second.successor;
  };
  if (is_time && std::ranges::any_of(missing_, is_to_restore)) return true;
  return is_time && std::ranges::any_of(backups_, [&](const Backup& backup) {
           return backup.order == stand_in.order && !backup.stand_in &&
                  (backup.IsThere() || backup.is_being_made);
         });
}

std::optional<size_t> Job::AwaitsStandInOn(uint32_t server) const {
  const auto found = std::ranges::find_if(backups_, [&](const Backup& backup) {
    return backup.is_being_made && !backup.stand_in && backup.holder.server == server;
  });
  if (found == backups_.end()) return std::nullopt;
  return static_cast<size_t>(found - backups_.begin());
}

void Job::OnStandIn(JobServer stand_in, const ServerHello& hello,
                    CoordinatorOutputs& outputs) {
  for (auto& [place, missing] : missing_) {
    if (missing.order != hello.stand_in->order) continue;
    if (stand_in.shard_addresses.size() != places_[place].shard_addresses.size()) {
      missing.order = 0;
      outputs.push_back(ToMember{stand_in.connection,
                                 DropJob{id_, "it has another number of engines"}});
      return;
    }
    stand_in.host = missing.host;
    return Restore(place, stand_in, outputs);
  }
  const auto found = std::ranges::find(backups_, hello.stand_in->order, &Backup::order);
  const auto place = static_cast<size_t>(found - backups_.begin());
  const JobServer& server = places_[place];
  Backup& backup = *found;
  stand_in.host = backup.holder.name;
  backup.stand_in = std::move(stand_in);
  if (backup.stand_in->shard_addresses.size() != server.shard_addresses.size()) {
    return LoseBackup(place, "its stand-in has another number of engines", outputs);
  }
  backup.pair = {.sender = {server.server, server.incarnation},
                 .session_key = hello.session_key,
                 .key = hello.key};
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
  Backup& backup = backups_[place];
  const bool is_wanted = backup.IsThere() || backup.is_being_made;
  if (!is_wanted || std::exchange(backup.is_ready, true)) return;
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
  const Backup& backup = backups_[place];
  outputs.push_back(ToMember{places_[place].connection,
                             BackupAt{.job = id_,
                                      .addresses = backup.stand_in->shard_addresses,
                                      .pair = backup.pair,
                                      .anew = backup.is_being_made}});
}

bool Job::HasBackup(size_t place) const {
  return phase_ == Phase::kRunning && !backups_.empty() && !committed_.empty() &&
         backups_[place].is_ready && backups_[place].IsThere();
}

std::optional<size_t> Job::StandsInFor(uint32_t server) const {
  for (size_t place = 0; place < backups_.size(); ++place) {
    const auto& stand_in = backups_[place].stand_in;
    const bool is_it = stand_in && stand_in->server == server;
    if (is_it && places_[place].server != server) return place;
  }
  return std::nullopt;
}

void Job::DropStandIn(size_t place, const std::string& why, CoordinatorOutputs& outputs) {
  Backup& backup = backups_[place];
  places_.DropCopy(place, backup.holder.server);
  if (!backup.stand_in) return;
  outputs.push_back(ToMember{backup.stand_in->connection, DropJob{id_, why}});
  backup.stand_in.reset();
}

void Job::DropStandIns(const std::string& reason, CoordinatorOutputs& outputs) {
  for (size_t place = 0; place < backups_.size(); ++place) {
    const auto& stand_in = backups_[place].stand_in;
    // One that took over is among the servers, or missing_ has it.
    const bool is_backup = backups_[place].IsThere() || backups_[place].is_being_made;
    if (!stand_in || !is_backup || missing_.contains(place)) continue;
    outputs.push_back(ToMember{stand_in->connection, DropJob{id_, reason}});
  }
}

BackupView Job::ViewOfBackup(size_t place) const {
  const Backup& backup = backups_[place];
  BackupView view = {.server = places_[place].server, .lost = backup.lost};
  if (IsFenced()) view.journal_lost = place_journals_[place].lost;
  if (backup.IsThere()) {
    view.holder = NameOf(backup.holder);
  } else if (backup.is_being_made) {
    view.next = absl::StrCat("a new one is being made with ", NameOf(backup.holder));
  } else {
    view.next = backup.why_none;
  }
  return view;
}

// ---- What is lost, and what takes over ----

void Job::OnBackupLost(uint32_t server, const std::string& reason,
                       CoordinatorOutputs& outputs) {
  if (const auto place = StandsInFor(server)) return LoseBackup(*place, reason, outputs);
  const std::optional<size_t> place = places_.Of(server);
  if (place && !backups_.empty()) LoseBackup(*place, reason, outputs);
}

// Stored before the server hears of it: what it publishes from then on no backup has.
void Job::LoseBackup(size_t place, const std::string& why, CoordinatorOutputs& outputs) {
  Backup& backup = backups_[place];
  if (phase_ == Phase::kOver) return;
  if (!backup.IsThere()) return GiveUpNewBackup(place, why, outputs);
  backup.lost = why;
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
                             WhyNoJournal(place), "; go on from a checkpoint"),
                outputs);
  }
  outputs.push_back(ToMember{server.connection, BackupGone{id_, why}});
  MaybeRun(outputs);
}

void Job::Promote(size_t place, CoordinatorOutputs& outputs) {
  const JobServer& stand_in = *backups_[place].stand_in;
  Missing& missing = missing_[place];
  missing.successor = stand_in;
  missing.by_backup = true;
  TakeOver take = {.job = id_};
  if (IsFenced()) {
    take.run = journal_;
    take.generation = missing.generation = counters_.next_incarnation++;
    outputs.push_back(PersistState{});
  }
  outputs.push_back(ToMember{stand_in.connection, take});
  const std::string what = absl::StrCat(
      NameOf(places_[place]), " is dead, and its backup takes over: ", stand_in.name);
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what),
                              LogReason::Level::kWarning});
  Say({.kind = EventKind::kServer, .what = what}, outputs);
}

void Job::RestoreBackups(const JobRecord& record) {
  for (const RecordedServer& server : record.servers) {
    const std::string& lost = server.backup_lost;
    backups_.push_back(
        {.lost = lost.empty() ? "the coordinator was started anew" : lost});
    if (!IsFenced()) continue;
    place_journals_.push_back({server.journal_generation, server.journal_lost});
  }
}

// ---- A new one ----

bool Job::SeeksBackup(size_t place) const {
  const Backup& backup = backups_[place];
  return phase_ == Phase::kRunning && !homecoming_ && !saves_last_ &&
         !committed_.empty() && !missing_.contains(place) && !backup.IsThere() &&
         !backup.is_being_made;
}

bool Job::NeedsHost(const std::string& host, const LeavingHosts& leaving) const {
  if (phase_ != Phase::kRunning || backups_.empty()) return false;
  for (size_t place = 0; place < places_.size(); ++place) {
    if (const auto missing = missing_.find(place); missing != missing_.end()) {
      const auto& successor = missing->second.successor;
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
  return phase_ == Phase::kRunning &&
         !std::ranges::all_of(backups_, [](const Backup& one) { return one.IsThere(); });
}

// The first one is made at once.
absl::Duration Job::NextTry(const Backup& backup) const {
  if (backup.tries == 0) return backup.sought_at;
  const int doublings = std::min(backup.tries - 1, kMostDoublings);
  return backup.sought_at + (1 << doublings) * options_.timeouts.failure_timeout;
}

bool Job::MayHold(size_t place, const JobServer& holder) const {
  const ServerMemory& memory = holder.memory;
  const bool has_room =
      memory.budget_bytes == 0 ||
      memory.placed_bytes + places_.BytesOf(place) <= memory.budget_bytes;
  return has_room && holder.name != places_[place].host;
}

// One of the others has, is being given or could be given the backup, which then takes its
// memory.
bool Job::KeepsCopy(size_t place, std::vector<JobServer>& others) const {
  const Backup& backup = backups_[place];
  const bool is_held = HasBackup(place) || backup.is_being_made;
  if (is_held && std::ranges::count(others, backup.holder.name, &JobServer::name) > 0) {
    return true;
  }
  const auto found = std::ranges::find_if(
      others, [&](const JobServer& one) { return MayHold(place, one); });
  if (found == others.end()) return false;
  found->memory.placed_bytes += places_.BytesOf(place);
  return true;
}

// Of those that have room the one that has the fewest bytes.
void Job::SeekBackups(const std::vector<JobServer>& connected, absl::Duration now,
                      CoordinatorOutputs& outputs) {
  if (!LacksBackups()) return;  // one that is over has no places any more
  std::vector<JobServer> holders = connected;
  for (size_t place = 0; place < backups_.size(); ++place) {
    Backup& backup = backups_[place];
    const bool is_late = now - backup.sought_at >= options_.patience;
    if (backup.is_being_made && !backup.stand_in && is_late) {
      GiveUpNewBackup(place, "its stand-in did not come", outputs);
    }
    if (!SeeksBackup(place)) continue;
    if (now < NextTry(backup)) {
      backup.why_none = "the last one was lost soon, too; the next try follows";
      continue;
    }
    JobServer* best = nullptr;
    for (JobServer& one : holders) {
      const bool is_less =
          best == nullptr || one.memory.placed_bytes < best->memory.placed_bytes;
      if (MayHold(place, one) && is_less) best = &one;
    }
    if (best == nullptr) {
      const bool is_alone = std::ranges::all_of(
          holders, [&](const JobServer& one) { return one.name == places_[place].host; });
      backup.why_none = is_alone ? "no other server that stays is attached"
                                 : "no other server that is attached has room for one";
      continue;
    }
    const auto rest = kRestsAfterATry * options_.timeouts.failure_timeout;
    backup.tries = now - backup.sought_at > rest ? 1 : backup.tries + 1;
    backup.sought_at = now;
    backup.is_being_made = true;
    AskForBackup(place, *best, outputs);
    best->memory.placed_bytes += places_.BytesOf(place);
  }
}

void Job::GiveUpNewBackup(size_t place, const std::string& why,
                          CoordinatorOutputs& outputs) {
  Backup& backup = backups_[place];
  if (!std::exchange(backup.is_being_made, false)) return;
  const std::string what =
      absl::StrCat("the new backup of ", NameOf(places_[place]), " is lost: ", why);
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what),
                              LogReason::Level::kWarning});
  Say({.kind = EventKind::kBackup, .what = what}, outputs);
  if (backup.is_ready) {
    outputs.push_back(ToMember{places_[place].connection, BackupGone{id_, why}});
  }
  DropStandIn(place, "the backup is lost", outputs);
}

void Job::OnBackedUp(uint32_t server, const BackedUp& backed_up,
                     CoordinatorOutputs& outputs) {
  const std::optional<size_t> place = places_.Of(server);
  if (!place || backups_.empty()) return;
  Backup& backup = backups_[*place];
  const bool is_it = backup.is_ready && backup.pair.session_key == backed_up.session_key;
  if (!is_it || !std::exchange(backup.is_being_made, false)) return;
  backup.lost.clear();
  Store(outputs);
  const std::string what = absl::StrCat(
      NameOf(places_[*place]), " has a backup again, with ", NameOf(backup.holder));
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what)});
  Say({.kind = EventKind::kBackup, .what = what}, outputs);
}

}  // namespace syncline
