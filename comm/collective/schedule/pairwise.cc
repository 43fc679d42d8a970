// All-to-all in rounds: in round k, each rank sends to the rank k places after it and
// receives from the rank k places before it. So a receiver has only one sender at a time.
// A rank starts the next round when it has received this round's data.
#include "comm/collective/schedule/builder.h"

namespace syncline::collective {

using Number = ScheduleBuilder::Number;

Schedule PairwiseSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  const auto to = Places(problem, Area::kInput, problem.send_counts);
  const auto from = Places(problem, Area::kOutput, problem.receive_counts);
  const auto own = static_cast<size_t>(problem.rank);
  builder.Copy(to[own], from[own]);
  Number heard = ScheduleBuilder::kNone;
  for (int distance = 1; distance < problem.ranks; ++distance) {
    const int after = (problem.rank + distance) % problem.ranks;
    const int before = (problem.rank - distance + problem.ranks) % problem.ranks;
    builder.Send(after, to[static_cast<size_t>(after)], {heard});
    heard = builder.Receive(before, from[static_cast<size_t>(before)]);
  }
  return builder.Take();
}

}  // namespace syncline::collective
