// A process as a member of one group, from its first operation to its end. It has the
// product's core (comm/collective/group/core.h), and events that give it time, as Group's
// threads do in the product.
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
    // Cuts the network between this rank and another one.
    std::function<void(int)> cut = {};
  };

  // One operation that it called, or should have called.
  struct Called {
    size_t number = 0;         // position in the plan
    Operation operation = {};  // the plan's, or another one (Trouble::kOddCall)
    Memory memory = {};
    std::vector<std::byte> input = {};   // a copy from the beginning
    std::vector<std::byte> output = {};  // a copy from the end
    std::shared_ptr<collective::PendingCall> pending = {};
    absl::Duration entered = {};
    absl::Duration ended = absl::InfiniteDuration();
  };

  // All arguments must outlive it.
  Life(const Options& options, EventQueue& events, InprocNetwork& network);
  ~Life() override;

  SimWire& wire() { return wire_; }
  int process() const { return options_.process; }
  int rank() const { return options_.rank; }
  void Begin();  // REQUIRES: all wires are connected

  // ---- What happened ----
  bool is_dead() const { return is_dead_; }
  bool has_left() const { return has_left_; }
  bool is_frozen() const;
  absl::Duration FrozenFor() const;  // how long it has been frozen; 0: it is not
  bool is_absent() const { return is_absent_; }
  // Whether nothing is under way, and nothing will be called.
  bool is_over() const;
  absl::Duration failed_at() const { return failed_at_; }
  // Returns when the incidents of this rank happened, by their index in the plan. For a
  // pause or a freeze it is the time of its end.
  const std::vector<std::optional<absl::Duration>>& happened() const { return happened_; }
  const std::vector<std::unique_ptr<Called>>& called() const { return called_; }

  // Ends operations that are still under way, and leaves the group.
  void End();

 private:
  void OnFailed(const absl::Status& status) override;
  void OnDone(collective::PendingCall& pending, const absl::Status& status) override;

  void WakeAfter(absl::Duration delay);
  void Turn();
  // Carries out the incidents that the plan has now. Returns whether the turn is over.
  bool Suffers();
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
  size_t next_ = 0;    // the next operation of the plan
  int turns_ = 0;      // number of turns since the last call
  uint64_t wake_ = 0;  // number of the only event that counts
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
