#include "tests/group_sim/group_simulation.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "tests/group_sim/check.h"
#include "tests/group_sim/life.h"
#include "tests/group_sim/plan.h"

namespace syncline::group_sim {
namespace {

class Simulation {
 public:
  Simulation(uint64_t seed, Fault fault, Tally& tally)
      : random_(seed),
        fault_(fault),
        tally_(tally),
        plan_(DrawPlan(random_)),
        network_(events_, plan_.network),
        fates_(static_cast<size_t>(plan_.processes)) {}

  absl::Status Run();

 private:
  // The state of a process between groups.
  struct Fate {
    bool is_dead = false;
    bool was_away = false;         // dead or frozen since the last group
    const Life* frozen = nullptr;  // still in an earlier group
  };

  bool MayJoin(int process);
  std::vector<int> DrawMembers(bool is_last);
  void Form(const std::vector<int>& members, bool is_last);
  absl::Status RunUntilSettled();
  absl::Status WaitForTheFrozen();
  absl::Status Close();
  absl::Status StillWaits() const;
  void Count(const Epoch& epoch);

  Random random_;
  const Fault fault_;
  Tally& tally_;
  EventQueue events_;
  const Plan plan_;
  InprocNetwork network_;
  std::vector<Fate> fates_;  // by process
  std::vector<std::unique_ptr<Epoch>> epochs_;
};

bool Simulation::MayJoin(int process) {
  const Fate& fate = fates_[static_cast<size_t>(process)];
  return fate.frozen == nullptr || fate.frozen->is_over();
}

// Returns the members of the next group: all live processes, and some of the dead ones as
// new processes. The last group has all.
std::vector<int> Simulation::DrawMembers(bool is_last) {
  std::vector<int> members;
  const auto add = [&](int process) {
    Fate& fate = fates_[static_cast<size_t>(process)];
    if (std::exchange(fate.was_away, false)) ++tally_.revived;
    fate = {};
    members.push_back(process);
  };
  int living = 0;
  for (int process = 0; process < plan_.processes; ++process) {
    living += MayJoin(process) && !fates_[static_cast<size_t>(process)].is_dead ? 1 : 0;
  }
  for (int process = 0; process < plan_.processes; ++process) {
    if (!MayJoin(process)) continue;
    const bool is_dead = fates_[static_cast<size_t>(process)].is_dead;
    if (!is_dead || is_last || living < 2 || OneIn(random_, 2)) add(process);
  }
  return members;
}

void Simulation::Form(const std::vector<int>& members, bool is_last) {
  epochs_.push_back(std::make_unique<Epoch>());
  Epoch& epoch = *epochs_.back();
  epoch.plan = DrawEpoch(random_, plan_, static_cast<int>(members.size()), is_last);
  std::vector<SimWire*> wires;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const auto cut = [this, &epoch, rank](int other) {
      SimWire& its = epoch.lives[static_cast<size_t>(other)]->wire();
      network_.Cut(epoch.lives[rank]->wire().address(other),
                   its.address(static_cast<int>(rank)));
    };
    epoch.lives.push_back(
        std::make_unique<Life>(Life::Options{.plan = &epoch.plan,
                                             .process = members[rank],
                                             .rank = static_cast<int>(rank),
                                             .failure_timeout = plan_.failure_timeout,
                                             .fault = fault_,
                                             .seed = random_(),
                                             .cut = cut},
                               events_, network_));
    wires.push_back(&epoch.lives.back()->wire());
  }
  for (size_t from = 0; from < wires.size(); ++from) {
    wires[from]->Connect(wires);
    for (size_t to = 0; to < wires.size(); ++to) {
      if (from == to) continue;
      network_.SetRate(wires[from]->address(static_cast<int>(to)),
                       wires[to]->address(static_cast<int>(from)),
                       plan_.bytes_per_second);
    }
  }
  for (const auto& life : epoch.lives) life->Begin();
  ++tally_.groups;
}

// Runs until all members are over, except those that stand still for longer than the
// failure timeout.
absl::Status Simulation::RunUntilSettled() {
  const auto is_settled = [this](const auto& life) {
    return life->is_over() || life->FrozenFor() > plan_.failure_timeout;
  };
  const absl::Duration end =
      events_.now() + absl::Seconds(2) + 60 * plan_.failure_timeout;
  const auto& lives = epochs_.back()->lives;
  while (!std::all_of(lives.begin(), lives.end(), is_settled)) {
    if (!events_.RunNext() || events_.now() > end) return StillWaits();
  }
  return absl::OkStatus();
}

absl::Status Simulation::StillWaits() const {
  for (const auto& epoch : epochs_) {
    for (const auto& life : epoch->lives) {
      if (life->is_over() || life->called().empty()) continue;
      return absl::InternalError(absl::StrCat(
          "process ", life->process(), " as rank ", life->rank(), " of ",
          epoch->plan.ranks, " hangs in operation ", life->called().back()->number));
    }
  }
  return absl::InternalError("somebody hangs");
}

absl::Status Simulation::WaitForTheFrozen() {
  const absl::Duration end = events_.now() + 100 * plan_.failure_timeout;
  for (const Fate& fate : fates_) {
    while (fate.frozen != nullptr && !fate.frozen->is_over()) {
      if (!events_.RunNext() || events_.now() > end) return StillWaits();
    }
  }
  return absl::OkStatus();
}

void Simulation::Count(const Epoch& epoch) {
  for (const auto& life : epoch.lives) {
    for (const auto& called : life->called()) {
      if (!called->pending->done) continue;
      ++(called->pending->status.ok() ? tally_.right : tally_.failed);
    }
    for (const auto& happened : life->happened()) {
      if (happened.has_value()) ++tally_.incidents;
    }
  }
}

// Checks the members that are over, and ends the group for them.
absl::Status Simulation::Close() {
  const Epoch& epoch = *epochs_.back();
  for (const auto& life : epoch.lives) {
    Fate& fate = fates_[static_cast<size_t>(life->process())];
    fate.is_dead = life->is_dead();
    fate.frozen = life->is_frozen() ? life.get() : nullptr;
    fate.was_away = fate.is_dead || life->is_frozen();
    if (life->is_dead() || life->is_frozen()) continue;
    SYNCLINE_RETURN_IF_ERROR(CheckLife(epoch, *life, MostDelay(plan_)));
    life->End();
  }
  Count(epoch);
  return absl::OkStatus();
}

absl::Status Simulation::Run() {
  for (int i = 1; i <= plan_.epochs; ++i) {
    const bool is_last = i == plan_.epochs;
    events_.RunUntil(events_.now() +
                     plan_.failure_timeout * (0.01 * Between(random_, 0, 200)));
    std::vector<int> members = DrawMembers(is_last);
    if (is_last || members.size() < 2) {
      SYNCLINE_RETURN_IF_ERROR(WaitForTheFrozen());
      members = DrawMembers(/*is_last=*/true);
    }
    Form(members, is_last);
    SYNCLINE_RETURN_IF_ERROR(RunUntilSettled());
    SYNCLINE_RETURN_IF_ERROR(Close());
  }
  // Frozen members have ended, too, and no memory was written since.
  for (const auto& epoch : epochs_) {
    for (const auto& life : epoch->lives) {
      if (life->is_dead()) continue;
      SYNCLINE_RETURN_IF_ERROR(CheckLife(*epoch, *life, MostDelay(plan_)));
    }
  }
  const auto& last = *epochs_.back();
  for (const auto& life : last.lives) {
    for (const auto& called : life->called()) {
      if (!called->pending->status.ok()) return called->pending->status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Simulate(uint64_t seed, Fault fault, Tally& tally) {
  return Simulation(seed, fault, tally).Run();
}

}  // namespace syncline::group_sim
