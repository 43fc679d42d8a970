#include "comm/codec/cuda/emulator/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "comm/base/sanitizers.h"

#if defined(SYNCLINE_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(SYNCLINE_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace syncline::emulated {
namespace {

constexpr size_t kStackBytes = size_t{64} << 10;

}  // namespace

Fiber::~Fiber() {
#if defined(SYNCLINE_TSAN)
  if (stack_ != nullptr && tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
#endif
}

// makecontext can pass only ints, so the address comes in two halves.
void Fiber::Enter(unsigned high, unsigned low) {
  const uint64_t address = uint64_t{high} << 32 | low;
  Fiber& fiber = *reinterpret_cast<Fiber*>(static_cast<uintptr_t>(address));
  fiber.Arrived();
  fiber.body_();
  std::abort();  // a body ends with ExitTo
}

void Fiber::Start(std::function<void()> body) {
  body_ = std::move(body);
  if (stack_ == nullptr) {
    stack_ = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
    stack_bottom_ = stack_.get();
    stack_bytes_ = kStackBytes;
#if defined(SYNCLINE_TSAN)
    tsan_fiber_ = __tsan_create_fiber(0);
#endif
  }
  kept_stack_ = nullptr;
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_.get();
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  const auto address = uint64_t{reinterpret_cast<uintptr_t>(this)};
  makecontext(&context_, reinterpret_cast<void (*)()>(&Fiber::Enter), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
}

// Must run first after a switch, on the stack of the new fiber.
void Fiber::Arrived() {
#if defined(SYNCLINE_ASAN)
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(kept_stack_, &bottom, &bytes);
  if (from_->stack_ == nullptr) {  // a thread's own stack, seen for the first time
    from_->stack_bottom_ = bottom;
    from_->stack_bytes_ = bytes;
  }
#endif
}

void Fiber::Switch(Fiber& next, [[maybe_unused]] void** kept_stack) {
  next.from_ = this;
#if defined(SYNCLINE_ASAN)
  __sanitizer_start_switch_fiber(kept_stack, next.stack_bottom_, next.stack_bytes_);
#endif
#if defined(SYNCLINE_TSAN)
  if (stack_ == nullptr) tsan_fiber_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(next.tsan_fiber_, 0);
#endif
  swapcontext(&context_, &next.context_);
  Arrived();
}

void Fiber::SwitchTo(Fiber& next) { Switch(next, &kept_stack_); }

void Fiber::ExitTo(Fiber& next) {
  Switch(next, nullptr);
  std::abort();  // an exited fiber was switched to
}

}  // namespace syncline::emulated
