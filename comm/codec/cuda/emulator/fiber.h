// A fiber: a function with a stack of its own, which runs when it is switched to and
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
  // Not started: what the calling thread runs.
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // `body` runs at the next switch to this fiber and ends with ExitTo. REQUIRES: not
  // running; a fiber that has exited may start again.
  void Start(std::function<void()> body);

  // REQUIRES: this fiber is the one that runs.
  void SwitchTo(Fiber& next);
  [[noreturn]] void ExitTo(Fiber& next);

 private:
  static void Enter(unsigned high, unsigned low);
  void Switch(Fiber& next, void** kept_stack);
  void Arrived();

  ucontext_t context_ = {};
  std::unique_ptr<std::byte[]> stack_;
  std::function<void()> body_;
  Fiber* from_ = nullptr;  // who switched here last
  // What sanitizers know of it.
  void* kept_stack_ = nullptr;
  const void* stack_bottom_ = nullptr;
  size_t stack_bytes_ = 0;
  [[maybe_unused]] void* tsan_fiber_ = nullptr;
};

}  // namespace syncline::emulated
