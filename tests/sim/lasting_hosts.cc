#include "tests/sim/lasting_hosts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncline::sim {
namespace {

constexpr int kMaxCrashes = 8;  // so that the run ends

// Visits the addresses of each engine of a server, and of the engine that holds its
// backup.
template <typename Visit>
void ForEachCable(const ServerProcess& server, const ServerProcess& holder,
                  const Visit& visit) {
  const std::vector<std::string> from = server.addresses();
  const std::vector<std::string> to = holder.addresses();
  for (size_t i = 0; i < std::min(from.size(), to.size()); ++i) visit(from[i], to[i]);
}

}  // namespace

LastingHosts::LastingHosts(Parts parts) : parts_(std::move(parts)) {
  for (const uint32_t engines : parts_.engines) Add(engines);
}

void LastingHosts::Add(uint32_t engines) {
  hosts_.push_back(std::make_unique<Host>());
  hosts_.back()->name = absl::StrCat("host", hosts_.size());
  hosts_.back()->engines = engines;
  Start(hosts_.size() - 1);
}

void LastingHosts::Start(size_t which) {
  Host& host = *hosts_[which];
  Node& node = host.nodes.emplace_back();
  ServerProcess::Parts parts = parts_.parts_of(*node.unused, host.engines);
  parts.host_disk = &host.disk;
  parts.job = parts_.job;
  parts.on_hold = [this, which](const HoldBackup& hold) { StartNode(which, hold); };
  node.process = std::make_unique<ServerProcess>(std::move(parts), host.name);
  parts_.on_new_process();
}

void LastingHosts::StartNode(size_t which, const HoldBackup& hold) {
  Host& host = *hosts_[which];
  Node& node = host.nodes.emplace_back();
  ServerProcess::Parts parts = parts_.parts_of(*node.unused, hold.engines);
  parts.host_disk = &host.disk;
  parts.job = parts_.job;
  parts.stand_in = {hold.job, hold.server, hold.order};
  // The callbacks are not called before the process exists.
  const auto itself = std::make_shared<const ServerProcess*>(nullptr);
  parts.on_takes_over = [=, this] { DisturbHandOver(which, (*itself)->first_shard()); };
  parts.on_takes_place = [=, this] { TakePlace((*itself)->first_shard()); };
  node.process =
      std::make_unique<ServerProcess>(std::move(parts), absl::StrCat("node", hold.order));
  *itself = node.process.get();
  parts_.on_new_process();
  if (hold.restores || OneIn(parts_.random, 2)) return;
  const double bytes_per_second = 125e3 * std::pow(10, Between(parts_.random, 0, 3));
  for (const ServerProcess* server : Serving()) {
    if (!server->Is(hold.server)) continue;
    ForEachCable(*server, *node.process, [&](const auto& from, const auto& to) {
      parts_.network.SetRate(from, to, bytes_per_second);
    });
  }
}

void LastingHosts::TakePlace(uint32_t first_shard) {
  for (const auto& host : hosts_) {
    for (const Node& node : host->nodes) {
      const bool serves = node.process->is_configured();
      if (!serves || node.process->first_shard() != first_shard) continue;
      ++moves_;
      node.process->GiveUpPlace();
    }
  }
}

void LastingHosts::DisturbHandOver(size_t to, uint32_t first_shard) {
  const std::optional<size_t> from = HostOf(first_shard);
  if (!from || OneIn(parts_.random, 3)) return;  // no `from`: the server died
  Hosts dying = {to};
  const auto how = parts_.random() % 5;
  if (how == 0) dying = {*from};
  if (how == 1) dying.insert(*from);
  const auto fate = OneIn(parts_.random, 2) ? Fate::kComesBack : Fate::kIsGone;
  const auto outputs = std::uniform_int_distribution<int>(0, 12)(parts_.random);
  const auto downtime = absl::Milliseconds(Between(parts_.random, 1, 2000));
  parts_.events.After(absl::Milliseconds(Between(parts_.random, 0, 12)), [=, this] {
    Hosts up = dying;
    std::erase_if(up, [this](size_t one) { return hosts_[one]->nodes.empty(); });
    if (how <= 2 && !up.empty()) return Kill(up, fate);
    if (how == 3 && AllAreKnown()) parts_.control.CrashAfter(outputs, downtime);
  });
}

void LastingHosts::BreakCables(const ServerProcess& server) {
  for (const auto& host : hosts_) {
    for (const Node& node : host->nodes) {
      if (node.process == nullptr || !node.process->Holds(server.first_shard())) continue;
      ForEachCable(server, *node.process, [&](const auto& from, const auto& to) {
        parts_.network.Break(from, to);
      });
    }
  }
}

std::vector<ServerProcess*> LastingHosts::Serving() const {
  std::map<uint32_t, ServerProcess*> places;
  for (const auto& host : hosts_) {
    for (const Node& node : host->nodes) {
      if (!node.process->is_configured()) continue;
      places[node.process->first_shard()] = node.process.get();
    }
  }
  std::vector<ServerProcess*> serving;
  for (const auto& [shard, process] : places) serving.push_back(process);
  return serving;
}

std::optional<size_t> LastingHosts::HostOf(uint32_t first_shard) const {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    for (const Node& node : hosts_[i]->nodes) {
      const bool serves = node.process->is_configured();
      if (serves && node.process->first_shard() == first_shard) return i;
    }
  }
  return std::nullopt;
}

bool LastingHosts::HoldsBackup(uint32_t first_shard, const std::string& holder,
                               const Hosts& others_than) const {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    const bool is_it = holder.ends_with(absl::StrCat("(", hosts_[i]->name, ")"));
    if (others_than.contains(i) || !is_it) continue;
    for (const Node& node : hosts_[i]->nodes) {
      if (node.process->Holds(first_shard)) return true;
    }
  }
  return false;
}

// Whether the hosts may die. Each place must keep a complete copy: the journal of a host
// that comes back, or the backup on another host. This must hold in the coordinator's
// view and in fact.
bool LastingHosts::MayDie(const Hosts& dying, Fate fate) const {
  const CoordinatorView view = parts_.control.View();
  if (!parts_.control.IsUp() || view.jobs.size() != 1) return false;
  const JobView& job = view.jobs.front();
  if (job.IsOver() || job.backups.empty()) return false;
  // The last decision is lost if both die.
  const bool is_homecoming =
      job.reason.find("coordinator came back") != std::string::npos;
  if (parts_.needs_decisions && (is_homecoming || job.phase == JobPhase::kWaiting))
    return false;
  for (const BackupView& place : job.backups) {
    const ServerProcess* server = nullptr;
    for (const ServerProcess* one : Serving()) {
      if (one->Is(place.server)) server = one;
    }
    if (server == nullptr) {  // a stand-in takes the place over, or a server restores it
      const bool comes_back = !is_alone_ && fate == Fate::kComesBack;
      if (!comes_back || !place.journal_lost.empty()) return false;
      continue;
    }
    const auto host = HostOf(server->first_shard());
    if (!host || !dying.contains(*host)) continue;
    const bool has_journal = fate == Fate::kComesBack && place.journal_lost.empty();
    const bool has_backup =
        place.lost.empty() && HoldsBackup(server->first_shard(), place.holder, dying);
    // The place needs its journal or its backup.
    if (!has_journal && !has_backup) return false;
  }
  return std::ranges::any_of(parts_.reference.blocks(), [&](const BlockRange&) {
    return parts_.reference.version(0) > 0;
  });
}

// Whether every place has a server. Another failure during a takeover would be one too
// many.
bool LastingHosts::AllAreKnown() const {
  const std::vector<ServerProcess*> serving = Serving();
  for (const JobView& job : parts_.control.View().jobs) {
    if (job.phase == JobPhase::kWaiting || job.backups.empty()) return false;
    for (const BackupView& place : job.backups) {
      const auto is_it = [&](const ServerProcess* one) { return one->Is(place.server); };
      if (std::ranges::none_of(serving, is_it)) return false;
    }
  }
  return true;
}

void LastingHosts::Kill(const Hosts& dying, Fate fate) {
  if (crashes_ >= kMaxCrashes || !MayDie(dying, fate)) return;
  ++crashes_;
  if (fate == Fate::kIsGone) is_alone_ = true;
  for (const size_t which : dying) {
    Host& host = *hosts_[which];
    host.is_gone = host.is_gone || fate == Fate::kIsGone;
    for (Node& node : host.nodes) {
      const bool serves = node.process->is_configured();
      if (serves && OneIn(parts_.random, 2)) BreakCables(*node.process);
      node.process->Kill();
      dead_.push_back(std::move(node.process));
      unused_.push_back(std::move(node.unused));
    }
    host.nodes.clear();
    const auto back = absl::Milliseconds(Between(parts_.random, 1, 3000));
    if (fate == Fate::kIsGone) {
      parts_.events.After(back, [this, engines = host.engines] { Add(engines); });
    } else {
      parts_.events.After(back, [this, which] { Start(which); });
    }
  }
}

void LastingHosts::KillSome() {
  Random& random = parts_.random;
  Hosts up;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (!hosts_[i]->nodes.empty()) up.insert(i);
  }
  if (up.empty()) return;
  Hosts dying;
  const auto how = random() % 4;
  for (const size_t one : up) {
    if (how == 0) dying.insert(one);
  }
  // Two hosts, of which one may hold the other's backup, or a single one.
  for (int i = how == 1 ? 2 : 1; i > 0 && how > 0; --i) {
    auto one = up.begin();
    std::advance(one, static_cast<long>(random() % up.size()));
    dying.insert(*one);
  }
  const bool is_gone = how == 2 && OneIn(random, 2);
  const bool crashes = how == 3 && OneIn(random, 2) && !parts_.needs_decisions;
  const int before = crashes_;
  const auto outputs = std::uniform_int_distribution<int>(0, 12)(random);
  const auto downtime = absl::Milliseconds(Between(random, 1, 2000));
  if (crashes) {
    // Backups do not survive a crash of the coordinator, so journals must be there.
    const CoordinatorView view = parts_.control.View();
    for (const JobView& job : view.jobs) {
      for (const BackupView& place : job.backups) {
        if (!place.journal_lost.empty()) return;
      }
    }
    if (!AllAreKnown() || is_alone_) return;
  }
  Kill(dying, is_gone ? Fate::kIsGone : Fate::kComesBack);
  if (crashes && crashes_ > before) parts_.control.CrashAfter(outputs, downtime);
}

// Fills the disk of a host. The journals on it end. Backups that the host holds are in
// memory, and stay.
void LastingHosts::FillDisk(size_t which) {
  Host& host = *hosts_[which];
  if (host.nodes.empty() || host.disk.is_full) return;
  host.disk.is_full = true;
  for (const Node& node : host.nodes) {
    if (node.process->is_configured()) node.process->EndJournal();
  }
  // All hosts die about when the coordinator learns of it.
  if (OneIn(parts_.random, 2)) {
    parts_.events.After(absl::Milliseconds(Between(parts_.random, 0, 6)), [this] {
      Hosts up;
      for (size_t i = 0; i < hosts_.size(); ++i) {
        if (!hosts_[i]->nodes.empty()) up.insert(i);
      }
      Kill(up, Fate::kComesBack);
    });
  }
  parts_.events.After(absl::Milliseconds(Between(parts_.random, 1, 800)), [this, which] {
    hosts_[which]->disk.is_full = false;
    for (const Node& node : hosts_[which]->nodes) node.process->TryJournal();
  });
}

void LastingHosts::PlanCrashes() {
  Random& random = parts_.random;
  for (uint64_t failures = random() % 4; failures > 0; --failures) {
    const size_t which = random() % places();
    parts_.progress.Somewhere(absl::Milliseconds(400 << (random() % 4)),
                              [=, this] { FillDisk(which); });
  }
  for (int tries = 0; tries < 12; ++tries) {
    parts_.progress.Somewhere(absl::Milliseconds(400 << (random() % 5)),
                              [this] { KillSome(); });
  }
  // Only the coordinator crashes: backups are made again, and journals continue.
  if (!OneIn(random, 3)) return;
  const auto downtime = absl::Milliseconds(Between(random, 1, 2000));
  const auto outputs = std::uniform_int_distribution<int>(0, 12)(random);
  parts_.progress.Somewhere(absl::Milliseconds(800), [=, this] {
    if (AllAreKnown()) parts_.control.CrashAfter(outputs, downtime);
  });
}

}  // namespace syncline::sim
