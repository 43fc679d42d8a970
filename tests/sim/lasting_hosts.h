// Servers whose jobs have journals and backups (ADR 38): hosts with disks, each with a server
// and the nodes that it starts for other places. Hosts die, alone, two at once or all, and
// come back with what their disks had synced, or never; disks are full for a while; the
// coordinator dies meanwhile. No more dies than the job is to outlive.
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
    std::vector<uint32_t> engines;  // of each host
    std::string job;
    bool needs_decisions = false;  // which die with coordinator and server
    Fault fault = Fault::kNone;
    // The parts that all servers have.
    std::function<ServerProcess::Parts(Disk& unused, uint32_t engines)> parts_of;
    std::function<void()> on_new_process;
  };
  explicit LastingHosts(Parts parts);

  // That serve the places, in their order.
  std::vector<ServerProcess*> Serving() const;
  size_t places() const { return parts_.engines.size(); }
  int crashes() const { return crashes_; }
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
    std::vector<Node> nodes = {};  // the first one is its own server; none: it is down
    bool is_gone = false;          // for good
  };
  using Hosts = std::set<size_t>;

  void Add(uint32_t engines);
  void Start(size_t host);
  void StartNode(size_t host, const HoldBackup& hold);
  // What is on its way from that one to its backup is lost.
  void BreakCables(const ServerProcess& server);
  std::optional<size_t> HostOf(uint32_t first_shard) const;
  bool HoldsBackup(uint32_t first_shard, const Hosts& others_than) const;
  enum class Fate { kComesBack, kIsGone };
  bool MayDie(const Hosts& hosts, Fate fate) const;
  void Kill(const Hosts& hosts, Fate fate);
  void KillSome();
  void FillDisk(size_t host);
  bool AllAreKnown() const;

  Parts parts_;
  std::vector<std::unique_ptr<Host>> hosts_;
  bool is_alone_ = false;  // since one has gone for good: until all places are served
  int crashes_ = 0;
  std::vector<std::unique_ptr<ServerProcess>> dead_;  // events may still point to them
  std::vector<std::unique_ptr<Disk>> unused_;
};

}  // namespace syncline::sim
