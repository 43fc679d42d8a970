// A coordinator, its servers and training workers, all in this process.
//
//   Cluster cluster({.servers = 2});
//   Worker first(cluster.Options(0, 2), {.until = Steps(20)});
//   Worker second(cluster.Options(1, 2), {.until = Steps(20)});
//   EXPECT_TRUE(first.End().status.ok());
//
// Thread safety: both classes belong to the thread of the test.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/options.h"
#include "comm/rpc/server.h"
#include "server/service/coordinator_service.h"
#include "server/service/server_node.h"
#include "server/store/memory_store.h"
#include "worker/client/session.h"

namespace syncline::cluster {

struct ClusterOptions {
  uint32_t servers = 2;
  // Servers that a job waits for; 0: as many as are started.
  uint32_t expected_servers = 0;
  absl::Duration failure_timeout = absl::Seconds(20);
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);
  ~Cluster();

  // Returns options of a worker with plain SGD in FP32, whose weights can be predicted.
  SessionOptions Options(uint32_t rank, uint32_t world_size,
                         const std::string& job = "job") const;

  // Starts a server. Returns when the coordinator has accepted it.
  void StartServer();
  void StopServer(size_t server) { nodes_[server]->Stop(); }

  // Updates the job like `syncline update`. Returns the first epoch with the new options.
  absl::StatusOr<uint64_t> Update(const std::string& job, const OptionValues& optimizer,
                                  const NamedOptions& mode = {});

  CoordinatorView View() { return service_->View(); }
  // Waits until `condition` holds for the coordinator's view. Returns false after a
  // minute.
  bool Await(const std::function<bool(const CoordinatorView&)>& condition);

 private:
  const ClusterOptions options_;
  MemoryStore store_;
  std::unique_ptr<CoordinatorService> service_;
  RunningServer running_;
  std::vector<std::unique_ptr<ServerNode>> nodes_;
};

// Returns whether a worker ends before this step.
using Until = std::function<bool(uint64_t step)>;
Until Steps(uint64_t steps);

struct WorkerPlan {
  Until until = nullptr;
  bool vanish = false;  // ends without Leave, like a process that dies
  std::vector<uint64_t> shape = {1000};
  float gradient = 0;  // 0: rank + 1
  // The worker leaves once the job has this number of members; 0: at once.
  uint32_t last_members = 0;
};

struct WorkerEnd {
  absl::Status status;
  // The first weight by the number of the job's steps, for steps of this worker.
  std::map<uint64_t, float> weight_after;
  bool uniform = true;  // all weights of the tensor were the same at each step
  uint32_t members = 0;
};

// Declares one tensor of zeros and trains, on a thread of its own.
class Worker {
 public:
  Worker(const SessionOptions& options, const WorkerPlan& plan);
  ~Worker();  // waits for its end

  // Waits until it has done `steps` steps itself, or has ended. Returns false after a
  // minute.
  bool AwaitSteps(uint64_t steps) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for its end, and returns the result.
  const WorkerEnd& End();

 private:
  absl::Status Train(const SessionOptions& options, const WorkerPlan& plan)
      ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  uint64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  WorkerEnd end_;  // used by the thread; by the test after the thread has ended
  std::thread thread_;
};

}  // namespace syncline::cluster
