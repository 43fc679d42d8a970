// What happens to the hosts of a run, and when: deaths, drains, lost backups.
#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "tests/sim/server_hosts.h"

namespace syncline::sim {

void ServerHosts::DisturbHandOver(size_t place, uint32_t order) {
  const auto taker = std::ranges::find(stand_ins_[place], order, &Placed::order);
  if (taker == stand_ins_[place].end() || OneIn(parts_.random, 3)) return;
  const auto how = parts_.random() % 4;
  const int host = how == 0 ? servers_[place].host : taker->host;
  const auto outputs = std::uniform_int_distribution<int>(0, 12)(parts_.random);
  const auto downtime = absl::Milliseconds(Between(parts_.random, 1, 2000));
  parts_.events.After(absl::Milliseconds(Between(parts_.random, 0, 12)), [=, this] {
    if (how <= 1) return KillHost(host);
    if (how == 2) return LoseBackup(place);
    const bool may_crash = parts_.control.IsUp() && IsEveryPlaceServed();
    if (may_crash) parts_.control.CrashAfter(outputs, downtime);
  });
}

void ServerHosts::DisturbCopy(uint32_t server) {
  if (lasting_ != nullptr) return;
  const std::optional<size_t> found = PlaceOf(server);
  if (!found || BackupOf(*found) == nullptr || OneIn(parts_.random, 3)) return;
  const size_t place = *found;
  const auto how = parts_.random() % 8;
  const int newest = stand_ins_[place].empty() ? -1 : stand_ins_[place].back().host;
  const auto outputs = std::uniform_int_distribution<int>(0, 12)(parts_.random);
  const auto downtime = absl::Milliseconds(Between(parts_.random, 1, 2000));
  const int most = OneIn(parts_.random, 3) ? 30 : 1000;
  parts_.events.After(absl::Milliseconds(Between(parts_.random, 0, most)), [=, this] {
    if (how <= 3) return KillHostOf(place);
    if (how == 4) return KillHost(newest);
    if (how <= 6) return LoseBackup(place);
    const bool may_crash = parts_.control.IsUp() && IsEveryPlaceServed();
    if (may_crash) parts_.control.CrashAfter(outputs, downtime);
  });
}

ServerProcess* ServerHosts::ServerOn(int host) const {
  const auto spare = spares_.find(host);
  if (spare != spares_.end()) return spare->second.get();
  for (const std::vector<Placed>* group : {&servers_, &former_}) {
    for (const Placed& one : *group) {
      if (one.host == host && one.order == 0) return one.process.get();
    }
  }
  return nullptr;
}

// Another host stays or comes, so that the job can go on.
void ServerHosts::DrainHost(int host) {
  SettleMoves();
  ServerProcess* const server = ServerOn(host);
  if (server == nullptr || !HasStepped() || draining_.contains(host)) return;
  const auto stays = [this](int one) { return IsUp(one) && !draining_.contains(one); };
  int staying = 0;
  for (int one = 0; one < hosts_; ++one) staying += static_cast<int>(stays(one));
  if (staying < 2) return;
  draining_.insert(host);
  size_t held = 0;
  for (const std::vector<Placed>& group : stand_ins_) {
    held += static_cast<size_t>(std::ranges::count(group, host, &Placed::host));
  }
  server->Drain(held);
}

// The coordinator also lets a host go if nobody else could take what it has.
void ServerHosts::LeaveIfSafe(int host) {
  if (!IsUp(host)) return;
  SettleMoves();
  if (MayDie(host)) return EndHost(host, Ends::kLeaves);
  parts_.events.After(absl::Milliseconds(20), [this, host] { LeaveIfSafe(host); });
}

bool ServerHosts::IsEveryPlaceServed() const {
  for (const JobView& job : parts_.control.View().jobs) {
    size_t served = 0;
    for (const BackupView& backup : job.backups) {
      served += static_cast<size_t>(std::ranges::count_if(
          servers_, [&](const Placed& one) { return one.process->Is(backup.server); }));
    }
    if (served == places() && job.phase != JobPhase::kWaiting) return true;
  }
  return false;
}

// Crashes the coordinator once every place is served. Earlier, a second death would be
// one too many.
void ServerHosts::CrashCoordinatorOnceReplaced(int outputs) {
  if (IsEveryPlaceServed()) {
    return parts_.control.CrashAfter(outputs,
                                     absl::Milliseconds(Between(parts_.random, 1, 2000)));
  }
  parts_.events.After(absl::Milliseconds(1),
                      [this, outputs] { CrashCoordinatorOnceReplaced(outputs); });
}

void ServerHosts::PlanBackups() {
  Random& random = parts_.random;
  const size_t dies = random() % places();
  for (int tries = 0; tries < 8 && parts_.fault == Fault::kStaleBackup; ++tries) {
    parts_.events.After(absl::Milliseconds(Between(random, 20, 600)),
                        [=, this] { LoseBackup(dies); });
  }
  if (parts_.fault == Fault::kStaleBackup) return;
  for (uint64_t losses = random() % 3; losses > 0; --losses) {
    const size_t loses = random() % places();
    parts_.progress.Somewhere(absl::Milliseconds(300 << (random() % 5)),
                              [=, this] { LoseBackup(loses); });
  }
  // Spare hosts join before any server has died.
  for (uint64_t joins = random() % 3; joins > 0; --joins) {
    parts_.progress.Somewhere(absl::Milliseconds(300 << (random() % 4)), [this] {
      if (HasStepped()) StartSpare();
    });
  }
  // Hosts that are to end, and hosts that may serve nothing yet and die.
  for (uint64_t drains = random() % 4; drains > 0; --drains) {
    parts_.progress.Somewhere(absl::Milliseconds(400 << (random() % 5)),
                              [this, any = random()] { DrainHost(AnyHost(any)); });
  }
  for (uint64_t deaths = random() % 3; deaths > 0; --deaths) {
    parts_.progress.Somewhere(absl::Milliseconds(400 << (random() % 5)),
                              [this, any = random()] { KillHost(AnyHost(any)); });
  }
  // A half backup exists for a short time only, so that fault needs many tries.
  const int all = parts_.fault == Fault::kHalfBackup ? 500 : 8;
  for (int tries = 0; tries < all; ++tries) {
    const size_t which = OneIn(random, 2) ? dies : random() % places();
    parts_.progress.Somewhere(absl::Milliseconds(400 << (random() % 5)),
                              [=, this] { KillHostOf(which); });
  }
}

// Plans that one server dies or all at once, some of them several times.
void ServerHosts::PlanCrashes(Restarts restarts) {
  if (lasting_ != nullptr) return lasting_->PlanCrashes();
  if (restarts == Restarts::kBackups) return PlanBackups();
  may_crash_ = true;
  Random& random = parts_.random;
  for (uint64_t failures = random() % 3; failures > 0; --failures) {
    const size_t which = random() % places();
    parts_.progress.Somewhere(absl::Milliseconds(400 << (random() % 4)),
                              [=, this] { FailDisk(which); });
  }
  for (uint64_t crashes = 1 + random() % 4; crashes > 0; --crashes) {
    const auto early = absl::Milliseconds(400 << (random() % 4));
    const bool all = OneIn(random, 4);
    const size_t which = random() % places();
    parts_.progress.Somewhere(early, [=, this] {
      for (size_t i = 0; i < places(); ++i) {
        if (all || i == which) Kill(i);
      }
    });
  }
}

}  // namespace syncline::sim
