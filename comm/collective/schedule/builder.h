// Builds the schedules of this folder's algorithms.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "comm/collective/schedule/schedule.h"

namespace syncline::collective {

class ScheduleBuilder {
 public:
  // Number of a step; kNone: no step.
  using Number = int64_t;
  static constexpr Number kNone = -1;

  Number Send(int peer, Range source, std::initializer_list<Number> waits = {}) {
    return Add({.action = Action::kSend, .source = source, .peers = {peer}}, waits);
  }
  Number Receive(int peer, Range target, std::initializer_list<Number> waits = {}) {
    return Add({.action = Action::kReceive, .target = target, .peers = {peer}}, waits);
  }
  Number Copy(Range source, Range target, std::initializer_list<Number> waits = {}) {
    return Add({.action = Action::kCopy, .target = target, .source = source}, waits);
  }
  // target = source combined with the data from each of `peers`.
  Number Reduce(std::vector<int> peers, Range source, Range target,
                std::initializer_list<Number> waits = {}) {
    return Add({.action = Action::kReduce,
                .target = target,
                .source = source,
                .peers = std::move(peers)},
               waits);
  }
  // Combines from left to right: `turn` peers, the source, then the other peers.
  void SetTurn(Number reduce, int turn) {
    schedule_.steps[static_cast<size_t>(reduce)].turn = static_cast<uint32_t>(turn);
  }

  Number Fold(std::vector<Range> parts, Range target) {
    return Add({.action = Action::kFold, .target = target, .parts = std::move(parts)},
               {});
  }

  void Completes(Number reduce) {
    if (reduce != kNone) schedule_.steps[static_cast<size_t>(reduce)].completes = true;
  }
  void Wait(Number step, Number before) {
    if (before == kNone) return;
    schedule_.steps[static_cast<size_t>(step)].waits.push_back(
        static_cast<uint32_t>(before));
  }
  // Returns a new scratch range of `count` elements.
  Range Scratch(size_t count) {
    const Range range = {Area::kScratch, schedule_.scratch, count};
    schedule_.scratch += count;
    return range;
  }

  Schedule Take() { return std::move(schedule_); }

 private:
  Number Add(Step step, std::initializer_list<Number> waits) {
    schedule_.steps.push_back(std::move(step));
    const auto number = static_cast<Number>(schedule_.steps.size()) - 1;
    for (const Number wait : waits) Wait(number, wait);
    return number;
  }

  Schedule schedule_;
};

// Returns where the slices for or from each rank lie in an all-to-all. Empty `counts`:
// equal slices.
std::vector<Range> Places(const Problem& problem, Area area,
                          const std::vector<size_t>& counts);

// The algorithms. REQUIRES: Supports(algorithm, problem), more than one rank.
Schedule DirectSchedule(const Problem& problem);
Schedule RingSchedule(const Problem& problem);
Schedule DoublingSchedule(const Problem& problem);
Schedule HalvingSchedule(const Problem& problem);
Schedule TreeSchedule(const Problem& problem);
Schedule BruckSchedule(const Problem& problem);
Schedule PairwiseSchedule(const Problem& problem);
Schedule HierarchicalSchedule(const Problem& problem);
Schedule DoubleTreeSchedule(const Problem& problem);
Schedule TorusSchedule(const Problem& problem);
// Number of rows of the grid: the largest divisor of `ranks` up to its square root.
int TorusRows(int ranks);
// All-reduces that combine values in the order of ranks.
Schedule ExactRingSchedule(const Problem& problem);
Schedule ExactDoublingSchedule(const Problem& problem);
Schedule ExactHierarchicalSchedule(const Problem& problem);

}  // namespace syncline::collective
