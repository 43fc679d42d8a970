// Every rank sends to all that need its data, at once. Most operations take one round. An
// all-reduce takes two: each rank reduces its slice of all ranks' values, then all gather
// the slices. Over shared memory this is the two-shot all-reduce. It rounds sums of BF16
// and FP16 only once.
#include <algorithm>
#include <optional>
#include <utility>

#include "comm/collective/schedule/builder.h"

namespace syncline::collective {
namespace {

using Number = ScheduleBuilder::Number;

// Returns the ranks other than `problem.rank`, the next one first, so that not all begin
// with rank 0.
std::vector<int> Others(const Problem& problem) {
  std::vector<int> others;
  for (int k = 1; k < problem.ranks; ++k) {
    others.push_back((problem.rank + k) % problem.ranks);
  }
  return others;
}

// Reduces in rank order, which gives the same bits in every run. If the order need not be
// exact, the owner's own values come first.
Number ReduceOwn(ScheduleBuilder& builder, const Problem& problem, Range source,
                 Range target) {
  std::vector<int> others = Others(problem);
  if (problem.exact) std::sort(others.begin(), others.end());
  const Number reduce = builder.Reduce(std::move(others), source, target);
  if (problem.exact) builder.SetTurn(reduce, problem.rank);
  builder.Completes(reduce);
  return reduce;
}

// One segment of an all-reduce, in two halves: slices are sent and reduced, then
// gathered. The first half of the next segment precedes the second half of this one, so
// that no rank waits for the slowest.
class AllReduceSegment {
 public:
  AllReduceSegment(ScheduleBuilder& builder, const Problem& problem, Range range)
      : builder_(builder), problem_(problem), range_(range) {}

  void Reduce() {
    for (const int peer : Others(problem_)) {
      sent_.push_back(builder_.Send(peer, SliceOf(peer)));
    }
    const Range own = SliceOf(problem_.rank);
    reduced_ = ReduceOwn(builder_, problem_, own, own);
  }

  void Gather() {
    const std::vector<int> others = Others(problem_);
    for (const int peer : others) {
      builder_.Send(peer, SliceOf(problem_.rank), {reduced_});
    }
    for (size_t k = 0; k < others.size(); ++k) {
      builder_.Receive(others[k], SliceOf(others[k]), {sent_[k]});
    }
  }

 private:
  Range SliceOf(int rank) const {
    Range slice = EvenSlice(Area::kOutput, range_.count, problem_.ranks, rank);
    slice.first += range_.first;
    return slice;
  }

  ScheduleBuilder& builder_;
  const Problem& problem_;
  const Range range_;
  std::vector<Number> sent_;
  Number reduced_ = ScheduleBuilder::kNone;
};

void AllReduce(ScheduleBuilder& builder, const Problem& problem) {
  const size_t most = problem.segment > 0 ? problem.segment : problem.count;
  std::optional<AllReduceSegment> before;
  size_t first = 0;
  do {
    const size_t count = std::min(most, problem.count - first);
    AllReduceSegment segment(builder, problem, {Area::kOutput, first, count});
    segment.Reduce();
    if (before) before->Gather();
    before.emplace(std::move(segment));
    first += count;
  } while (first < problem.count);
  before->Gather();
}

void ReduceScatter(ScheduleBuilder& builder, const Problem& problem) {
  const auto slice = [&](int rank) {
    return Range{Area::kInput, static_cast<size_t>(rank) * problem.count, problem.count};
  };
  for (const int peer : Others(problem)) builder.Send(peer, slice(peer));
  ReduceOwn(builder, problem, slice(problem.rank), {Area::kOutput, 0, problem.count});
}

void AllGather(ScheduleBuilder& builder, const Problem& problem) {
  const auto slice = [&](int rank) {
    return Range{Area::kOutput, static_cast<size_t>(rank) * problem.count, problem.count};
  };
  const Range own = {Area::kInput, 0, problem.count};
  for (const int peer : Others(problem)) builder.Send(peer, own);
  builder.Copy(own, slice(problem.rank));
  for (const int peer : Others(problem)) builder.Receive(peer, slice(peer));
}

void Broadcast(ScheduleBuilder& builder, const Problem& problem) {
  const Range all = {Area::kOutput, 0, problem.count};
  if (problem.rank != problem.root) {
    builder.Receive(problem.root, all);
    return;
  }
  for (const int peer : Others(problem)) builder.Send(peer, all);
}

void Reduce(ScheduleBuilder& builder, const Problem& problem) {
  const Range input = {Area::kInput, 0, problem.count};
  if (problem.rank != problem.root) {
    builder.Send(problem.root, input);
    return;
  }
  ReduceOwn(builder, problem, input, {Area::kOutput, 0, problem.count});
}

void Gather(ScheduleBuilder& builder, const Problem& problem) {
  const Range own = {Area::kInput, 0, problem.count};
  if (problem.rank != problem.root) {
    builder.Send(problem.root, own);
    return;
  }
  const auto slice = [&](int rank) {
    return Range{Area::kOutput, static_cast<size_t>(rank) * problem.count, problem.count};
  };
  builder.Copy(own, slice(problem.rank));
  for (const int peer : Others(problem)) builder.Receive(peer, slice(peer));
}

void Scatter(ScheduleBuilder& builder, const Problem& problem) {
  const Range own = {Area::kOutput, 0, problem.count};
  if (problem.rank != problem.root) {
    builder.Receive(problem.root, own);
    return;
  }
  const auto slice = [&](int rank) {
    return Range{Area::kInput, static_cast<size_t>(rank) * problem.count, problem.count};
  };
  for (const int peer : Others(problem)) builder.Send(peer, slice(peer));
  builder.Copy(slice(problem.rank), own);
}

void AllToAll(ScheduleBuilder& builder, const Problem& problem) {
  const auto to = Places(problem, Area::kInput, problem.send_counts);
  const auto from = Places(problem, Area::kOutput, problem.receive_counts);
  const auto own = static_cast<size_t>(problem.rank);
  for (const int peer : Others(problem)) {
    builder.Send(peer, to[static_cast<size_t>(peer)]);
  }
  builder.Copy(to[own], from[own]);
  for (const int peer : Others(problem)) {
    builder.Receive(peer, from[static_cast<size_t>(peer)]);
  }
}

// Dissemination: in round k, each rank learns of the 2^k ranks before it.
void Barrier(ScheduleBuilder& builder, const Problem& problem) {
  Number heard = ScheduleBuilder::kNone;
  for (int distance = 1; distance < problem.ranks; distance *= 2) {
    builder.Send((problem.rank + distance) % problem.ranks, {}, {heard});
    heard = builder.Receive((problem.rank - distance + problem.ranks) % problem.ranks, {},
                            {heard});
  }
}

void SendReceive(ScheduleBuilder& builder, const Problem& problem) {
  const Range from = {Area::kInput, 0, problem.count};
  const Range to = {Area::kOutput, 0, problem.count};
  if (problem.source == problem.root) {
    if (problem.rank == problem.root) builder.Copy(from, to);
    return;
  }
  if (problem.rank == problem.source) builder.Send(problem.root, from);
  if (problem.rank == problem.root) builder.Receive(problem.source, to);
}

}  // namespace

// Returns where each rank's elements lie, one after another.
std::vector<Range> Places(const Problem& problem, Area area,
                          const std::vector<size_t>& counts) {
  std::vector<Range> places;
  size_t first = 0;
  for (size_t rank = 0; rank < static_cast<size_t>(problem.ranks); ++rank) {
    const size_t count = counts.empty() ? problem.count : counts[rank];
    places.push_back({area, first, count});
    first += count;
  }
  return places;
}

Schedule DirectSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  switch (problem.op) {
    case CollectiveOp::kAllReduce:
      AllReduce(builder, problem);
      break;
    case CollectiveOp::kReduceScatter:
      ReduceScatter(builder, problem);
      break;
    case CollectiveOp::kAllGather:
      AllGather(builder, problem);
      break;
    case CollectiveOp::kBroadcast:
      Broadcast(builder, problem);
      break;
    case CollectiveOp::kReduce:
      Reduce(builder, problem);
      break;
    case CollectiveOp::kGather:
      Gather(builder, problem);
      break;
    case CollectiveOp::kScatter:
      Scatter(builder, problem);
      break;
    case CollectiveOp::kAllToAll:
      AllToAll(builder, problem);
      break;
    case CollectiveOp::kBarrier:
      Barrier(builder, problem);
      break;
    case CollectiveOp::kSendReceive:
      SendReceive(builder, problem);
      break;
  }
  return builder.Take();
}

}  // namespace syncline::collective
