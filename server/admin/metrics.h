// The metrics of a Syncline process; README.md of this folder describes them. They are
// registered once and updated through plain calls. Counting a message is an atomic
// addition (job_traffic.h), and the histogram takes one short lock in each step.
// job_metrics.h has what only a coordinator knows.
//
//   prometheus::Registry registry;
//   Metrics metrics(registry);
//   metrics.NameJob(7, "resnet");
//   metrics.SetStep(7, 120);      // syncline_step{job_name="resnet"} 120
//   metrics.TrafficOf(7)->CountPush(PushResult::kCounted, payload.size());
//   metrics.Refresh();            // before a scrape: copies the counts of engines
//
// Calls about a job that has no name here, or was forgotten, have no effect.
//
// Thread safety: any thread. The registry must outlive this object.
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

  // On a server: returns the counts of a job for engines, and begins the job's series.
  // Never null. If the job has no name here, the counts are not shown.
  std::shared_ptr<JobTraffic> TrafficOf(uint32_t job);
  // Copies what engines have counted.
  void Refresh();

  // On a server: counts what an engine's connections to other hosts have sent, by class,
  // and what they still hold. `before`: the previous `now` of that engine, initially
  // empty.
  void CountWire(const TrafficCounts& before, const TrafficCounts& now);

  // Counts a refused connection of the data plane.
  void CountTurnedAway(Refusal refusal);

  // Begins the series of `job`, with the label job_name. Forgets an earlier job of the
  // same name.
  void NameJob(uint32_t job, std::string_view name);
  // Ends the series of the job and of its workers.
  void ForgetJob(uint32_t job);

  // Sets the highest step that was applied, the epoch, and the number of members.
  void SetStep(uint32_t job, uint64_t step);
  void SetEpoch(uint32_t job, uint64_t epoch);
  void SetMembers(uint32_t job, size_t members);

  // On a server: sets the memory that its jobs may use together, and what they use as
  // planned.
  void SetServerMemory(uint64_t budget_bytes, uint64_t placed_bytes);

  // The last checkpoint of this run.
  struct Checkpoint {
    bool is_there = false;
    uint64_t step = 0;
    uint64_t bytes = 0;
    absl::Duration took = {};
    absl::Duration age = {};
  };
  void SetCheckpoint(uint32_t job, const Checkpoint& latest);

  // On a server that keeps a journal of the job.
  struct Journal {
    uint64_t durable_step = 0;
    uint64_t lag_steps = 0;  // from there to the highest step
    uint64_t bytes = 0;      // written for this run
    uint64_t disk_bytes = 0;
    uint64_t begins_at = 0;  // the step of its last snapshots
    uint64_t snapshots = 0;
    bool has_failed = false;
  };
  void SetJournal(uint32_t job, const Journal& journal);

  // On a server whose backup of the job is in another server's memory.
  struct Backup {
    uint64_t durable_step = 0;
    uint64_t lag_steps = 0;  // from there to the highest step
  };
  void SetBackup(uint32_t job, const Backup& backup);
  // On the coordinator: sets how many servers of the job have no backup.
  void SetBackupsMissing(uint32_t job, size_t servers);

  // On the coordinator: sets how often the job has recovered from a loss since this
  // process began, and how long it stood still then.
  void SetRecoveries(uint32_t job, std::string_view cause, uint64_t count,
                     absl::Duration took);

  struct Worker {
    absl::Duration heartbeat_age = {};
    double compression = 0;  // of its gradients, compared with FP32
    double encode_ns = 0;    // per value, if anything is compressed
    double decode_ns = 0;
    double residual_ratio = 0;   // norm of the residual over the norm of a gradient
    double diverged_blocks = 0;  // views fetched again since it joined
    double left_out_steps = 0;   // steps that a quorum made without it
    double window_fill = 0;      // of its fullest way to a shard
    WorkerPhases phases = {};    // of its present process
  };
  void SetWorker(uint32_t job, uint32_t rank, const Worker& worker);
  // Ends the series of a worker that has left.
  void ForgetWorker(uint32_t job, uint32_t rank);

  // On a server: sets where the time of the job's steps went since the server has the
  // job.
  void SetServerPhases(uint32_t job, const ServerPhases& phases);

  // On a server: sets what an engine thread, the server's number `shard`, has of the job.
  struct Shard {
    double step_seconds = 0;  // in which it worked on steps, so far
    double window_fill = 0;   // of its fullest way to a worker
  };
  void SetShard(uint32_t job, uint32_t shard, const Shard& now);

  // Adds the time from the first contribution of a step until its last block made the
  // step. REQUIRES: TrafficOf has begun the job's series; otherwise this has no effect.
  void ObserveStep(uint32_t job, absl::Duration duration);

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace syncline
