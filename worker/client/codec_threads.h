// Threads that encode and decode for an exchange, besides its own thread. They are
// started by the first Submit, and sleep while there is no work.
//
//   CodecThreads threads({.threads = ThreadsForCodecs(std::nullopt)});
//   threads.Submit([=](CodecWorkspace& workspace) { work->Run(workspace); Post(work); });
//   threads.Finish();  // nothing reads gradients or writes weights any more
//
// Thread safety: one thread calls all functions. The work runs on the codec threads.
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

// Largest default. More threads would only wait for memory.
inline constexpr uint32_t kMaxDefaultCodecThreads = 4;
// Largest number that a user may ask for.
inline constexpr uint32_t kMaxCodecThreads = 64;

// Returns the number of threads: `asked`, or by default half of the cores that this
// process may use, at most kMaxDefaultCodecThreads. With a single core the default is 0.
uint32_t ThreadsForCodecs(std::optional<uint32_t> asked);

class CodecThreads {
 public:
  struct Options {
    uint32_t threads = 1;
    // Trace tracks of the threads, in order. Threads without one are not traced.
    std::vector<TraceTrack*> tracks = {};
  };
  explicit CodecThreads(Options options) : options_(std::move(options)) {}
  // Runs all submitted work first.
  ~CodecThreads() ABSL_LOCKS_EXCLUDED(mutex_);
  CodecThreads(const CodecThreads&) = delete;
  CodecThreads& operator=(const CodecThreads&) = delete;

  // Called on one of the threads, with that thread's workspace. It must not wait for
  // other work.
  using Work = std::function<void(CodecWorkspace&)>;
  // Adds work. Work starts in the order of submission, and several pieces run at once.
  void Submit(Work work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether so much work waits that the caller should run the next piece itself.
  bool IsBehind() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until all submitted work has run.
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
  // Number of pieces of work that wait or run.
  size_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncline
