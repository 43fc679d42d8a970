// A process as a member of one group, from its first operation to its end: the product's
// core (comm/collective/group/core.h) with what gives it time, which is what Group's threads
// do otherwise.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collective/group/core.h"
#include "tests/group_sim/plan.h"
#include "tests/group_sim/sim_wire.h"

namespace syncline::group_sim {

class Life : private collective::GroupCore::Observer {
 public:
  struct Options {
    const EpochPlan* plan = nullptr;
    int process = 0;
    int rank = 0;
    absl::Duration failure_timeout = {};
    Fault fault = Fault::kNone;
    uint64_t seed = 0;
    // Cuts the network between this rank and that one.
    std::function<void(int)> cut = {};
  };

  // One operation that it called, or was to call.
  struct Called {
    size_t number = 0;         // in the plan
    Operation operation = {};  // of the plan, or an odd one
    Memory memory = {};
    std::vector<std::byte> input = {};   // as it was given
    std::vector<std::byte> output = {};  // as it was at the end
    std::shared_ptr<collective::PendingCall> pending = {};
    absl::Duration entered = {};
    absl::Duration ended = absl::InfiniteDuration();
  };

  // All outlive it.
  Life(const Options& options, EventQueue& events, InprocNetwork& network);
  ~Life() override;

  SimWire& wire() { return wire_; }
  int process() const { return options_.process; }
  int rank() const { return options_.rank; }
  void Begin();  // when all wires are connected

  // ---- What happened ----
  bool is_dead() const { return is_dead_; }
  bool has_left() const { return has_left_; }
  bool is_frozen() const;
  absl::Duration FrozenFor() const;  // in all, while it is
  bool is_absent() const { return is_absent_; }
  // Nothing of it is under way or will be.
  bool is_over() const;
  absl::Duration failed_at() const { return failed_at_; }
  // When the incidents of this rank happened, by their index in the plan; a pause or a
  // freeze, when it ended.
  const std::vector<std::optional<absl::Duration>>& happened() const { return happened_; }
  const std::vector<std::unique_ptr<Called>>& called() const { return called_; }

  // The epoch is over: what is still under way ends. Says goodbye.
  void End();

 private:
  void OnFailed(const absl::Status& status) override;
  void OnDone(collective::PendingCall& pending, const absl::Status& status) override;

  void WakeAfter(absl::Duration delay);
  void Turn();
  bool Suffers();  // what the plan has for it now; true: this turn is over
  bool Suffer(size_t index);
  void Call();
  void Leave();
  void Arrived();
  size_t UnderWay() const;
  absl::Duration Drawn(absl::Duration most);

  const Options options_;
  const EpochPlan& plan_;
  EventQueue& events_;
  InprocNetwork& network_;
  const EventClock clock_;
  Random random_;
  SimWire wire_;
  collective::GroupCore core_;

  std::vector<std::unique_ptr<Called>> called_;
  std::vector<std::optional<absl::Duration>> happened_;
  size_t next_ = 0;    // operation of the plan
  int turns_ = 0;      // since the last one was called
  uint64_t wake_ = 0;  // the one event that counts
  absl::Duration wakes_at_ = absl::InfiniteDuration();
  absl::Duration calls_at_ = {};
  absl::Duration looked_ = {};
  absl::Duration frozen_at_ = {};
  absl::Duration frozen_until_ = {};
  absl::Duration failed_at_ = absl::InfiniteDuration();
  bool is_dead_ = false;
  bool has_left_ = false;
  bool is_absent_ = false;
  std::shared_ptr<const bool> is_here_ = std::make_shared<bool>(true);
};

}  // namespace syncline::group_sim
