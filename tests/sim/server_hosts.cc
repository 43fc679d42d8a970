#include "tests/sim/server_hosts.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncline::sim {
namespace {

// Visits the addresses of each engine of a server, and of the engine that holds its
// backup.
template <typename Visit>
void ForEachCable(const ServerProcess& server, const ServerProcess& stand_in,
                  const Visit& visit) {
  const std::vector<std::string> from = server.addresses();
  const std::vector<std::string> to = stand_in.addresses();
  for (size_t i = 0; i < from.size(); ++i) visit(from[i], to[i]);
}

}  // namespace

ServerHosts::ServerHosts(Parts parts)
    : parts_(std::move(parts)),
      disks_(parts_.size.engines.size()),
      servers_(disks_.size()),
      stand_ins_(disks_.size()) {
  if (parts_.lasting.empty()) {
    for (size_t which = 0; which < places(); ++which) Start(which);
    return;
  }
  lasting_ = std::make_unique<LastingHosts>(LastingHosts::Parts{
      .events = parts_.events,
      .network = parts_.network,
      .control = parts_.control,
      .reference = parts_.reference,
      .random = parts_.random,
      .progress = parts_.progress,
      .engines = parts_.size.engines,
      .job = parts_.lasting,
      .needs_decisions = parts_.needs_decisions,
      .fault = parts_.fault,
      .parts_of = [this](Disk& unused,
                         uint32_t engines) { return PartsOf(unused, 0, engines); },
      .on_new_process = parts_.on_new_process});
}

ServerProcess* ServerHosts::at(size_t place) const {
  if (lasting_ == nullptr) return servers_[place].process.get();
  const std::vector<ServerProcess*> serving = lasting_->Serving();
  return place < serving.size() ? serving[place] : nullptr;
}

ServerProcess::Parts ServerHosts::PartsOf(Disk& disk, int host, uint32_t engines) {
  return {.events = parts_.events,
          .network = parts_.network,
          .control = parts_.control,
          .reference = parts_.reference,
          .traffic = parts_.traffic,
          .codecs = parts_.codecs,
          .heartbeat_interval = parts_.heartbeat_interval,
          .engines = engines,
          .disk = disk,
          .seed = parts_.random(),
          .on_restored =
              [this](uint32_t block, uint64_t version) {
                parts_.reference.RolledBack(block, version, parts_.held(block));
              },
          .on_hold = [this, host](const HoldBackup& hold) { StartStandIn(hold, host); },
          .on_copies = [this](uint32_t server) { DisturbCopy(server); },
          .on_drained = [this, host] { LeaveIfSafe(host); },
          .fault = parts_.fault};
}

void ServerHosts::Start(size_t which) {
  servers_[which].host = hosts_++;
  ServerProcess::Parts parts =
      PartsOf(disks_[which], servers_[which].host, parts_.size.engines[which]);
  parts.on_snapshot = [this, which] {
    if (OneIn(parts_.random, 8)) KillSoon(which, absl::Milliseconds(100));
  };
  parts.on_lost_sync = [this, which] {
    ServerProcess* const lost = at(which);
    parts_.events.After(absl::ZeroDuration(), [this, which, lost] {
      if (at(which) == lost) Die(which);
    });
  };
  parts.on_pruned = [this, which](uint64_t version) {
    CheckPruned(which, version);
    if (parts_.fault == Fault::kPrunesEarly || OneIn(parts_.random, 8)) {
      KillSoon(which, absl::Milliseconds(5));
    }
  };
  servers_[which].process =
      std::make_unique<ServerProcess>(std::move(parts), absl::StrCat("server", which));
  parts_.on_new_process();
}

void ServerHosts::StartSpare() {
  const int host = hosts_++;
  memories_.push_back(std::make_unique<Disk>());
  const auto engines = std::uniform_int_distribution<uint32_t>(1, 3)(parts_.random);
  spares_[host] = std::make_unique<ServerProcess>(
      PartsOf(*memories_.back(), host, engines), absl::StrCat("spare", host));
}

// Some come when all backups have been made again elsewhere. A share then moves there only
// after a copy was made beside its backup.
void ServerHosts::StartSpareLater() {
  const int limit = OneIn(parts_.random, 3) ? 1000 : 6000;
  parts_.events.After(absl::Milliseconds(Between(parts_.random, 1, limit)),
                      [this] { StartSpare(); });
}

ServerProcess* ServerHosts::FeederOf(size_t place, const Placed& stand_in) const {
  if (at(place)->Is(stand_in.server)) return at(place);
  for (const Placed& one : stand_ins_[place]) {
    if (one.process->Is(stand_in.server)) return one.process.get();
  }
  return nullptr;
}

std::optional<size_t> ServerHosts::PlaceOf(uint32_t server) const {
  for (size_t place = 0; place < places(); ++place) {
    const auto is_it = [server](const Placed& one) { return one.process->Is(server); };
    const bool serves = at(place) != nullptr && at(place)->Is(server);
    if (serves || std::ranges::any_of(stand_ins_[place], is_it)) return place;
  }
  return std::nullopt;
}

void ServerHosts::StartStandIn(const HoldBackup& hold, int host) {
  SettleMoves();
  const std::optional<size_t> found = PlaceOf(hold.server);
  if (!found || at(*found) == nullptr) return;  // the server died meanwhile
  const size_t place = *found;
  memories_.push_back(std::make_unique<Disk>());
  ServerProcess::Parts parts = PartsOf(*memories_.back(), host, hold.engines);
  parts.stand_in = {hold.job, hold.server, hold.order};
  parts.on_takes_over = [=, this, order = hold.order] { DisturbHandOver(place, order); };
  parts.on_takes_place = [=, this, order = hold.order] { TakePlace(place, order); };
  // Without their first backups jobs do not begin.
  parts.lacks_memory = HasStepped() && OneIn(parts_.random, 8);
  BuryStandIns(place);
  Placed& stand_in = stand_ins_[place].emplace_back();
  stand_in = {.process = std::make_unique<ServerProcess>(
                  std::move(parts), absl::StrCat("stand_in", hold.order)),
              .host = host,
              .server = hold.server,
              .order = hold.order};
  if (!OneIn(parts_.random, 2)) return;
  const double bytes_per_second = 125e3 * std::pow(10, Between(parts_.random, 0, 3));
  const ServerProcess* const feeder = FeederOf(place, stand_in);
  if (feeder == nullptr) return;
  ForEachCable(*feeder, *stand_in.process, [&](const auto& from, const auto& to) {
    parts_.network.SetRate(from, to, bytes_per_second);
  });
}

void ServerHosts::BuryStandIns(size_t place) {
  const Placed* const present = BackupOf(place);
  const bool is_known = parts_.control.IsUp();
  for (Placed& one : stand_ins_[place]) {
    const bool is_old = is_known && present != nullptr && &one != present;
    if (!at(place)->Is(one.server) || is_old) Bury(one.process);
  }
  std::erase_if(stand_ins_[place],
                [](const auto& one) { return one.process == nullptr; });
}

void ServerHosts::TakePlace(size_t place, uint32_t order) {
  const auto stand_in = std::ranges::find(stand_ins_[place], order, &Placed::order);
  if (stand_in == stand_ins_[place].end()) return;  // done already
  ++moves_;
  servers_[place].process->GiveUpPlace();
  former_.push_back(std::move(servers_[place]));
  servers_[place] = std::move(*stand_in);
  stand_ins_[place].erase(stand_in);
  parts_.on_new_process();
}

void ServerHosts::SettleMoves() {
  for (const JobView& job : parts_.control.View().jobs) {
    for (size_t place = 0; place < places(); ++place) {
      const auto serves = [&](const Placed& stand_in) {
        return std::ranges::any_of(job.backups, [&](const BackupView& backup) {
          return stand_in.process->Is(backup.server);
        });
      };
      const auto found = std::ranges::find_if(stand_ins_[place], serves);
      if (found != stand_ins_[place].end()) TakePlace(place, found->order);
    }
  }
}

const ServerProcess& ServerHosts::OwnerOf(uint32_t block) const {
  size_t place = 0;
  while (!at(place)->Owns(block)) ++place;
  return *at(place);
}

bool ServerHosts::AllAreThere() const {
  for (size_t place = 0; place < places(); ++place) {
    if (at(place) == nullptr || !at(place)->is_configured()) return false;
  }
  return true;
}

bool ServerHosts::HasStepped() const {
  for (uint32_t block = 0; block < parts_.reference.blocks().size(); ++block) {
    if (parts_.reference.version(block) > 0) return true;
  }
  return false;
}

void ServerHosts::Bury(std::unique_ptr<ServerProcess>& process, Ends how) {
  if (process == nullptr) return;
  how == Ends::kDies ? process->Kill() : process->Leave();
  dead_.push_back(std::move(process));
}

void ServerHosts::Kill(size_t which) {
  // Before the coordinator knows the journal, the server could not restore it.
  if (at(which) == nullptr || !at(which)->HasSynced() || !HasStepped()) return;
  Die(which);
}

void ServerHosts::Die(size_t which) {
  ++crashes_;
  Bury(servers_[which].process);
  parts_.events.After(absl::Milliseconds(Between(parts_.random, 1, 3000)),
                      [this, which] { Start(which); });
}

void ServerHosts::KillSoon(size_t which, absl::Duration within) {
  constexpr int kMaxCrashes = 8;  // so that the run ends
  if (!may_crash_ || crashes_ >= kMaxCrashes) return;
  parts_.events.After(Between(parts_.random, 0, 1) * within,
                      [this, which] { Kill(which); });
}

void ServerHosts::FailDisk(size_t which) {
  if (at(which) == nullptr || !at(which)->is_configured()) return;
  // The same condition as for a kill.
  const bool has_come_far = at(which)->HasSynced() && HasStepped();
  const bool is_planted = parts_.fault == Fault::kGoesOnUnsynced;
  if (has_come_far && (is_planted || OneIn(parts_.random, 2))) {
    return at(which)->FailSyncs();
  }
  at(which)->EndJournal();
  ServerProcess* const fails = at(which);
  parts_.events.After(absl::Milliseconds(Between(parts_.random, 1, 500)),
                      [this, which, fails] {
                        if (at(which) == fails) fails->BeginJournalAnew();
                      });
}

void ServerHosts::CheckPruned(size_t which, uint64_t version) {
  if (parts_.fault == Fault::kPrunesEarly) return;
  for (size_t place = 0; place < places(); ++place) {
    if (at(place) != nullptr && !at(place)->HasSynced())
      continue;  // the place has no journal now
    for (const ShardDisk& disk : disks_[place].shards) {
      for (const auto& [block, durable] : disk.Versions()) {
        const bool is_trained = durable > 0;
        if (!is_trained || durable >= version) continue;
        parts_.reference.Violate(absl::StrCat(
            "server ", which, " deleted what it had before version ", version,
            ", and block ", block, " is on the disk up to ", durable));
      }
    }
  }
}

std::string ServerHosts::NameOf(int host) const {
  const bool is_first = host < static_cast<int>(places());
  return absl::StrCat(is_first ? "server" : "spare", host);
}

const ServerHosts::Placed* ServerHosts::BackupOf(size_t place) const {
  if (at(place) == nullptr) return nullptr;
  for (const JobView& job : parts_.control.View().jobs) {
    for (const BackupView& backup : job.backups) {
      const bool is_it = at(place)->Is(backup.server) && backup.lost.empty();
      if (!is_it || job.phase == JobPhase::kWaiting) continue;
      // The newest first: one that could not hold it may still be there.
      const std::vector<Placed>& all = stand_ins_[place];
      const auto holder = std::find_if(all.rbegin(), all.rend(), [&](const Placed& one) {
        return one.server == backup.server && !one.has_lost_cable &&
               backup.holder.ends_with(absl::StrCat("(", NameOf(one.host), ")"));
      });
      if (holder != all.rend()) return &*holder;
    }
  }
  return nullptr;
}

ServerHosts::Placed* ServerHosts::BackupOf(size_t place) {
  return const_cast<Placed*>(std::as_const(*this).BackupOf(place));
}

bool ServerHosts::MayDie(int host) const {
  if (!parts_.control.IsUp()) return false;  // the coordinator must know the backups
  for (size_t place = 0; place < places(); ++place) {
    // A server that is being replaced has no other copy.
    if (at(place) == nullptr || !at(place)->is_configured()) return false;
    if (servers_[place].host != host) continue;
    if (BackupOf(place) == nullptr || BackupOf(place)->host == host) return false;
  }
  return HasStepped();
}

bool ServerHosts::IsUp(int host) const {
  const auto is_there = [host](const Placed& one) {
    return one.host == host && one.process != nullptr;
  };
  return spares_.contains(host) || std::ranges::any_of(servers_, is_there) ||
         std::ranges::any_of(former_, is_there);
}

void ServerHosts::EndHost(int host, Ends how) {
  SettleMoves();
  if (!IsUp(host) || !MayDie(host)) return;
  ++crashes_;
  draining_.erase(host);
  if (spares_.contains(host)) Bury(spares_[host], how);
  spares_.erase(host);
  for (Placed& former : former_) {
    if (former.host == host) Bury(former.process, how);
  }
  for (size_t place = 0; place < places(); ++place) {
    Placed& server = servers_[place];
    if (server.host == host) {
      Placed& stand_in = *BackupOf(place);
      // Records under way may be lost or arrive.
      if (OneIn(parts_.random, 2)) {
        ForEachCable(
            *server.process, *stand_in.process,
            [&](const auto& from, const auto& to) { parts_.network.Break(from, to); });
      }
      Bury(server.process, how);
      server = std::move(stand_in);
    }
    for (Placed& one : stand_ins_[place]) {
      if (one.host == host) Bury(one.process, how);
    }
    std::erase_if(stand_ins_[place],
                  [](const auto& one) { return one.process == nullptr; });
  }
  parts_.on_new_process();
  StartSpareLater();
  // A coordinator that was restarted has all backups made again, on the emptiest hosts.
  if (OneIn(parts_.random, 4)) {
    const auto outputs = std::uniform_int_distribution<int>(0, 12)(parts_.random);
    CrashCoordinatorOnceReplaced(outputs);
  }
}

void ServerHosts::LoseBackup(size_t place) {
  SettleMoves();
  std::vector<Placed>& stand_ins = stand_ins_[place];
  if (at(place) == nullptr || stand_ins.empty() || !HasStepped()) return;
  if (parts_.fault == Fault::kStaleBackup) {
    if (crashes_ > 0) return;
    at(place)->GoOnWithoutBackup();
    parts_.events.After(absl::Milliseconds(Between(parts_.random, 5, 200)),
                        [this, place] { KillHostOf(place); });
    return;
  }
  // The first one has the backup, if any has it.
  Placed& stand_in = stand_ins[parts_.random() % stand_ins.size()];
  stand_in.has_lost_cable = true;
  const bool both_ways = OneIn(parts_.random, 2);
  const ServerProcess* const feeder = FeederOf(place, stand_in);
  if (feeder == nullptr) return;
  ForEachCable(*feeder, *stand_in.process, [&](const auto& from, const auto& to) {
    parts_.network.Break(from, to);
    if (both_ways) parts_.network.Break(to, from);
  });
}

}  // namespace syncline::sim
