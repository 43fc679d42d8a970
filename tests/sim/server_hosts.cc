#include "tests/sim/server_hosts.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncline::sim {

ServerHosts::ServerHosts(Parts parts) : parts_(std::move(parts)) {
  for (size_t which = 0; which < kServers; ++which) Start(which);
}

ServerProcess::Parts ServerHosts::PartsOf(Disk& disk) {
  return {.events = parts_.events,
          .network = parts_.network,
          .control = parts_.control,
          .reference = parts_.reference,
          .traffic = parts_.traffic,
          .codecs = parts_.codecs,
          .heartbeat_interval = parts_.heartbeat_interval,
          .disk = disk,
          .seed = parts_.random(),
          .on_restored =
              [this](uint32_t block, uint64_t version) {
                parts_.reference.RolledBack(block, version, parts_.held(block));
              },
          .on_hold = [this](const HoldBackup& hold) { StartStandIn(hold); },
          .fault = parts_.fault};
}

void ServerHosts::Start(size_t which) {
  servers_[which] = std::make_unique<ServerProcess>(PartsOf(disks_[which]),
                                                    absl::StrCat("server", which));
  parts_.on_new_process();
}

void ServerHosts::StartStandIn(const HoldBackup& hold) {
  size_t which = 0;
  while (!servers_[which]->Is(hold.server)) ++which;
  ServerProcess::Parts parts = PartsOf(memories_[which]);
  parts.stand_in = {hold.job, hold.server};
  Bury(stand_ins_[which]);  // of the job before, should it have begun anew
  stand_ins_[which] =
      std::make_unique<ServerProcess>(std::move(parts), absl::StrCat("stand_in", which));
  if (!OneIn(parts_.random, 2)) return;
  const double bytes_per_second = 125e3 * std::pow(10, Between(parts_.random, 0, 3));
  parts_.network.SetRate(servers_[which]->address(), stand_ins_[which]->address(),
                         bytes_per_second);
}

bool ServerHosts::AllAreThere() const {
  return std::ranges::all_of(servers_, [](const auto& server) {
    return server != nullptr && server->is_configured();
  });
}

bool ServerHosts::HasStepped() const {
  for (uint32_t block = 0; block < parts_.reference.blocks().size(); ++block) {
    if (parts_.reference.version(block) > 0) return true;
  }
  return false;
}

void ServerHosts::Bury(std::unique_ptr<ServerProcess>& process) {
  if (process == nullptr) return;
  process->Kill();
  dead_.push_back(std::move(process));
}

void ServerHosts::Kill(size_t which) {
  // Before the coordinator knows of the journal there is nothing to come back to.
  if (servers_[which] == nullptr || disks_[which].synced == 0 || !HasStepped()) return;
  ++crashes_;
  Bury(servers_[which]);
  parts_.events.After(absl::Milliseconds(Between(parts_.random, 1, 3000)),
                      [this, which] { Start(which); });
}

void ServerHosts::KillForGood(size_t which) {
  const bool has_backup = stand_ins_[which] != nullptr && !lost_backup_[which];
  if (crashes_ > 0 || !has_backup || !HasStepped()) return;
  ++crashes_;
  // What was on its way is lost, or arrives.
  if (OneIn(parts_.random, 2)) {
    parts_.network.Break(servers_[which]->address(), stand_ins_[which]->address());
  }
  Bury(servers_[which]);
  Bury(stand_ins_[(which + 1) % kServers]);
  servers_[which] = std::move(stand_ins_[which]);
  parts_.on_new_process();
  if (OneIn(parts_.random, 2)) {
    const auto outputs = std::uniform_int_distribution<int>(0, 12)(parts_.random);
    CrashCoordinatorOnceReplaced(which, outputs);
  }
}

// Before that a second death is one too many.
void ServerHosts::CrashCoordinatorOnceReplaced(size_t which, int outputs) {
  for (const JobView& job : parts_.control.View().jobs) {
    for (const BackupView& backup : job.backups) {
      if (!servers_[which]->Is(backup.server)) continue;
      return parts_.control.CrashAfter(
          outputs, absl::Milliseconds(Between(parts_.random, 1, 2000)));
    }
  }
  parts_.events.After(absl::Milliseconds(1), [this, which, outputs] {
    CrashCoordinatorOnceReplaced(which, outputs);
  });
}

void ServerHosts::LoseBackup(size_t which) {
  if (crashes_ > 0 || stand_ins_[which] == nullptr || !HasStepped()) return;
  if (parts_.fault == Fault::kStaleBackup) {
    servers_[which]->GoOnWithoutBackup();
    parts_.events.After(absl::Milliseconds(Between(parts_.random, 5, 200)),
                        [this, which] { KillForGood(which); });
    return;
  }
  lost_backup_[which] = true;
  const std::string server = servers_[which]->address();
  const std::string backup = stand_ins_[which]->address();
  parts_.network.Break(server, backup);
  if (OneIn(parts_.random, 2)) parts_.network.Break(backup, server);
}

void ServerHosts::PlanBackups() {
  Random& random = parts_.random;
  const size_t dies = random() % kServers;
  for (int tries = 0; tries < 8 && parts_.fault == Fault::kStaleBackup; ++tries) {
    parts_.events.After(absl::Milliseconds(Between(random, 20, 600)),
                        [=, this] { LoseBackup(dies); });
  }
  if (parts_.fault == Fault::kStaleBackup) return;
  if (OneIn(random, 3)) {
    const size_t loses = random() % kServers;
    parts_.events.After(absl::Milliseconds(Between(random, 20, 300)),
                        [=, this] { LoseBackup(loses); });
  }
  for (int tries = 0; tries < 8; ++tries) {
    parts_.events.After(absl::Milliseconds(Between(random, 20, 400 << (random() % 4))),
                        [=, this] { KillForGood(dies); });
  }
}

// One of them, or all at once; some of them over and over.
void ServerHosts::PlanCrashes(Restarts restarts) {
  if (restarts == Restarts::kBackups) return PlanBackups();
  Random& random = parts_.random;
  for (uint64_t crashes = 1 + random() % 4; crashes > 0; --crashes) {
    const auto when = absl::Milliseconds(Between(random, 20, 400 << (random() % 4)));
    const bool all = OneIn(random, 4);
    const size_t which = random() % kServers;
    parts_.events.After(when, [=, this] {
      for (size_t i = 0; i < kServers; ++i) {
        if (all || i == which) Kill(i);
      }
    });
  }
}

}  // namespace syncline::sim
