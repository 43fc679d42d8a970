// Ctrl-C and SIGTERM, as a flag to ask between steps, with a promise: whatever the
// process waits for, it is gone 0.7 s after the signal. (`syncline run` gives its workers
// one second.)
#pragma once

#include <atomic>
#include <thread>

namespace syncline::fashion_mnist {

class StopSignal {
 public:
  // Construct it before any other thread is started: it blocks SIGINT and SIGTERM in the
  // calling thread and all that come from it, and waits for them in a thread of its own.
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal that came, or 0. Thread-safe.
  int signal() const { return signal_.load(std::memory_order_relaxed); }

 private:
  void Wait();

  std::atomic<int> signal_ = 0;
  std::atomic<bool> finished_ = false;
  std::thread thread_;
};

}  // namespace syncline::fashion_mnist
