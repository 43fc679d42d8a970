#include "server/shard/sync_policy.h"

namespace syncline {
namespace {

// A step is made once everybody has contributed to it. Whoever has may go on to later
// steps, on older weights; with no step ahead that is bsp.
class Lockstep : public SyncPolicy {
 public:
  explicit Lockstep(uint64_t most_ahead) : most_ahead_(most_ahead) {}

  PushRuling Judge(const PushFacts& push) const override {
    if (push.step < push.version) return PushRuling::kCounted;
    if (push.step < push.first_step) return PushRuling::kRefuse;
    if (push.step - push.version > most_ahead_) return PushRuling::kRefuse;
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
};

// Each contribution is a step. Nobody waits for anybody.
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

std::unique_ptr<const SyncPolicy> MakeSyncPolicy(const SyncMode& mode) {
  if (mode.is_async()) return std::make_unique<OnArrival>();
  return std::make_unique<Lockstep>(mode.staleness);
}

}  // namespace syncline
