// The metrics of a Syncline process (docs: README.md of this folder), registered once and
// updated through plain calls: what engines count for each message is an atomic addition
// (job_traffic.h), the histogram one short lock per step. What only a coordinator knows is
// in job_metrics.h.
//
//   prometheus::Registry registry;
//   Metrics metrics(registry);
//   metrics.NameJob(7, "resnet");
//   metrics.SetStep(7, 120);      // syncline_step{job_name="resnet"} 120
//   metrics.TrafficOf(7)->CountPush(PushResult::kCounted, payload.size());
//   metrics.Refresh();            // before a scrape: takes over what was counted there
//
// What is said of a job that has no name here, or not any more, changes nothing.
//
// Thread-safe. The registry is borrowed and must outlive the Metrics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/time/time.h"
#include "comm/base/step_phases.h"
#include "comm/transport/transport.h"
#include "server/admin/job_traffic.h"

namespace prometheus {
class Registry;
}

namespace syncline {

class Metrics {
 public:
  explicit Metrics(prometheus::Registry& registry);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Of a server: what engines count of a job, whose series begin with this. Never null;
  // nobody reads that of a job that has no name here.
  std::shared_ptr<JobTraffic> TrafficOf(uint32_t job);
  // Takes over what engines have counted.
  void Refresh();

  // Of a server: what an engine's connections to other hosts have sent and still hold, by
  // class; `before` is what it said last, nothing at first.
  void CountWire(const TrafficCounts& before, const TrafficCounts& now);

  // At the data plane's door.
  void CountTurnedAway(Refusal refusal);

  // Begins the series of `job`, under the label job_name. A job of the same name that was
  // there before is forgotten.
  void NameJob(uint32_t job, std::string_view name);
  // Ends them, and those of its workers.
  void ForgetJob(uint32_t job);

  // The furthest step that was applied, the membership's number, and how many members it
  // has.
  void SetStep(uint32_t job, uint64_t step);
  void SetEpoch(uint32_t job, uint64_t epoch);
  void SetMembers(uint32_t job, size_t members);

  // Of a server: what its jobs may take together, and what they take as planned.
  void SetServerMemory(uint64_t budget_bytes, uint64_t placed_bytes);

  // The last one of this run.
  struct Checkpoint {
    bool is_there = false;
    uint64_t step = 0;
    uint64_t bytes = 0;
    absl::Duration took = {};
    absl::Duration age = {};
  };
  void SetCheckpoint(uint32_t job, const Checkpoint& latest);

  // Of a job whose server journals it.
  struct Journal {
    uint64_t durable_step = 0;
    uint64_t lag_steps = 0;  // from there to the furthest step
    uint64_t bytes = 0;      // written for this run
    uint64_t disk_bytes = 0;
    uint64_t begins_at = 0;  // the step of its last snapshots
    uint64_t snapshots = 0;
    bool has_failed = false;
  };
  void SetJournal(uint32_t job, const Journal& journal);

  // Of a job whose server has a backup in another one's memory.
  struct Backup {
    uint64_t durable_step = 0;
    uint64_t lag_steps = 0;  // from there to the furthest step
  };
  void SetBackup(uint32_t job, const Backup& backup);
  // Of the coordinator: how many servers of the job have none.
  void SetBackupsMissing(uint32_t job, size_t servers);

  // Of the coordinator: how often the job has got over a loss, and how long it stood then,
  // since this process began.
  void SetRecoveries(uint32_t job, std::string_view cause, uint64_t count,
                     absl::Duration took);

  struct Worker {
    absl::Duration heartbeat_age = {};
    double compression = 0;  // of its gradients, against FP32
    double encode_ns = 0;    // per value, where something is compressed
    double decode_ns = 0;
    double residual_ratio = 0;   // norm of what it keeps over that of a gradient
    double diverged_blocks = 0;  // views taken anew since it joined
    double left_out_steps = 0;   // that a quorum made without it
    WorkerPhases phases = {};    // of its present life
  };
  void SetWorker(uint32_t job, uint32_t rank, const Worker& worker);
  // For a worker that left: its series ends.
  void ForgetWorker(uint32_t job, uint32_t rank);

  // Of a server: where the time of the job's steps went since it has the job.
  void SetServerPhases(uint32_t job, const ServerPhases& phases);

  // From the first contribution of a step until its last block was published. REQUIRES:
  // TrafficOf has begun its series; otherwise it changes nothing.
  void ObserveStep(uint32_t job, absl::Duration duration);

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace syncline
