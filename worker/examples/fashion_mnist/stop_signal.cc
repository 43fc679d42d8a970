#include "worker/examples/fashion_mnist/stop_signal.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

namespace syncline::fashion_mnist {
namespace {

constexpr timespec kGrace = {.tv_sec = 0, .tv_nsec = 700'000'000};

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

StopSignal::StopSignal() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { Wait(); });
}

StopSignal::~StopSignal() {
  finished_ = true;
  // To the thread that waits for it in sigwait: nothing is terminated.
  // NOLINTNEXTLINE(bugprone-bad-signal-to-kill-thread)
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void StopSignal::Wait() {
  const sigset_t signals = StopSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  if (finished_) return;
  signal_ = signal;
  // The main thread now leaves the job; a second signal, or the end of the grace, does
  // not wait.
  sigtimedwait(&signals, nullptr, &kGrace);
  if (!finished_) _exit(128 + signal);
}

}  // namespace syncline::fashion_mnist
