// The thread that a Transport lives on: it makes the transport, runs it, and destroys it.
//
// It spins for a moment after the last event, because the answer to a small message comes
// within microseconds, and then sleeps until something arrives, is posted, or a timer is
// due. A thread that the system preempts while it spins takes the time from the very
// process it waits for: it sleeps at once for a while then.
//
// Waking a thread costs more than a small message: PostQuietly leaves a task for the next
// time that the loop is awake, Wake ends the wait.
//
// Thread safety: all of its functions may be called from any thread; everything that is
// posted, all timers and all callbacks of the transport run on the loop thread.
//
//   auto create = [&] { return CreateUcxTransport(options, receiver); };
//   auto loop = TransportLoop::Start(create, {});
//   (*loop)->Every(absl::Milliseconds(100), [&](Transport&) { session.Tick(); });
//   (*loop)->Post([&](Transport& transport) { peer = transport.Connect(address, {}); });
//   ...
//   (*loop)->Post([&](Transport&) { peer = nullptr; });
//   (*loop)->Stop();
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/transport/transport.h"

namespace syncline {

struct TransportLoopOptions {
  // How long the loop looks for more before it sleeps. Zero never spins.
  absl::Duration spin = absl::Microseconds(20);
};

class TransportLoop {
 public:
  using Task = std::function<void(Transport&)>;
  using Factory = std::function<absl::StatusOr<std::unique_ptr<Transport>>()>;

  // Runs `factory` on the new thread; its error is returned.
  static absl::StatusOr<std::unique_ptr<TransportLoop>> Start(
      Factory factory, TransportLoopOptions options);
  // Stops.
  ~TransportLoop();

  // Runs `task` once, in the order of posting. False when the loop is stopping: it will
  // not run.
  bool Post(Task task) ABSL_LOCKS_EXCLUDED(mutex_);

  // As Post, but a loop that sleeps is not woken: `task` runs with whatever comes next, a
  // timer at the latest.
  bool PostQuietly(Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs what was posted quietly now.
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs `task` every `period`, first one period from now, until Stop. A late loop skips
  // what it missed.
  bool Every(absl::Duration period, Task task);

  // Runs what was posted before, then destroys the transport and ends the thread. Not
  // from the loop thread. The second call does nothing.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string& address() const { return address_; }

 private:
  struct Timer {
    absl::Duration due;
    absl::Duration period;
    Task task;
  };

  // Spins only while nobody else wants the core.
  class Spinner;

  explicit TransportLoop(TransportLoopOptions options) : options_(options) {}

  void Run(const Factory& factory, absl::Status* started) ABSL_LOCKS_EXCLUDED(mutex_);
  void Loop(Transport& transport);
  bool Add(Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool RunPosted(Transport& transport) ABSL_LOCKS_EXCLUDED(mutex_);
  bool RunTimers(Transport& transport);
  absl::Duration UntilNextTimer() const;

  const TransportLoopOptions options_;
  const SteadyClock clock_;
  std::string address_;
  std::thread thread_;

  absl::Mutex mutex_;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;  // the factory has answered
  Transport* transport_ ABSL_GUARDED_BY(mutex_) =
      nullptr;  // null before and after its life
  std::vector<Task> posted_ ABSL_GUARDED_BY(mutex_);
  bool is_woken_ ABSL_GUARDED_BY(mutex_) = false;  // for what was posted
  std::atomic<bool> has_posted_ = false;           // so that an empty queue costs no lock
  std::atomic<bool> stopping_ = false;

  std::vector<Timer> timers_;  // of the loop thread
};

}  // namespace syncline
