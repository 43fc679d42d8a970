#include "comm/codec/cuda/emulator/emulator.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "comm/base/check.h"
#include "comm/codec/cuda/emulator/fiber.h"

namespace syncline::emulated {
namespace {

// After this many pauses in a row the grid is stuck: its blocks only wait for each other.
constexpr uint64_t kMaxPauses = 20'000'000;

// For this many turns, the next thread is drawn from all ready ones, or is the one that
// became ready last, so that some warps run far ahead of others.
constexpr uint32_t kTurns = 256;

// Neither zeros nor small numbers.
constexpr std::byte kGarbage{0xa5};

enum class State { kReady, kAtWarpBarrier, kAtBlockBarrier, kDone };

struct Block;

struct Thread {
  Fiber fiber;
  Block* block = nullptr;
  uint32_t index = 0;
  State state = State::kDone;
  uint32_t exchanges = 0;
};

struct WarpState {
  uint32_t waiting = 0;
  // Two buffers, because a thread may give its next value before others have read the
  // last.
  std::array<std::array<uint32_t, kWarp>, 2> values = {};
};

struct Block {
  uint32_t index = 0;
  uint32_t waiting = 0;
  uint32_t alive = 0;
  std::vector<std::byte> shared;
  std::vector<WarpState> warps;
  std::vector<std::unique_ptr<Thread>> threads;
};

class Scheduler {
 public:
  Scheduler(const Grid& grid, const EmulatedStream& stream,
            const std::function<void(void*)>& body)
      : grid_(grid), body_(body), random_(stream.seed), order_(grid.blocks) {
    SYNCLINE_CHECK(grid.threads > 0 && grid.threads % kWarp == 0);
    std::iota(order_.begin(), order_.end(), 0u);
    std::ranges::shuffle(order_, random_);
    for (uint32_t i = 0; i < std::min(stream.resident, grid.blocks); ++i) AddBlock();
  }

  void Run();
  Thread& current() { return *current_; }
  // Makes the current thread wait for the threads [first, first + count) of its block.
  void Meet(State at, uint32_t first, uint32_t count, uint32_t& waiting);
  void Pause();

 private:
  void AddBlock();
  void Start(Block& block);
  Thread* Next();

  const Grid grid_;
  const std::function<void(void*)>& body_;
  std::mt19937_64 random_;
  std::vector<uint32_t> order_;  // blocks that have not started
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Thread*> ready_;
  Thread* current_ = nullptr;
  Fiber main_;
  uint32_t turns_ = 0;  // number left of the present way to choose
  bool run_ahead_ = false;
  uint64_t pauses_ = 0;  // since a thread last did anything else
};

// A kernel's operations are free functions, as on a GPU, and find their thread through
// this.
thread_local Scheduler* scheduler = nullptr;

void Scheduler::AddBlock() {
  auto block = std::make_unique<Block>();
  block->shared.resize(grid_.shared_bytes);
  block->warps.resize(grid_.threads / kWarp);
  for (uint32_t i = 0; i < grid_.threads; ++i) {
    block->threads.push_back(std::make_unique<Thread>());
    block->threads.back()->block = block.get();
    block->threads.back()->index = i;
  }
  Start(*block);
  blocks_.push_back(std::move(block));
}

void Scheduler::Start(Block& block) {
  block.index = order_.back();
  order_.pop_back();
  block.alive = grid_.threads;
  std::ranges::fill(block.shared, kGarbage);
  // Threads of a warp stay together, but the first warp varies.
  const uint64_t turned = random_() % block.warps.size() * kWarp;
  for (uint32_t i = 0; i < grid_.threads; ++i) {
    Thread* const thread = block.threads[(i + turned) % grid_.threads].get();
    thread->state = State::kReady;
    thread->exchanges = 0;
    thread->fiber.Start([this, &block, thread] {
      body_(block.shared.data());
      thread->state = State::kDone;
      thread->fiber.ExitTo(main_);
    });
    ready_.push_back(thread);
  }
}

Thread* Scheduler::Next() {
  if (turns_ == 0) {
    turns_ = kTurns;
    run_ahead_ = random_() % 2 == 0;
  }
  --turns_;
  if (!run_ahead_) std::swap(ready_[random_() % ready_.size()], ready_.back());
  Thread* const next = ready_.back();
  ready_.pop_back();
  return next;
}

void Scheduler::Run() {
  while (!ready_.empty()) {
    current_ = Next();
    main_.SwitchTo(current_->fiber);
    Block& block = *current_->block;
    if (current_->state == State::kReady) ready_.push_back(current_);
    if (current_->state == State::kDone && --block.alive == 0 && !order_.empty()) {
      Start(block);
    }
  }
  // Threads that are left wait at a barrier that others of their block never reached.
  for (const std::unique_ptr<Block>& block : blocks_) SYNCLINE_CHECK(block->alive == 0);
}

void Scheduler::Meet(State at, uint32_t first, uint32_t count, uint32_t& waiting) {
  pauses_ = 0;
  current_->state = at;
  if (++waiting == count) {
    waiting = 0;
    for (uint32_t i = first; i < first + count; ++i) {
      Thread& thread = *current_->block->threads[i];
      // The thread is at another barrier or has ended, so the kernel diverges.
      SYNCLINE_CHECK(thread.state == at);
      thread.state = State::kReady;
      if (&thread != current_) ready_.push_back(&thread);
    }
  }
  current_->fiber.SwitchTo(main_);
}

void Scheduler::Pause() {
  SYNCLINE_CHECK(++pauses_ < kMaxPauses);
  current_->fiber.SwitchTo(main_);
}

}  // namespace

void RunGrid(const Grid& grid, const EmulatedStream& stream,
             const std::function<void(void* shared)>& body) {
  SYNCLINE_CHECK(scheduler == nullptr);
  Scheduler running(grid, stream, body);
  scheduler = &running;
  running.Run();
  scheduler = nullptr;
}

uint32_t ThreadIndex() { return scheduler->current().index; }
uint32_t BlockIndex() { return scheduler->current().block->index; }

void BlockBarrier() {
  Block& block = *scheduler->current().block;
  scheduler->Meet(State::kAtBlockBarrier, 0, static_cast<uint32_t>(block.threads.size()),
                  block.waiting);
}

void WarpBarrier() {
  const Thread& thread = scheduler->current();
  const uint32_t warp = thread.index / kWarp;
  scheduler->Meet(State::kAtWarpBarrier, warp * kWarp, kWarp,
                  thread.block->warps[warp].waiting);
}

std::span<const uint32_t> WarpExchange(uint32_t value) {
  Thread& thread = scheduler->current();
  WarpState& warp = thread.block->warps[thread.index / kWarp];
  std::array<uint32_t, kWarp>& values = warp.values[thread.exchanges++ % 2];
  values[thread.index % kWarp] = value;
  WarpBarrier();
  return values;
}

void Pause() { scheduler->Pause(); }

}  // namespace syncline::emulated
