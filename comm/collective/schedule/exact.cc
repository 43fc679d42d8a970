// All-reduces that combine values in the order of ranks, from left to right,
//   ((r0 + r1) + r2) + ...
// So all of them give the same bits for any number of hosts. The direct one only needs
// another order of its peers (direct.cc). Trees and halving cannot combine in this order.
//
// Ring: a chain. Partial results go from the first rank to the last and whole results
// back, both at the same time. Doubling: every rank gets all ranks' values (Bruck's
// all-gather) and combines them alone. Hierarchical: a chain of hosts for each slice. The
// rank of a host that holds a slice combines what comes from the previous host with the
// values of its own host.
#include <algorithm>
#include <utility>

#include "comm/collective/schedule/builder.h"

namespace syncline::collective {
namespace {

using Number = ScheduleBuilder::Number;

// The place of a member in a chain; -1: there is none.
struct Link {
  int before = -1;
  int after = -1;
  std::vector<int> beside = {};  // ranks whose values it combines with its own, in order
  int turn = 0;                  // its own place among them
};

// Passes partial results up the chain and whole ones back. Returns the step after which
// `range` is whole on this rank.
Number Chain(ScheduleBuilder& builder, const Link& link, Range range) {
  std::vector<int> peers = link.beside;
  if (link.before >= 0) peers.insert(peers.begin(), link.before);
  Number whole = ScheduleBuilder::kNone;
  if (!peers.empty()) {
    whole = builder.Reduce(std::move(peers), range, range);
    builder.SetTurn(whole, link.turn + (link.before >= 0 ? 1 : 0));
  }
  if (link.after < 0) {
    builder.Completes(whole);
  } else {
    const Number passed = builder.Send(link.after, range, {whole});
    whole = builder.Receive(link.after, range, {passed});
  }
  if (link.before >= 0) builder.Send(link.before, range, {whole});
  return whole;
}

}  // namespace

Schedule ExactRingSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  const bool is_last = problem.rank + 1 == problem.ranks;
  const Link link = {.before = problem.rank - 1,
                     .after = is_last ? -1 : problem.rank + 1};
  Chain(builder, link, {Area::kOutput, 0, problem.count});
  return builder.Take();
}

Schedule ExactHierarchicalSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  const int local = problem.local;
  const int place = problem.rank % local;
  const int first = problem.rank - place;  // the first rank of this host
  const auto slice = [&](int index) {
    return EvenSlice(Area::kOutput, problem.count, local, index);
  };
  std::vector<int> beside;
  std::vector<Number> given(static_cast<size_t>(local), ScheduleBuilder::kNone);
  for (int k = 1; k < local; ++k) {
    const int other = (place + k) % local;
    beside.push_back(first + other);
    given[static_cast<size_t>(other)] = builder.Send(first + other, slice(other));
  }
  std::sort(beside.begin(), beside.end());
  const bool is_last = first + local == problem.ranks;
  const Link link = {.before = first == 0 ? -1 : problem.rank - local,
                     .after = is_last ? -1 : problem.rank + local,
                     .beside = beside,
                     .turn = place};
  const Number whole = Chain(builder, link, slice(place));
  for (const int rank : beside) builder.Send(rank, slice(place), {whole});
  for (const int rank : beside) {
    const int other = rank - first;
    builder.Receive(rank, slice(other), {given[static_cast<size_t>(other)]});
  }
  return builder.Take();
}

Schedule ExactDoublingSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  const Range own = {Area::kOutput, 0, problem.count};
  const int ranks = problem.ranks;
  const auto rank_of = [&](int ahead) { return (problem.rank + ahead) % ranks; };
  std::vector<Range> values;  // by rank
  for (int rank = 0; rank < ranks; ++rank) {
    values.push_back(rank == problem.rank ? own : builder.Scratch(problem.count));
  }
  const auto slice = [&](int ahead) {
    return values[static_cast<size_t>(rank_of(ahead))];
  };
  std::vector<Number> have = {ScheduleBuilder::kNone};
  std::vector<Number> ready;  // steps before the own values may be overwritten
  for (int distance = 1; distance < ranks; distance *= 2) {
    const int blocks = std::min(distance, ranks - distance);
    for (int k = 0; k < blocks; ++k) {
      const Number sent = builder.Send(rank_of(ranks - distance), slice(k),
                                       {have[static_cast<size_t>(k)]});
      if (k == 0) ready.push_back(sent);
    }
    for (int k = 0; k < blocks; ++k) {
      have.push_back(builder.Receive(rank_of(distance), slice(distance + k)));
      ready.push_back(have.back());
    }
  }
  const Number folded = builder.Fold(values, own);
  for (const Number before : ready) builder.Wait(folded, before);
  builder.Completes(folded);
  return builder.Take();
}

}  // namespace syncline::collective
