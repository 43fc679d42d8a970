// TransportLoop is the thread that a Transport belongs to. It makes the transport, runs
// it, and destroys it.
//
// The thread spins briefly after the last event, because the answer to a small message
// comes within microseconds. Then it sleeps until something arrives, a task is posted, or
// a timer is due. If the system preempts the thread while it spins, it may be taking the
// CPU from the process that it waits for; for a while it then sleeps without spinning.
//
// Waking a thread costs more than a small message. PostQuietly leaves a task for the next
// time that the loop is awake; Wake runs it now.
//
// Thread safety: any thread may call any method. Posted tasks, timers and all callbacks
// of the transport run on the loop thread.
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
  // How long the loop looks for more events before it sleeps. Zero: it never spins.
  absl::Duration spin = absl::Microseconds(20);
};

class TransportLoop {
 public:
  using Task = std::function<void(Transport&)>;
  using Factory = std::function<absl::StatusOr<std::unique_ptr<Transport>>()>;

  // Starts the thread and runs `factory` on it. Returns the factory's error if it fails.
  static absl::StatusOr<std::unique_ptr<TransportLoop>> Start(
      Factory factory, TransportLoopOptions options);
  // Calls Stop().
  ~TransportLoop();

  // Runs `task` once; tasks run in the order of posting. Returns false if the loop is
  // stopping and will not run it.
  bool Post(Task task) ABSL_LOCKS_EXCLUDED(mutex_);

  // Does the same without waking a loop that sleeps: `task` runs with the next event, a
  // timer at the latest.
  bool PostQuietly(Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Wakes the loop if posted tasks wait.
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs `task` every `period`, for the first time one period from now, until Stop. If
  // the loop is late, it skips the runs that it missed.
  bool Every(absl::Duration period, Task task);

  // Runs the tasks that were posted before, destroys the transport and ends the thread.
  // Must not be called from the loop thread. A second call does nothing.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string& address() const { return address_; }

 private:
  struct Timer {
    absl::Duration due;
    absl::Duration period;
    Task task;
  };

  // Spins only while no other thread needs the core.
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
  // Null before the transport exists and after it is destroyed.
  Transport* transport_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<Task> posted_ ABSL_GUARDED_BY(mutex_);
  // Wake() was called for the posted tasks.
  bool is_woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_posted_ = false;  // makes the check of an empty queue lock-free
  std::atomic<bool> stopping_ = false;

  std::vector<Timer> timers_;  // used by the loop thread only
};

}  // namespace syncline
