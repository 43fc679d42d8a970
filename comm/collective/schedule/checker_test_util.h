// Runs the schedules of all ranks together, in random order and with pipes that hold only
// a few elements. If the results are right for several seeds, the schedules wait for
// everything they must, and cannot deadlock in an engine that moves more at a time. Tests
// only.
//
// Values are numbers modulo 2^64. Reducing is adding, so that a missing or repeated
// contribution shows. Or it is a function that gives different results for different
// orders.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/collective/schedule/schedule.h"

namespace syncline::collective {

// Tests of every number of ranks end here. Sanitizers see fewer, and no large groups: what
// they can find in a schedule, they find in a small one.
#ifdef SYNCLINE_SANITIZED
inline constexpr int kMaxCheckedRanks = 12;
inline constexpr bool kChecksLargeGroups = false;
#else
inline constexpr int kMaxCheckedRanks = 33;
inline constexpr bool kChecksLargeGroups = true;
#endif

using Values = std::vector<uint64_t>;

// Combines two values, the left one first.
using Combining = uint64_t (*)(uint64_t left, uint64_t right);
inline uint64_t Add(uint64_t left, uint64_t right) { return left + right; }
inline uint64_t InOrder(uint64_t left, uint64_t right) {
  return left * 0x9e3779b97f4a7c15u + (right ^ 0x94d049bb133111ebu) * 0xbf58476d1ce4e5b9u;
}

struct CheckedRun {
  std::vector<Values> outputs;
  std::string error;  // empty: it finished
  int rounds = 0;     // messages that had to follow each other
  // Counts of the busiest rank, sent or received.
  size_t messages = 0;
  size_t elements = 0;
  size_t completed = 0;  // elements of reductions that `completes`, of all ranks
};

class ScheduleChecker {
 public:
  // `inputs` and `outputs` are the contents of the ranks' memory at the start.
  ScheduleChecker(std::vector<Schedule> schedules, std::vector<Values> inputs,
                  std::vector<Values> outputs, Combining combining = Add)
      : combining_(combining),
        schedules_(std::move(schedules)),
        inputs_(std::move(inputs)) {
    run_.outputs = std::move(outputs);
    for (const Schedule& schedule : schedules_) {
      states_.emplace_back(schedule.steps.size());
      scratch_.emplace_back(schedule.scratch, 0xdead);
      for (const Step& step : schedule.steps) unfinished_ += step.count() > 0 ? 1 : 0;
    }
  }

  CheckedRun Run(uint64_t seed) {
    std::mt19937_64 random(seed);
    const size_t capacity = 1 + random() % 3;
    int idle = 0;
    while (unfinished_ > 0) {
      bool moved = false;
      for (size_t turn = 0; turn < schedules_.size(); ++turn) {
        const size_t rank = random() % schedules_.size();
        moved |= Advance(rank, 1 + random() % 4, capacity);
      }
      idle = moved ? 0 : idle + 1;
      if (idle > 200) {
        run_.error = "the ranks wait for each other";
        return run_;
      }
    }
    for (const auto& [pair, pipe] : pipes_) {
      if (!pipe.values.empty()) run_.error = "something was sent that nobody received";
    }
    Count();
    return run_;
  }

 private:
  struct State {
    size_t done = 0;
    int round = 0;
  };
  struct Pipe {
    std::deque<std::pair<uint64_t, int>> values;  // with the round they were sent in
  };
  using Pair = std::pair<int, int>;

  Values& Memory(size_t rank, Area area) {
    if (area == Area::kInput) return inputs_[rank];
    return area == Area::kOutput ? run_.outputs[rank] : scratch_[rank];
  }
  uint64_t& At(size_t rank, Range range, size_t element) {
    return Memory(rank, range.area).at(range.first + element);
  }

  // Whether all earlier steps that use the same pipe in the same direction have finished.
  bool IsNext(size_t rank, size_t index) {
    const Step& step = schedules_[rank].steps[index];
    const bool sends = step.action == Action::kSend;
    for (size_t i = 0; i < index; ++i) {
      const Step& other = schedules_[rank].steps[i];
      if (other.peers.empty() || (other.action == Action::kSend) != sends) continue;
      if (states_[rank][i].done == other.count()) continue;
      for (const int peer : step.peers) {
        if (std::find(other.peers.begin(), other.peers.end(), peer) != other.peers.end())
          return false;
      }
    }
    return true;
  }

  bool Allowed(size_t rank, size_t index) {
    const Step& step = schedules_[rank].steps[index];
    State& state = states_[rank][index];
    for (const uint32_t wait : step.waits) {
      const Step& before = schedules_[rank].steps[wait];
      const State& its = states_[rank][wait];
      const size_t whole = before.count();
      const bool enough =
          its.done == whole || (FollowsClosely(step, before) && its.done > state.done);
      if (!enough) return false;
      state.round = std::max(state.round, its.round);
    }
    return step.peers.empty() || IsNext(rank, index);
  }

  bool Advance(size_t rank, size_t most, size_t capacity) {
    bool moved = false;
    for (size_t index = 0; index < schedules_[rank].steps.size(); ++index) {
      for (size_t k = 0; k < most && MoveOne(rank, index, capacity); ++k) moved = true;
    }
    return moved;
  }

  bool MoveOne(size_t rank, size_t index, size_t capacity) {
    const Step& step = schedules_[rank].steps[index];
    State& state = states_[rank][index];
    if (state.done == step.count() || !Allowed(rank, index)) return false;
    const auto self = static_cast<int>(rank);
    const size_t i = state.done;
    if (step.action == Action::kSend) {
      auto& pipe = pipes_[{self, step.peers[0]}].values;
      if (pipe.size() >= capacity) return false;
      pipe.emplace_back(At(rank, step.source, i), state.round + 1);
    } else {
      for (const int peer : step.peers) {
        if (pipes_[{peer, self}].values.empty()) return false;
      }
      Values operands;
      for (const int peer : step.peers) {
        auto& pipe = pipes_[{peer, self}].values;
        operands.push_back(pipe.front().first);
        state.round = std::max(state.round, pipe.front().second);
        pipe.pop_front();
      }
      for (const Range& part : step.parts) operands.push_back(At(rank, part, i));
      if (step.action == Action::kReduce || step.action == Action::kCopy) {
        operands.insert(operands.begin() + step.turn, At(rank, step.source, i));
      }
      uint64_t value = operands.front();
      for (size_t k = 1; k < operands.size(); ++k) {
        value = combining_(value, operands[k]);
      }
      At(rank, step.target, i) = value;
      run_.rounds = std::max(run_.rounds, state.round);
      if (step.completes) ++run_.completed;
    }
    if (++state.done == step.count()) --unfinished_;
    return true;
  }

  void Count() {
    for (const Schedule& schedule : schedules_) {
      size_t messages[2] = {0, 0};
      size_t elements[2] = {0, 0};
      for (const Step& step : schedule.steps) {
        const size_t side = step.action == Action::kSend ? 0 : 1;
        messages[side] += step.peers.size();
        elements[side] += step.peers.size() * step.count();
      }
      run_.messages = std::max({run_.messages, messages[0], messages[1]});
      run_.elements = std::max({run_.elements, elements[0], elements[1]});
    }
  }

  const Combining combining_;
  std::vector<Schedule> schedules_;
  std::vector<Values> inputs_;
  std::vector<Values> scratch_;
  std::vector<std::vector<State>> states_;
  std::map<Pair, Pipe> pipes_;
  size_t unfinished_ = 0;
  CheckedRun run_;
};

}  // namespace syncline::collective
