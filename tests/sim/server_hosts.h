// The servers of a run: their hosts, processes and disks, and the backups that they hold of
// each other. With a host die its server, and the stand-ins on it; a spare host comes in its
// place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/lasting_hosts.h"
#include "tests/sim/random_job.h"
#include "tests/sim/run_progress.h"
#include "tests/sim/server_process.h"
#include "tests/sim/simulation.h"

namespace syncline::sim {

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
    RunProgress& progress;
    const RunSize& size;
    absl::Duration heartbeat_interval;
    Fault fault = Fault::kNone;
    // Of a job with journals and backups: its name; empty: it has not both.
    std::string lasting = {};
    bool needs_decisions = false;  // likewise
    // The highest version of that block which any worker has.
    std::function<uint64_t(uint32_t block)> held;
    // A server's process is new: it has cables to workers.
    std::function<void()> on_new_process;
  };

  explicit ServerHosts(Parts parts);

  // That serves the place, or is to; null while it is down.
  ServerProcess* at(size_t place) const;
  size_t places() const { return parts_.size.engines.size(); }
  // REQUIRES: AllAreThere().
  const ServerProcess& OwnerOf(uint32_t block) const;
  bool AllAreThere() const;
  int crashes() const { return lasting_ ? lasting_->crashes() : crashes_; }

  // What dies and when, after steps were made.
  void PlanCrashes(Restarts restarts);

 private:
  // A process, and the host that it dies with.
  struct Placed {
    std::unique_ptr<ServerProcess> process = nullptr;
    int host = -1;
    uint32_t server = 0;          // of a stand-in: whose records it takes
    bool has_lost_cable = false;  // likewise, to that one
  };

  ServerProcess::Parts PartsOf(Disk& disk, int host, uint32_t engines);
  void Start(size_t which);
  void StartSpare();
  void StartStandIn(const HoldBackup& hold, int host);
  bool HasStepped() const;
  void PlanBackups();
  // It comes back with its disk.
  void Kill(size_t which);
  void Die(size_t which);
  void KillSoon(size_t which, absl::Duration within);
  // Its disk is full, and has room again; or it fails a sync, which ends the server.
  void FailDisk(size_t which);
  // All journals have steps in common, the version and what follows.
  void CheckPruned(size_t which, uint64_t version);
  // As the coordinator has it: no server dies before its backup is there.
  bool HasBackup(size_t place) const;
  bool MayDie(int host) const;
  // It does not come back, nor does anything on it: backups take over.
  void KillHost(int host);
  void KillHostOf(size_t place) { KillHost(servers_[place].host); }
  // The connections to its backup break, or both directions of them.
  void LoseBackup(size_t place);
  bool IsEveryPlaceServed() const;
  void CrashCoordinatorOnceReplaced(int outputs);
  void Bury(std::unique_ptr<ServerProcess>& process);

  Parts parts_;
  std::unique_ptr<LastingHosts> lasting_;                 // in place of what follows
  std::vector<Disk> disks_;                               // by place
  std::vector<Placed> servers_;                           // by place
  std::vector<Placed> stand_ins_;                         // by place: the latest
  std::map<int, std::unique_ptr<ServerProcess>> spares_;  // by host
  std::vector<std::unique_ptr<Disk>> memories_;           // of stand-ins, and of spares
  int hosts_ = 0;
  bool may_crash_ = false;  // servers with journals, in the middle of what they write
  int crashes_ = 0;
  std::vector<std::unique_ptr<ServerProcess>> dead_;  // events may still point to them
};

}  // namespace syncline::sim
