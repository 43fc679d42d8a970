// Pushes the progress of a job to its TrainJob, on a thread of its own, every five
// seconds at most, as long as the job runs. Nothing that goes wrong here concerns the
// job.
//
//   TrainJobPusher pusher({.target = *target, .progress = {.job = "bert"},
//                          .status = …, .report = …}, Say);
//   ... the workers have succeeded ...
//   pusher.Finish();
//
// Thread safety: the owner's thread calls the methods; the callbacks are called on the
// pusher's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cli/trainjob/client.h"
#include "cli/trainjob/progress.h"
#include "cli/trainjob/target.h"
#include "comm/base/env.h"
#include "comm/base/steady_condition.h"
#include "comm/rpc/tls.h"

namespace syncline {

// When the next push is due: pure, and so are its tests.
class PushPace {
 public:
  explicit PushPace(absl::Duration every) : every_(every) {}

  // Takes the result of a push, and the pause that the peer asked for.
  void Take(bool has_failed, absl::Duration retry_after);
  // Returns the pause before the next push.
  absl::Duration Pause() const { return pause_; }

 private:
  static constexpr absl::Duration kLongest = absl::Minutes(1);
  static constexpr absl::Duration kLongestAsked = absl::Minutes(5);

  const absl::Duration every_;
  int failures_ = 0;  // in a row
  absl::Duration pause_ = every_;
};

class TrainJobPusher {
 public:
  struct Options {
    TrainJobTarget target = {};
    TrainJobProgress::Options progress = {};
    // Returns the coordinator's status, or nullopt if it does not answer at once: the
    // end of the pusher waits for this.
    std::function<std::optional<std::string>()> status = {};
    // Reports how many pushes of this process have succeeded and have failed so far.
    std::function<void(const std::string& job, uint64_t sent, uint64_t failed)> report =
        {};
    absl::Duration every = absl::Seconds(5);
    absl::Duration limit = absl::Seconds(5);       // of a push
    absl::Duration last_limit = absl::Seconds(2);  // of the push of the end
    // A status without news is pushed after this time.
    absl::Duration repeat = absl::Minutes(1);
  };

  // Calls `say` with lines for the user.
  TrainJobPusher(Options options, std::function<void(const std::string&)> say);
  ~TrainJobPusher();

  // The workers have succeeded. Pushes this, whenever the last push was, and waits for
  // it, for at most `last_limit` and the time of a status. REQUIRES: called once.
  void Finish() ABSL_LOCKS_EXCLUDED(mutex_);

  // Cuts a push that is under way, and begins no other. Returns at once; the end of this
  // object waits for what the thread still does.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for the next push. Returns false if there is none.
  bool AwaitTurn() ABSL_LOCKS_EXCLUDED(mutex_);
  void PushOnce(bool is_last) ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(const absl::Status& pushed, absl::Duration retry_after);

  const Options options_;
  const std::function<void(const std::string&)> say_;
  const SteadyClock clock_;
  TrainJobClient client_;

  // Used by its thread only.
  TrainJobProgress progress_;
  PushPace pace_;
  uint64_t sent_ = 0;
  uint64_t failed_ = 0;
  bool has_said_failure_ = false;
  bool has_said_success_ = false;
  std::string news_;  // that were pushed last
  absl::Duration pushed_at_ = {};

  absl::Mutex mutex_;
  SteadyCondition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last, since it uses all the others
};

// Returns a pusher for the job of a launcher, or null without a TrainJob. Variables that
// are wrong are said, and then there is none.
std::unique_ptr<TrainJobPusher> MakeTrainJobPusher(
    const std::string& coordinator, const TlsOptions& tls,
    const TrainJobProgress::Options& job,
    const std::function<void(const std::string&)>& say);

}  // namespace syncline
