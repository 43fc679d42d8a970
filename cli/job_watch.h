// What `syncline run` knows of its job from the coordinator: what it began with, which
// checkpoints failed, and whether its last step is saved.
//
//   JobWatch watch({.coordinator = "127.0.0.1:7070", .job = {.name = "default"}}, Say);
//   ... the workers are done ...
//   watch.Hurry();
//   while (watch.End() == std::nullopt) { ... }
#pragma once

#include <cstdint>
#include <functional>
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

// News of one job, from one status after the other (comm/rpc/status_json.h).
//
// Thread safety: none.
class JobNews {
 public:
  struct Options {
    std::string name;
    std::set<int> ranks = {};  // of the workers whose end is awaited
    // What is known beforehand; otherwise it shows by the first checkpoint.
    bool is_scheduled = false;
    // So long may their goodbyes be on their way.
    absl::Duration goodbyes_within = absl::Seconds(10);
  };

  explicit JobNews(Options options) : options_(std::move(options)) {}

  // Before the workers start: a job of that name that is at its end is that of another run.
  void Skip(const std::string& status);
  // Lines about what has changed.
  std::vector<std::string> Take(const std::string& status);
  bool is_known() const { return is_known_; }
  // By the last status, so long after the workers were done; nothing while more is to come.
  // Not OK (Failure::kStateUnusable) when its last step is not saved, or not known to be.
  std::optional<absl::Status> End(absl::Duration since) const;
  // When the coordinator does not answer any more.
  absl::Status Unknown(const absl::Status& why) const;
  std::string LastCheckpoint() const;

 private:
  bool is_saving() const { return phase_ == "saving"; }
  bool OnlyOthersTrain() const;
  absl::Status Ended() const;

  const Options options_;
  std::optional<uint32_t> skipped_;
  bool is_known_ = false;
  bool is_listed_ = false;  // in the last status
  std::set<int> members_;   // likewise
  bool was_saving_ = false;
  bool was_saved_ = false;
  std::string phase_;
  std::string reason_;
  uint64_t step_ = 0;
  std::string began_with_;
  uint64_t failed_ = 0;
  std::string error_;
  std::string latest_;
};

// Thread safety: all methods from any thread but its own.
class JobWatch {
 public:
  struct Options {
    std::string coordinator;
    JobNews::Options job;
    TlsOptions tls = {};
    // Of which jobs it says something: of any that it finds, or of none that is at its end
    // when it begins.
    enum class Finds { kAny, kNew } finds = Finds::kAny;
    absl::Duration every = absl::Seconds(1);
  };

  // `say` is called on its thread.
  JobWatch(const Options& options, std::function<void(const std::string&)> say);
  ~JobWatch();

  // The workers are done: asks at once, and more often.
  void Hurry() ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing before Hurry has been answered, and until the job is at its end
  // (JobNews::End).
  std::optional<absl::Status> End() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Of those that it has heard of: "run1-step200", or "none of this run".
  std::string LastCheckpoint() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Ask(bool hurries) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::function<void(const std::string&)> say_;
  const SteadyClock clock_;
  JobNews news_;        // of its thread
  int unanswered_ = 0;  // likewise: tries since the last answer, once it is in a hurry
  std::optional<absl::Duration> hurried_at_;  // likewise

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool hurries_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::string last_checkpoint_ ABSL_GUARDED_BY(mutex_) = "none";

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
