// Backups of servers in the memory of others (ADR 29). Server i's is with the one after it,
// in a stand-in: a process within the process, with engines and a stream of its own. To all
// but this file a stand-in that takes over is a server that has read a journal.
//
// A backup that is lost is stored as lost before its server hears that it may go on
// without: from then on nothing makes it a server any more. A coordinator that is started
// anew takes all of them for lost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/coordinator/job.h"

namespace syncline {

void Job::AskForBackups(CoordinatorOutputs& outputs) {
  backups_.resize(servers_.size());
  for (size_t i = 0; i < servers_.size(); ++i) {
    const JobServer& holder = servers_[(i + 1) % servers_.size()];
    backups_[i].holder = absl::StrCat("server ", holder.server, " (", holder.name, ")");
    placed_bytes_[holder.server] += placement_->server_use[i].total();
    const auto engines = static_cast<uint32_t>(servers_[i].shard_addresses.size());
    outputs.push_back(
        ToMember{holder.connection, HoldBackup{id_, servers_[i].server, engines}});
  }
}

bool Job::AwaitsStandIn(uint32_t server) const {
  const auto found = std::ranges::find(servers_, server, &JobServer::server);
  if (phase_ != Phase::kConfiguring || found == servers_.end() || backups_.empty()) {
    return false;
  }
  const Backup& backup = backups_[static_cast<size_t>(found - servers_.begin())];
  return !backup.stand_in && backup.lost.empty();
}

void Job::OnStandIn(JobServer stand_in, const ServerHello& hello,
                    CoordinatorOutputs& outputs) {
  size_t place = 0;
  uint32_t first_shard = 0;
  while (servers_[place].server != hello.stand_in->server) {
    first_shard += static_cast<uint32_t>(servers_[place++].shard_addresses.size());
  }
  const JobServer& server = servers_[place];
  if (stand_in.shard_addresses.size() != server.shard_addresses.size()) {
    return LoseBackup(place, "its stand-in has another number of engines", outputs);
  }
  Backup& backup = backups_[place];
  backup.stand_in = std::move(stand_in);
  backup.pair = {.sender = {server.server, server.incarnation},
                 .session_key = hello.session_key,
                 .key = hello.key};
  const auto from =
      beginning_.resumes ? std::optional(beginning_.from.name) : std::nullopt;
  outputs.push_back(ToMember{
      backup.stand_in->connection,
      ConfigureJob{.job = id_,
                   .declared = declared_,
                   .placement = placement_,
                   .first_shard = first_shard,
                   .checkpoint_run = options_.keeps_checkpoints ? beginning_.run : 0,
                   .resume_from = from,
                   .backup = backup.pair}});
}

void Job::OnStandInConfigured(size_t place, CoordinatorOutputs& outputs) {
  Backup& backup = backups_[place];
  if (!backup.lost.empty() || std::exchange(backup.is_ready, true)) return;
  outputs.push_back(
      LogReason{absl::StrCat("job '", spec_.name, "': ", backup.holder,
                             " holds the backup of server ", servers_[place].server)});
  MaybeRun(outputs);
}

// Once the servers have their shards, whose records these are.
void Job::ConnectBackups(CoordinatorOutputs& outputs) {
  for (size_t place = 0; place < backups_.size(); ++place) {
    const Backup& backup = backups_[place];
    if (!backup.lost.empty()) continue;
    outputs.push_back(ToMember{servers_[place].connection,
                               BackupAt{.job = id_,
                                        .addresses = backup.stand_in->shard_addresses,
                                        .pair = backup.pair}});
  }
}

bool Job::HasBackup(size_t place) const {
  return phase_ == Phase::kRunning && !backups_.empty() && !committed_.empty() &&
         backups_[place].is_ready && backups_[place].lost.empty();
}

std::optional<size_t> Job::StandsInFor(uint32_t server) const {
  for (size_t place = 0; place < backups_.size(); ++place) {
    const auto& stand_in = backups_[place].stand_in;
    const bool is_it = stand_in && stand_in->server == server;
    if (is_it && servers_[place].server != server) return place;
  }
  return std::nullopt;
}

void Job::OnBackupLost(uint32_t server, const std::string& reason,
                       CoordinatorOutputs& outputs) {
  if (const auto place = StandsInFor(server)) return LoseBackup(*place, reason, outputs);
  const auto found = std::ranges::find(servers_, server, &JobServer::server);
  if (found == servers_.end() || backups_.empty()) return;
  LoseBackup(static_cast<size_t>(found - servers_.begin()), reason, outputs);
}

// Stored before the server hears of it: what it publishes from then on no backup has.
void Job::LoseBackup(size_t place, const std::string& why, CoordinatorOutputs& outputs) {
  Backup& backup = backups_[place];
  if (phase_ == Phase::kOver || !backup.lost.empty()) return;
  backup.lost = why;
  const JobServer& server = servers_[place];
  const std::string named =
      absl::StrCat("server ", server.server, " (", server.name, ")");
  outputs.push_back(
      LogReason{absl::StrCat("job '", spec_.name, "': the backup of ", named,
                             " is lost: ", why, "; it goes on without one")});
  Store(outputs);
  if (backup.stand_in) {
    outputs.push_back(
        ToMember{backup.stand_in->connection, DropJob{id_, "the backup is lost"}});
  }
  if (!IsHere(server)) {
    return Fail(absl::StrCat(named, " is lost, and so is its backup: ", why,
                             "; go on from a checkpoint"),
                outputs);
  }
  outputs.push_back(ToMember{server.connection, BackupGone{id_, why}});
  MaybeRun(outputs);
}

void Job::Promote(size_t place, CoordinatorOutputs& outputs) {
  const JobServer& stand_in = *backups_[place].stand_in;
  missing_[place].successor = stand_in;
  outputs.push_back(ToMember{stand_in.connection, TakeOver{id_}});
  outputs.push_back(LogReason{absl::StrCat(
      "job '", spec_.name, "': server ", servers_[place].server, " (",
      servers_[place].name, ") is dead, and its backup takes over: ", stand_in.name)});
}

void Job::DropStandIns(const std::string& reason, CoordinatorOutputs& outputs) {
  for (size_t place = 0; place < backups_.size(); ++place) {
    const auto& stand_in = backups_[place].stand_in;
    // One that took over is among the servers, or missing_ has it.
    if (!stand_in || !backups_[place].lost.empty() || missing_.contains(place)) continue;
    outputs.push_back(ToMember{stand_in->connection, DropJob{id_, reason}});
  }
}

void Job::RestoreBackups(const JobRecord& record) {
  for (const RecordedServer& server : record.servers) {
    const std::string& lost = server.backup_lost;
    backups_.push_back(
        {.lost = lost.empty() ? "the coordinator was started anew" : lost});
  }
}

}  // namespace syncline
