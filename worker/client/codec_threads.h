// The few threads that encode and decode for an exchange, beside its own. They begin with
// the first work, and sleep while there is none.
//
//   CodecThreads threads({.threads = ThreadsForCodecs(std::nullopt)});
//   threads.Submit([=](CodecWorkspace& workspace) { work->Run(workspace); Post(work); });
//   threads.Finish();  // nothing reads gradients or writes weights any more
//
// Thread safety: all but the work itself from one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/trace_recorder.h"
#include "worker/client/codec_workspace.h"

namespace syncline {

// More would only wait for memory.
inline constexpr uint32_t kMostCodecThreads = 4;
// That a user may ask for.
inline constexpr uint32_t kMaxCodecThreads = 64;

// As many as are asked for; otherwise half of the cores that this process may use, and none
// where it has a single one.
uint32_t ThreadsForCodecs(std::optional<uint32_t> asked);

class CodecThreads {
 public:
  struct Options {
    uint32_t threads = 1;
    // Of the threads, in order; fewer: the others are not traced.
    std::vector<TraceTrack*> tracks = {};
  };
  explicit CodecThreads(Options options) : options_(std::move(options)) {}
  // Runs what was submitted before.
  ~CodecThreads() ABSL_LOCKS_EXCLUDED(mutex_);
  CodecThreads(const CodecThreads&) = delete;
  CodecThreads& operator=(const CodecThreads&) = delete;

  // Called by one of these threads, with what is its own; waits for nobody.
  using Work = std::function<void(CodecWorkspace&)>;
  // In the order of submission, several at once.
  void Submit(Work work) ABSL_LOCKS_EXCLUDED(mutex_);
  // So much waits that who submits had better do the next work itself.
  bool IsBehind() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until all that was submitted has been run.
  void Finish() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run(TraceTrack* track) ABSL_LOCKS_EXCLUDED(mutex_);
  bool MustAct() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !waiting_.empty() || stopping_;
  }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return under_way_ == 0; }

  const Options options_;
  std::vector<std::thread> threads_;

  mutable absl::Mutex mutex_;
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;  // waits, or is run
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncline
