// The servers of a run: their hosts, processes and disks, and the backups that they hold
// of each other. If a host dies, its server and the stand-ins on it die, too, and a spare
// host replaces it.
//
// Thread safety: none.
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
    // Name of a job with journals and backups, and whether its steps need decisions.
    // Empty: the job does not have both.
    std::string lasting = {};
    bool needs_decisions = false;
    // Returns the highest version of the block that any worker has.
    std::function<uint64_t(uint32_t block)> held;
    // A server's process was started, and needs cables to workers.
    std::function<void()> on_new_process;
  };

  explicit ServerHosts(Parts parts);

  // Returns the process that serves the place, or will serve it; null: it is down.
  ServerProcess* at(size_t place) const;
  size_t places() const { return parts_.size.engines.size(); }
  // REQUIRES: AllAreThere().
  const ServerProcess& OwnerOf(uint32_t block) const;
  bool AllAreThere() const;
  // Returns the number of crashes, and of places that were taken from live servers.
  int losses() const {
    return lasting_ ? lasting_->crashes() + lasting_->moves() : crashes_ + moves_;
  }

  // Plans which servers die, and when. They die only after the first step.
  void PlanCrashes(Restarts restarts);

 private:
  // A process, and the host that it dies with.
  struct Placed {
    std::unique_ptr<ServerProcess> process = nullptr;
    int host = -1;
    // For a stand-in: the server whose records it receives, the number of the order that
    // started it, and whether its connection to that server is broken.
    uint32_t server = 0;
    uint32_t order = 0;
    bool has_lost_cable = false;
  };

  ServerProcess::Parts PartsOf(Disk& disk, int host, uint32_t engines);
  void Start(size_t which);
  void StartSpare();
  void StartStandIn(const HoldBackup& hold, int host);
  // Gives the place to the stand-in that this order started, unless it has it already.
  void TakePlace(size_t place, uint32_t order);
  // Applies the moves that the coordinator has made by now.
  void SettleMoves();
  // Buries stand-ins of earlier servers and jobs, and those that were given up.
  void BuryStandIns(size_t place, uint32_t server);
  // Disturbs a takeover: a process dies or a connection breaks.
  void DisturbHandOver(size_t place, uint32_t order);
  bool HasStepped() const;
  void PlanBackups();
  // Kills a server, which restarts with its disk, if its disk has enough for that.
  void Kill(size_t which);
  void Die(size_t which);
  void KillSoon(size_t which, absl::Duration within);
  // Fills a disk for a while, or makes a sync fail, which ends the server.
  void FailDisk(size_t which);
  // Checks that no journal ends before this version, because all journals must have steps
  // in common.
  void CheckPruned(size_t which, uint64_t version);
  // The stand-in that has the place's backup in the coordinator's view; null: none has it.
  // A server must not die before there is one.
  const Placed* BackupOf(size_t place) const;
  Placed* BackupOf(size_t place);
  std::string NameOf(int host) const;
  bool MayDie(int host) const;
  // Kills a host and everything on it for good. Backups take over.
  void KillHost(int host);
  void KillHostOf(size_t place) { KillHost(servers_[place].host); }
  // Breaks the connections to the place's backup, in one direction or in both.
  void LoseBackup(size_t place);
  bool IsEveryPlaceServed() const;
  void CrashCoordinatorOnceReplaced(int outputs);
  void Bury(std::unique_ptr<ServerProcess>& process);

  Parts parts_;
  std::unique_ptr<LastingHosts> lasting_;  // set: replaces what follows
  std::vector<Disk> disks_;                // by place
  std::vector<Placed> servers_;            // by place
  // By place: the one that has the backup and, at times, one that is to replace it.
  std::vector<std::vector<Placed>> stand_ins_;
  std::map<int, std::unique_ptr<ServerProcess>> spares_;  // by host
  std::vector<Placed> former_;                            // they gave up their places
  std::vector<std::unique_ptr<Disk>> memories_;           // of stand-ins and spares
  int hosts_ = 0;
  bool may_crash_ = false;  // servers with journals may die while they write
  int crashes_ = 0;
  int moves_ = 0;
  std::vector<std::unique_ptr<ServerProcess>> dead_;  // events may still point to them
};

}  // namespace syncline::sim
