// Bruck's all-to-all: ceil(log2 p) rounds, each of which moves half of all blocks. It is
// for many ranks and few bytes.
#include "comm/collective/schedule/builder.h"

namespace syncline::collective {

using Number = ScheduleBuilder::Number;

Schedule BruckSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  const int ranks = problem.ranks;
  const auto block = [&](Area area, int index) {
    const auto rank = static_cast<size_t>((index % ranks + ranks) % ranks);
    return Range{area, rank * problem.count, problem.count};
  };
  // Block i is on its way to the rank i places after the one that holds it.
  std::vector<Range> held;
  std::vector<Number> ready;
  for (int i = 0; i < ranks; ++i) {
    held.push_back(builder.Scratch(problem.count));
    ready.push_back(builder.Copy(block(Area::kInput, problem.rank + i), held.back()));
  }
  for (int distance = 1; distance < ranks; distance *= 2) {
    const int to = (problem.rank + distance) % ranks;
    const int from = (problem.rank - distance + ranks) % ranks;
    for (int i = distance; i < ranks; ++i) {
      if ((i & distance) == 0) continue;
      const auto k = static_cast<size_t>(i);
      const Number sent = builder.Send(to, held[k], {ready[k]});
      ready[k] = builder.Receive(from, held[k], {sent});
    }
  }
  for (int i = 0; i < ranks; ++i) {
    const auto k = static_cast<size_t>(i);
    builder.Copy(held[k], block(Area::kOutput, problem.rank - i), {ready[k]});
  }
  return builder.Take();
}

}  // namespace syncline::collective
