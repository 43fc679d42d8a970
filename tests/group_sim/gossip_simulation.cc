#include "tests/group_sim/gossip_simulation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"
#include "comm/collective/gossip/graph.h"
#include "comm/collective/gossip/pair_delta.h"
#include "comm/collective/group/core.h"
#include "tests/group_sim/plan.h"
#include "tests/group_sim/sim_wire.h"

namespace syncline::group_sim {
namespace {

using collective::GossipPartner;
using collective::GossipPlan;

constexpr absl::Duration kLook = absl::Milliseconds(5);  // the same as in group.cc
// Values start with ten bits, and each round adds one. A float has 24.
constexpr uint64_t kMaxRounds = 12;

struct GossipEpoch {
  GossipPlan plan;
  uint64_t first = 0;  // the first round
  uint64_t end = 0;
  int victim = -1;  // the rank that dies; -1: none
  uint64_t dies_in = 0;
  int dies_after = 0;  // number of turns in that round
  absl::Duration failure_timeout = {};
  absl::Duration most_compute = {};
  bool leaves_at_once = false;
  Fault fault = Fault::kNone;
};

// One member of one group.
class Gossiper : private collective::GroupCore::Observer {
 public:
  struct Done {
    int partner = 0;
    std::vector<float> delta = {};
  };

  Gossiper(const GossipEpoch& epoch, int rank, std::vector<float> values, uint64_t seed,
           EventQueue& events, InprocNetwork& network)
      : epoch_(epoch),
        rank_(rank),
        events_(events),
        network_(network),
        clock_(events),
        random_(seed),
        wire_({.rank = rank,
               .ranks = epoch.plan.ranks,
               .failure_timeout = epoch.failure_timeout,
               .fault = epoch.fault,
               .arrived = [this] { Arrived(); }},
              network, clock_),
        core_({.rank = rank, .ranks = epoch.plan.ranks, .hosts = epoch.plan.ranks}, wire_,
              *this),
        values_(std::move(values)),
        round_(epoch.first) {}

  SimWire& wire() { return wire_; }
  void Begin() { WakeAfter(Drawn(epoch_.most_compute)); }

  bool is_dead() const { return is_dead_; }
  bool is_over() const { return is_dead_ || !status_.ok() || round_ == epoch_.end; }
  uint64_t round() const { return round_; }
  const absl::Status& status() const { return status_; }
  const std::vector<float>& values() const { return values_; }
  const std::map<uint64_t, Done>& done() const { return done_; }

  void End() {
    if (is_dead_ || has_left_) return;
    if (core_.HasActive()) core_.Fail(absl::CancelledError("a rank ended the group"));
    wire_.Leave();
    has_left_ = true;
  }

 private:
  void OnFailed(const absl::Status& status) override { status_.Update(status); }
  void OnDone(collective::PendingCall& pending, const absl::Status& status) override {
    pending.status = status;
    pending.done = true;
  }

  absl::Duration Drawn(absl::Duration most) {
    return most * (0.001 * Between(random_, 0, 1000));
  }

  void WakeAfter(absl::Duration delay) {
    wakes_at_ = events_.now() + delay;
    events_.After(delay, [this, wake = ++wake_, here = std::weak_ptr(is_here_)] {
      if (!here.expired() && wake == wake_) Turn();
    });
  }

  void Arrived() {
    const absl::Duration soon = absl::Microseconds(Between(random_, 1, 60));
    if (!is_dead_ && wakes_at_ > events_.now() + soon) WakeAfter(soon);
  }

  void Die() {
    is_dead_ = true;
    for (int peer = 0; peer < epoch_.plan.ranks; ++peer) {
      if (peer != rank_) network_.Kill(wire_.address(peer));
    }
  }

  void Turn() {
    if (is_dead_ || has_left_) return;
    if (!status_.ok() && epoch_.leaves_at_once) return End();
    const bool is_hit = rank_ == epoch_.victim && round_ >= epoch_.dies_in &&
                        ++turns_ > epoch_.dies_after;
    if (is_hit && !is_over()) return Die();
    const absl::Duration now = events_.now();
    if (!is_over() && !partner_.has_value() && now >= calls_at_) BeginRound();
    bool moved = false;
    for (int i = Between(random_, 1, 4); i > 0; --i) moved = core_.Advance();
    core_.TendIfItIsTime(now);
    if (now - looked_ >= kLook) {
      looked_ = now;
      core_.Look(now);
    }
    EndRound();
    absl::Duration nap = moved ? absl::Microseconds(Between(random_, 1, 100)) : kLook;
    if (calls_at_ > now) nap = std::min(nap, calls_at_ - now);
    WakeAfter(nap);
  }

  std::shared_ptr<collective::PendingCall> Call(int source, int root) {
    auto pending = std::make_shared<collective::PendingCall>();
    pending->call = {.op = collective::CollectiveOp::kSendReceive,
                     .input = given_.data(),
                     .output = taken_.data(),
                     .count = given_.size(),
                     .root = root,
                     .source = source};
    pending->deadline = events_.now() + 1000 * epoch_.failure_timeout;
    SYNCLINE_CHECK(core_.CheckCall(pending->call).ok());
    core_.Add(pending);
    return pending;
  }

  void BeginRound() {
    while (round_ < epoch_.end && !partner_.has_value()) {
      partner_ = GossipPartner(epoch_.plan, round_, rank_);
      if (!partner_.has_value()) ++round_;
    }
    if (!partner_.has_value()) return;
    given_ = values_;
    taken_.assign(values_.size(), 0);
    sends_ = Call(rank_, *partner_);
    receives_ = Call(*partner_, rank_);
  }

  void EndRound() {
    if (!partner_.has_value() || !sends_->done || !receives_->done) return;
    if (!sends_->status.ok() || !receives_->status.ok()) return;
    Done done = {.partner = *partner_, .delta = std::vector<float>(values_.size())};
    collective::PairDelta(0.5f, given_, taken_, done.delta);
    for (size_t i = 0; i < values_.size(); ++i) values_[i] += done.delta[i];
    done_[round_++] = std::move(done);
    partner_.reset();
    calls_at_ = events_.now() + Drawn(epoch_.most_compute);
  }

  const GossipEpoch& epoch_;
  const int rank_;
  EventQueue& events_;
  InprocNetwork& network_;
  const EventClock clock_;
  Random random_;
  SimWire wire_;
  collective::GroupCore core_;
  std::vector<float> values_, given_, taken_;
  uint64_t round_;
  std::optional<int> partner_;
  std::shared_ptr<collective::PendingCall> sends_, receives_;
  std::map<uint64_t, Done> done_;
  absl::Status status_;
  uint64_t wake_ = 0;
  int turns_ = 0;
  absl::Duration wakes_at_ = absl::InfiniteDuration();
  absl::Duration calls_at_ = {};
  absl::Duration looked_ = {};
  bool is_dead_ = false;
  bool has_left_ = false;
  std::shared_ptr<const bool> is_here_ = std::make_shared<bool>(true);
};

using Circle = std::vector<std::unique_ptr<Gossiper>>;

std::vector<double> SumOf(const std::vector<std::vector<float>>& values) {
  std::vector<double> sum(values.front().size());
  for (const auto& x : values) {
    for (size_t i = 0; i < x.size(); ++i) sum[i] += double{x[i]};
  }
  return sum;
}

absl::Status CheckPairs(const Circle& circle) {
  for (const auto& one : circle) {
    for (const auto& [round, done] : one->done()) {
      const auto& others = circle[static_cast<size_t>(done.partner)]->done();
      const auto its = others.find(round);
      if (its == others.end()) continue;
      for (size_t i = 0; i < done.delta.size(); ++i) {
        if (done.delta[i] == -its->second.delta[i]) continue;
        return absl::InternalError(absl::StrCat("partners moved by ", done.delta[i],
                                                " and ", its->second.delta[i],
                                                " in round ", round));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckErrors(const Circle& circle, const GossipEpoch& epoch) {
  const bool has_died =
      epoch.victim >= 0 && circle[static_cast<size_t>(epoch.victim)]->is_dead();
  for (size_t rank = 0; rank < circle.size(); ++rank) {
    const Gossiper& one = *circle[rank];
    if (one.is_dead() || one.status().ok()) continue;
    if (has_died && absl::IsAborted(one.status()) &&
        collective::FailedRank(one.status()) == epoch.victim) {
      continue;
    }
    return absl::InternalError(
        absl::StrCat("rank ", rank, " ended with ", one.status().ToString(), ", and ",
                     has_died ? absl::StrCat("rank ", epoch.victim) : "nobody", " died"));
  }
  return absl::OkStatus();
}

struct Running {
  EventQueue& events;
  InprocNetwork& network;
  Random& random;
  Tally& tally;
};

// Runs one group to its end. Sets `values` and `round` to those of the surviving ranks.
absl::Status RunEpoch(const GossipEpoch& epoch, Running& running,
                      std::vector<std::vector<float>>& values, uint64_t& round) {
  const std::vector<double> before = SumOf(values);
  Circle circle;
  std::vector<SimWire*> wires;
  for (int rank = 0; rank < epoch.plan.ranks; ++rank) {
    circle.push_back(std::make_unique<Gossiper>(
        epoch, rank, std::move(values[static_cast<size_t>(rank)]), running.random(),
        running.events, running.network));
    wires.push_back(&circle.back()->wire());
  }
  for (SimWire* wire : wires) wire->Connect(wires);
  for (const auto& one : circle) one->Begin();
  ++running.tally.groups;
  const absl::Duration end =
      running.events.now() + absl::Seconds(2) + 60 * epoch.failure_timeout;
  const auto is_over = [](const auto& one) { return one->is_over(); };
  while (!std::ranges::all_of(circle, is_over)) {
    if (running.events.RunNext() && running.events.now() <= end) continue;
    return absl::InternalError("somebody hangs");
  }
  SYNCLINE_RETURN_IF_ERROR(CheckErrors(circle, epoch));
  SYNCLINE_RETURN_IF_ERROR(CheckPairs(circle));
  values.clear();
  for (const auto& one : circle) {
    running.tally.right += one->done().size();
    running.tally.failed += one->status().ok() ? 0 : 1;
    running.tally.incidents += one->is_dead() ? 1 : 0;
    if (!one->is_dead()) values.push_back(one->values());
    if (!one->is_dead()) round = std::max(round, one->round());
    one->End();
  }
  const bool all_live = values.size() == circle.size();
  if (all_live && SumOf(values) != before) {
    return absl::InternalError("nobody died, and the sum has changed");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SimulateGossip(uint64_t seed, Fault fault, Tally& tally) {
  Random random(seed);
  const Plan drawn = DrawPlan(random);
  EventQueue events;
  InprocNetwork network(events, drawn.network);
  Running running = {events, network, random, tally};
  const auto elements = static_cast<size_t>(Between(random, 1, 3000));
  std::vector<std::vector<float>> values;
  for (int rank = 0; rank < drawn.processes; ++rank) {
    values.emplace_back(elements);
    for (float& value : values.back()) {
      value = static_cast<float>(Between(random, -1023, 1023) * (1 << kMaxRounds));
    }
  }
  const auto graph = static_cast<collective::GossipGraph>(Between(random, 0, 2));
  uint64_t round = 0;
  for (bool is_last = false; !is_last && values.size() > 1;) {
    is_last = OneIn(random, 3) || values.size() == 2;
    GossipEpoch epoch = {
        .plan = {.graph = graph, .ranks = static_cast<int>(values.size()), .seed = seed},
        .first = round,
        .end = kMaxRounds,
        .failure_timeout = drawn.failure_timeout,
        .most_compute =
            OneIn(random, 4) ? 2 * drawn.failure_timeout : absl::Milliseconds(2),
        .leaves_at_once = OneIn(random, 2),
        .fault = fault};
    if (!is_last) {
      epoch.victim = Between(random, 0, epoch.plan.ranks - 1);
      epoch.dies_in = round + static_cast<uint64_t>(Between(random, 0, 4));
      epoch.dies_after = Between(random, 0, 12);
    }
    SYNCLINE_RETURN_IF_ERROR(RunEpoch(epoch, running, values, round));
  }
  return absl::OkStatus();
}

}  // namespace syncline::group_sim
