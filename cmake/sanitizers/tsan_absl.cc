// Tells ThreadSanitizer about abseil's locks.
//
// The distribution's abseil is not instrumented. Its locks are atomics that
// ThreadSanitizer does not see, so every variable guarded by an absl::Mutex looks like a
// race. The definitions below replace the library's: a program's symbols come before
// those of its shared libraries, also for calls from gRPC. They inform ThreadSanitizer,
// and call the library. abseil does the same if it is compiled with -fsanitize=thread.
//
// Between pre_* and post_* ThreadSanitizer ignores memory accesses, which also covers the
// conditions that abseil evaluates on behalf of other threads while it unlocks.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <string>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#define SYNCLINE_STRING_OF(x) #x
#define SYNCLINE_STRING(x) SYNCLINE_STRING_OF(x)

namespace {

constexpr unsigned kWrite = 0;
constexpr unsigned kRead = __tsan_mutex_read_lock;

// The library's own definition of `suffix`, a mangled name without its namespaces:
// "5Mutex4LockEv". `prefix` is "_ZN", or "_ZNK" for a const method.
template <typename Fn>
Fn* Library(const char* suffix, const char* prefix = "_ZN") {
  std::string symbol = std::string(prefix) + "4absl";
#if ABSL_OPTION_USE_INLINE_NAMESPACE
  const std::string space = SYNCLINE_STRING(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  symbol += std::to_string(space.size()) + space;
#endif
  void* const found = dlsym(RTLD_NEXT, (symbol + suffix).c_str());
  if (found == nullptr)
    __builtin_trap();  // this file was written for another version of abseil
  return reinterpret_cast<Fn*>(found);
}

// The library's functions call each other through the definitions below. Only the
// outermost call informs ThreadSanitizer.
thread_local int depth = 0;

template <typename Call>
auto Inside(Call call) {
  ++depth;
  const auto result = call();
  --depth;
  return result;
}

// Takes a lock by `call`, which returns whether it has taken it. `flags` has the kind of
// the lock, and whether the call only tries.
template <typename Call>
bool Acquire(absl::Mutex* mu, unsigned flags, Call call) {
  if (depth > 0) return call();
  __tsan_mutex_pre_lock(mu, flags);
  const bool taken = Inside(call);
  __tsan_mutex_post_lock(mu, taken ? flags : flags | __tsan_mutex_try_lock_failed, 0);
  return taken;
}

template <typename Call>
void Release(absl::Mutex* mu, unsigned flags, Call call) {
  if (depth > 0) return static_cast<void>(call());
  __tsan_mutex_pre_unlock(mu, flags);
  Inside(call);
  __tsan_mutex_post_unlock(mu, flags);
}

// Releases the lock for a wait, and takes it again. Returns what `call` returns. Every
// wait counts as a writer's: abseil does not say which kind is held, and this tree never
// waits with a reader lock.
template <typename Call>
bool Wait(absl::Mutex* mu, Call call) {
  if (depth > 0) return call();
  __tsan_mutex_pre_unlock(mu, kWrite);
  __tsan_mutex_post_unlock(mu, kWrite);
  __tsan_mutex_pre_lock(mu, kWrite);
  const bool result = Inside(call);
  __tsan_mutex_post_lock(mu, kWrite, 0);
  return result;
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static auto* const real = Library<void(Mutex*)>("5Mutex4LockEv");
  Acquire(this, kWrite, [&] { return real(this), true; });
}

void Mutex::Unlock() {
  static auto* const real = Library<void(Mutex*)>("5Mutex6UnlockEv");
  Release(this, kWrite, [&] { return real(this), true; });
}

bool Mutex::TryLock() {
  static auto* const real = Library<bool(Mutex*)>("5Mutex7TryLockEv");
  return Acquire(this, kWrite | __tsan_mutex_try_lock, [&] { return real(this); });
}

void Mutex::ReaderLock() {
  static auto* const real = Library<void(Mutex*)>("5Mutex10ReaderLockEv");
  Acquire(this, kRead, [&] { return real(this), true; });
}

void Mutex::ReaderUnlock() {
  static auto* const real = Library<void(Mutex*)>("5Mutex12ReaderUnlockEv");
  Release(this, kRead, [&] { return real(this), true; });
}

bool Mutex::ReaderTryLock() {
  static auto* const real = Library<bool(Mutex*)>("5Mutex13ReaderTryLockEv");
  return Acquire(this, kRead | __tsan_mutex_try_lock, [&] { return real(this); });
}

void Mutex::LockWhen(const Condition& condition) {
  static auto* const real =
      Library<void(Mutex*, const Condition&)>("5Mutex8LockWhenERKNS0_9ConditionE");
  Acquire(this, kWrite, [&] { return real(this, condition), true; });
}

void Mutex::Await(const Condition& condition) {
  static auto* const real =
      Library<void(Mutex*, const Condition&)>("5Mutex5AwaitERKNS0_9ConditionE");
  Wait(this, [&] { return real(this, condition), true; });
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static auto* const real = Library<bool(Mutex*, const Condition&, Duration)>(
      "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  return Wait(this, [&] { return real(this, condition, timeout); });
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static auto* const real = Library<bool(Mutex*, const Condition&, Time)>(
      "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  return Wait(this, [&] { return real(this, condition, deadline); });
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  static auto* const real = Library<bool(Mutex*, const Condition&, Duration)>(
      "5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  bool met = false;
  Acquire(this, kWrite, [&] { return met = real(this, condition, timeout), true; });
  return met;
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  static auto* const real = Library<bool(Mutex*, const Condition&, Time)>(
      "5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  bool met = false;
  Acquire(this, kWrite, [&] { return met = real(this, condition, deadline), true; });
  return met;
}

void ReleasableMutexLock::Release() {
  mu_->Unlock();
  mu_ = nullptr;
}

void CondVar::Wait(Mutex* mu) {
  static auto* const real = Library<void(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  ::Wait(mu, [&] { return real(this, mu), true; });
}

bool CondVar::WaitWithTimeout(Mutex* mu, Duration timeout) {
  static auto* const real = Library<bool(CondVar*, Mutex*, Duration)>(
      "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  return ::Wait(mu, [&] { return real(this, mu, timeout); });
}

bool CondVar::WaitWithDeadline(Mutex* mu, Time deadline) {
  static auto* const real = Library<bool(CondVar*, Mutex*, Time)>(
      "7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  return ::Wait(mu, [&] { return real(this, mu, deadline); });
}

void Notification::Notify() {
  static auto* const real = Library<void(Notification*)>("12Notification6NotifyEv");
  __tsan_release(this);
  real(this);
}

void Notification::WaitForNotification() const {
  static auto* const real =
      Library<void(const Notification*)>("12Notification19WaitForNotificationEv", "_ZNK");
  real(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static auto* const real = Library<bool(const Notification*, Duration)>(
      "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE", "_ZNK");
  const bool notified = real(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool BlockingCounter::DecrementCount() {
  static auto* const real =
      Library<bool(BlockingCounter*)>("15BlockingCounter14DecrementCountEv");
  __tsan_release(this);
  return real(this);
}

void BlockingCounter::Wait() {
  static auto* const real = Library<void(BlockingCounter*)>("15BlockingCounter4WaitEv");
  real(this);
  __tsan_acquire(this);
}

ABSL_NAMESPACE_END
}  // namespace absl
