// The servers of a run: processes, their disks, and the backups that they hold of each
// other. Server i's backup is on the host of the one after it, and dies with that host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tests/sim/random_job.h"
#include "tests/sim/server_process.h"
#include "tests/sim/simulation.h"

namespace syncline::sim {

inline constexpr int kServers = 2;

class ServerHosts {
 public:
  struct Parts {
    EventQueue& events;
    InprocNetwork& network;
    ControlPlane& control;
    Reference& reference;
    Traffic& traffic;
    const CodecRegistry& codecs;
    Random& random;
    absl::Duration heartbeat_interval;
    Fault fault = Fault::kNone;
    // The highest version of that block which any worker has.
    std::function<uint64_t(uint32_t block)> held;
    // A server's process is new: it has cables to workers.
    std::function<void()> on_new_process;
  };

  explicit ServerHosts(Parts parts);

  // Null while it is down.
  ServerProcess* at(size_t which) const { return servers_[which].get(); }
  bool AllAreThere() const;
  int crashes() const { return crashes_; }

  // What dies and when, after steps were made.
  void PlanCrashes(Restarts restarts);

 private:
  using Processes = std::array<std::unique_ptr<ServerProcess>, kServers>;

  ServerProcess::Parts PartsOf(Disk& disk);
  void Start(size_t which);
  void StartStandIn(const HoldBackup& hold);
  bool HasStepped() const;
  void PlanBackups();
  // It comes back with its disk.
  void Kill(size_t which);
  // It does not, nor does anything else on its host: its backup takes over.
  void KillForGood(size_t which);
  // The connection to its backup breaks, or both directions of it.
  void LoseBackup(size_t which);
  void CrashCoordinatorOnceReplaced(size_t which, int outputs);
  void Bury(std::unique_ptr<ServerProcess>& process);

  Parts parts_;
  std::array<Disk, kServers> disks_;
  Processes servers_;
  Processes stand_ins_;  // by whom they are for
  std::array<Disk, kServers> memories_;
  std::array<bool, kServers> lost_backup_ = {};
  int crashes_ = 0;
  std::vector<std::unique_ptr<ServerProcess>> dead_;  // events may still point to them
};

}  // namespace syncline::sim
