// A fiber: a function with its own stack. It runs when another fiber switches to it, and
// stops when it switches away. All fibers of a group belong to one thread.
//
//   Fiber main, other;
//   other.Start([&] { ...; other.SwitchTo(main); ...; other.ExitTo(main); });
//   main.SwitchTo(other);
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace syncline::emulated {

class Fiber {
 public:
  // Represents what the calling thread runs already; Start is not needed.
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // `body` runs at the next switch to this fiber, and must end with ExitTo. A fiber that
  // has exited may start again. REQUIRES: the fiber is not running.
  void Start(std::function<void()> body);

  // REQUIRES: this fiber is running.
  void SwitchTo(Fiber& next);
  [[noreturn]] void ExitTo(Fiber& next);

 private:
  static void Enter(unsigned high, unsigned low);
  void Switch(Fiber& next, void** kept_stack);
  void Arrived();

  ucontext_t context_ = {};
  std::unique_ptr<std::byte[]> stack_;
  std::function<void()> body_;
  Fiber* from_ = nullptr;  // the fiber that switched here last
  // Data for the sanitizers.
  void* kept_stack_ = nullptr;
  const void* stack_bottom_ = nullptr;
  size_t stack_bytes_ = 0;
  [[maybe_unused]] void* tsan_fiber_ = nullptr;
};

}  // namespace syncline::emulated
