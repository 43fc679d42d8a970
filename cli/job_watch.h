// Follows, for `syncline run`, what the coordinator reports about a job: from which
// checkpoint it continued, which checkpoints failed, and whether its last step is saved.
//
//   JobWatch watch({.coordinator = "127.0.0.1:7070", .job = {.name = "default"}}, Say);
//   ... the workers are done ...
//   watch.Hurry();
//   while (watch.End() == std::nullopt) { ... }
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/steady_condition.h"
#include "comm/rpc/tls.h"

namespace syncline {

// Derives news about one job from successive statuses (comm/rpc/status_json.h).
//
// Thread safety: none.
class JobNews {
 public:
  struct Options {
    std::string name;
    std::set<int> ranks = {};  // of the workers whose end is awaited
    // Whether checkpoints are known to be scheduled. If false, the first checkpoint shows
    // it.
    bool is_scheduled = false;
    // How long the workers' goodbyes may take to reach the coordinator.
    absl::Duration goodbyes_within = absl::Seconds(10);
  };

  explicit JobNews(Options options) : options_(std::move(options)) {}

  // Called before the workers start. Ignores from now on a job of this name that is at
  // its end: it belongs to an earlier run.
  void Skip(const std::string& status);
  // Takes a new status. Returns lines for the user about what changed.
  std::vector<std::string> Take(const std::string& status);
  bool is_known() const { return is_known_; }
  // Returns the job's outcome according to the last status, or nullopt while more is to
  // come. `since`: time since the workers were done. Fails with Failure::kStateUnusable
  // when the last step is not saved, or when this is not known.
  std::optional<absl::Status> End(absl::Duration since) const;
  // Returns the outcome when the coordinator no longer answers, for the reason `why`.
  absl::Status Unknown(const absl::Status& why) const;
  std::string LastCheckpoint() const;
  // Returns a line to repeat at the end: checkpoints have failed, and the last one is not
  // of the last step. nullopt otherwise.
  std::optional<std::string> Closing() const;

 private:
  bool is_saving() const { return phase_ == "saving"; }
  bool OnlyOthersTrain() const;
  absl::Status Ended() const;

  const Options options_;
  std::optional<uint32_t> skipped_;
  bool is_known_ = false;
  bool is_listed_ = false;  // in the last status
  std::set<int> members_;   // ranks in the last status
  bool was_saving_ = false;
  bool was_saved_ = false;
  std::string phase_;
  std::string reason_;
  uint64_t step_ = 0;
  std::string began_with_;
  uint64_t failed_ = 0;
  std::string error_;
  std::string latest_;
  std::set<uint32_t> ended_journals_;  // servers whose failed journal was reported
};

// News about all jobs of a run. A program may choose the name of its job, and may have
// several.
//
// Thread safety: none.
class RunNews {
 public:
  // With an empty `run_id`, follows only the named job.
  RunNews(const JobNews::Options& job, std::string run_id);

  // The methods of JobNews, for all jobs together.
  void Skip(const std::string& status);
  std::vector<std::string> Take(const std::string& status);
  bool is_known() const;
  // Of several errors, returns the first one by job name.
  std::optional<absl::Status> End(absl::Duration since) const;
  absl::Status Unknown(const absl::Status& why) const;
  std::string LastCheckpoint() const;
  std::vector<std::string> Closing() const;

 private:
  void Find(const std::string& status);

  const JobNews::Options options_;
  const std::string run_id_;
  std::map<std::string, JobNews> jobs_;  // by name
};

// Asks the coordinator for its status periodically, on a thread of its own.
//
// Thread safety: all methods may be called from any thread except its own.
class JobWatch {
 public:
  struct Options {
    std::string coordinator;
    JobNews::Options job;
    std::string run_id = {};  // not empty: also follows other jobs of this run
    TlsOptions tls = {};
    // Which jobs it reports: kAny: any with the name; kNew: none that is at its end when
    // the watch begins.
    enum class Finds { kAny, kNew } finds = Finds::kAny;
    absl::Duration every = absl::Seconds(1);
  };

  // Calls `say` on its own thread.
  JobWatch(const Options& options, std::function<void(const std::string&)> say);
  ~JobWatch();

  // Call when the workers are done: asks at once, and more often from then on.
  void Hurry() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the outcome (JobNews::End). nullopt before a status was received after Hurry,
  // or until the job is at its end.
  std::optional<absl::Status> End() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the latest checkpoint that it has seen, such as "run1-step200", or "none of
  // this run".
  std::string LastCheckpoint() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::string> Closing() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Ask(bool hurries) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::function<void(const std::string&)> say_;
  const SteadyClock clock_;
  RunNews news_;  // used by its thread only
  // Tries since the last answer, counted after Hurry; used by its thread only.
  int unanswered_ = 0;
  std::optional<absl::Duration> hurried_at_;  // used by its thread only

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool hurries_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::string last_checkpoint_ ABSL_GUARDED_BY(mutex_) = "none";
  std::vector<std::string> closing_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last, since it uses all the others
};

}  // namespace syncline
