// Servers of a job with journals and backups (ADR 38). Each host has a disk, a server,
// and the nodes that this server starts for other places. Hosts die, alone, two at once
// or all of them. They come back with what their disks had synced, or never. Disks are
// full for a while, and the coordinator may die meanwhile. No more dies at once than the
// job must survive.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/random_job.h"
#include "tests/sim/run_progress.h"
#include "tests/sim/server_process.h"
#include "tests/sim/simulation.h"

namespace syncline::sim {

class LastingHosts {
 public:
  struct Parts {
    EventQueue& events;
    InprocNetwork& network;
    ControlPlane& control;
    Reference& reference;
    Random& random;
    RunProgress& progress;
    std::vector<uint32_t> engines;  // number of engines of each host
    std::string job;
    // The job's steps need decisions, which are lost if coordinator and server die.
    bool needs_decisions = false;
    Fault fault = Fault::kNone;
    // Returns the parts that all servers have.
    std::function<ServerProcess::Parts(Disk& unused, uint32_t engines)> parts_of;
    std::function<void()> on_new_process;
  };
  explicit LastingHosts(Parts parts);

  // Returns the servers that serve the places, in the order of the places.
  std::vector<ServerProcess*> Serving() const;
  size_t places() const { return parts_.engines.size(); }
  int crashes() const { return crashes_; }
  int moves() const { return moves_; }
  void PlanCrashes();

 private:
  struct Node {
    std::unique_ptr<ServerProcess> process = nullptr;
    std::unique_ptr<Disk> unused = std::make_unique<Disk>();
  };
  struct Host {
    std::string name = {};
    uint32_t engines = 1;
    HostDisk disk = {};
    std::vector<Node> nodes = {};  // its own server, then other nodes; empty: it is down
    bool is_gone = false;          // it never comes back
  };
  using Hosts = std::set<size_t>;

  void Add(uint32_t engines);
  void Start(size_t host);
  void StartNode(size_t host, const HoldBackup& hold);
  // Handles that a stand-in has the place: the process that served it gives it up.
  void TakePlace(uint32_t first_shard);
  // Disturbs host `to` while it takes the place over from a live server: a process dies.
  void DisturbHandOver(size_t to, uint32_t first_shard);
  // Loses the records under way from this server to its backup.
  void BreakCables(const ServerProcess& server);
  std::optional<size_t> HostOf(uint32_t first_shard) const;
  // Whether one of the others has the place's backup. `holder` is BackupView's: another
  // host may have a copy that is not complete yet.
  bool HoldsBackup(uint32_t first_shard, const std::string& holder,
                   const Hosts& others_than) const;
  enum class Fate { kComesBack, kIsGone };
  bool MayDie(const Hosts& hosts, Fate fate) const;
  void Kill(const Hosts& hosts, Fate fate);
  void KillSome();
  void FillDisk(size_t host);
  bool AllAreKnown() const;

  Parts parts_;
  std::vector<std::unique_ptr<Host>> hosts_;
  bool is_alone_ = false;  // a host is gone for good, and places may lack a server
  int crashes_ = 0;
  int moves_ = 0;
  std::vector<std::unique_ptr<ServerProcess>> dead_;  // events may still point to them
  std::vector<std::unique_ptr<Disk>> unused_;
};

}  // namespace syncline::sim
