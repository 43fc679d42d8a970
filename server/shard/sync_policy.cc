#include "server/shard/sync_policy.h"

#include <algorithm>

namespace syncline {
namespace {

// Makes a step once all members have contributed to it. A member that has may continue
// with later steps, on older weights. With no step ahead this is bsp.
class Lockstep : public SyncPolicy {
 public:
  Lockstep(uint64_t most_ahead, uint64_t most_taken)
      : most_ahead_(most_ahead), most_taken_(std::max(most_ahead, most_taken)) {}

  PushRuling Judge(const PushFacts& push) const override {
    if (push.step < push.version) return PushRuling::kCounted;
    if (push.step < push.first_step) return PushRuling::kRefuse;
    if (push.step - push.version > most_taken_) return PushRuling::kRefuse;
    if (push.is_held) return PushRuling::kHeld;
    const bool is_late = push.is_complete && push.step == push.version;
    return is_late ? PushRuling::kRefuse : PushRuling::kTake;
  }
  bool StepsNow(const StepFacts& step) const override {
    return step.present == step.expected;
  }
  bool HoldsUp(const StepFacts& step) const override {
    return step.is_limit || step.is_asked;
  }
  uint64_t most_ahead() const override { return most_ahead_; }

 private:
  const uint64_t most_ahead_;
  const uint64_t most_taken_;
};

// Makes a step of the contributions that it was closed with. Until then every
// contribution is taken; one that comes later is given back.
class Quorum : public SyncPolicy {
 public:
  explicit Quorum(size_t quorum) : quorum_(quorum) {}

  PushRuling Judge(const PushFacts& push) const override {
    if (push.step < push.first_step || push.step > push.version) {
      return PushRuling::kRefuse;
    }
    if (push.step < push.version) {
      return push.is_counted ? PushRuling::kCounted : PushRuling::kTooLate;
    }
    if (push.is_held) return PushRuling::kHeld;
    return push.is_complete ? PushRuling::kTooLate : PushRuling::kTake;
  }
  bool StepsNow(const StepFacts& step) const override { return step.is_closed; }
  bool HoldsUp(const StepFacts& step) const override {
    const bool is_enough = step.whole >= std::min(quorum_, step.expected);
    return !step.is_closed && !is_enough && (step.is_limit || step.is_asked);
  }
  uint64_t most_ahead() const override { return 0; }

 private:
  const size_t quorum_;
};

// Makes each contribution a step. Nobody waits for anybody.
class OnArrival : public SyncPolicy {
 public:
  PushRuling Judge(const PushFacts& push) const override {
    if (push.step < push.first_step) return PushRuling::kRefuse;
    if (push.step < push.next_step) return PushRuling::kCounted;
    return push.step == push.next_step ? PushRuling::kTake : PushRuling::kRefuse;
  }
  bool StepsNow(const StepFacts& step) const override { return step.present > 0; }
  bool HoldsUp(const StepFacts&) const override { return false; }
  uint64_t most_ahead() const override { return 0; }
};

}  // namespace

std::unique_ptr<const SyncPolicy> MakeSyncPolicy(const SyncMode& mode,
                                                 uint64_t most_taken) {
  if (mode.is_async()) return std::make_unique<OnArrival>();
  if (mode.has_quorum()) return std::make_unique<Quorum>(mode.quorum);
  return std::make_unique<Lockstep>(mode.staleness, most_taken);
}

}  // namespace syncline
