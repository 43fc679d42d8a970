// The ring of Patarasuk and Yuan (2009): 2(p - 1) rounds and 2(p - 1)/p of the bytes for
// an all-reduce. Each rank communicates only with its two neighbours. A broadcast is a
// chain.
#include "comm/collective/schedule/builder.h"

namespace syncline::collective {
namespace {

using Number = ScheduleBuilder::Number;

struct Ring {
  explicit Ring(const Problem& problem)
      : ranks(problem.ranks),
        rank(problem.rank),
        left((rank + ranks - 1) % ranks),
        right((rank + 1) % ranks) {}

  // Returns the rank `steps` before this one.
  int Before(int steps) const { return (rank - steps % ranks + ranks) % ranks; }

  int ranks;
  int rank;
  int left;
  int right;
};

void AllReduce(ScheduleBuilder& builder, const Problem& problem) {
  const Ring ring(problem);
  const auto slice = [&](int rank) {
    return EvenSlice(Area::kOutput, problem.count, ring.ranks, rank);
  };
  std::vector<Number> sent(static_cast<size_t>(ring.ranks), ScheduleBuilder::kNone);
  Number reduced = ScheduleBuilder::kNone;
  for (int k = 0; k + 1 < ring.ranks; ++k) {
    const int out = ring.Before(k);
    const Range in = slice(ring.Before(k + 1));
    sent[static_cast<size_t>(out)] = builder.Send(ring.right, slice(out), {reduced});
    reduced = builder.Reduce({ring.left}, in, in);
  }
  builder.Completes(reduced);
  Number had = reduced;
  for (int k = 0; k + 1 < ring.ranks; ++k) {
    builder.Send(ring.right, slice(ring.Before(k + ring.ranks - 1)), {had});
    const int in = ring.Before(k);
    had = builder.Receive(ring.left, slice(in), {sent[static_cast<size_t>(in)]});
  }
}

// Partial sums use two places in turn, so that one can be sent while the other arrives.
void ReduceScatter(ScheduleBuilder& builder, const Problem& problem) {
  const Ring ring(problem);
  const auto slice = [&](int rank) {
    return Range{Area::kInput, static_cast<size_t>(rank) * problem.count, problem.count};
  };
  const Range rest[2] = {builder.Scratch(problem.count), builder.Scratch(problem.count)};
  Number left_rest[2] = {ScheduleBuilder::kNone, ScheduleBuilder::kNone};
  Number reduced = ScheduleBuilder::kNone;
  Range partial = slice(ring.Before(1));
  for (int k = 0; k + 1 < ring.ranks; ++k) {
    const Number sent = builder.Send(ring.right, partial, {reduced});
    if (k > 0) left_rest[(k - 1) % 2] = sent;
    const bool last = k + 2 == ring.ranks;
    partial = last ? Range{Area::kOutput, 0, problem.count} : rest[k % 2];
    reduced = builder.Reduce({ring.left}, slice(ring.Before(k + 2)), partial,
                             {last ? ScheduleBuilder::kNone : left_rest[k % 2]});
  }
  builder.Completes(reduced);
}

void AllGather(ScheduleBuilder& builder, const Problem& problem) {
  const Ring ring(problem);
  const auto slice = [&](int rank) {
    return Range{Area::kOutput, static_cast<size_t>(rank) * problem.count, problem.count};
  };
  const Range own = {Area::kInput, 0, problem.count};
  builder.Send(ring.right, own);
  builder.Copy(own, slice(ring.rank));
  for (int k = 1; k < ring.ranks; ++k) {
    const Range in = slice(ring.Before(k));
    const Number received = builder.Receive(ring.left, in);
    if (k + 1 < ring.ranks) builder.Send(ring.right, in, {received});
  }
}

void Broadcast(ScheduleBuilder& builder, const Problem& problem) {
  const Ring ring(problem);
  const Range all = {Area::kOutput, 0, problem.count};
  Number received = ScheduleBuilder::kNone;
  if (ring.rank != problem.root) received = builder.Receive(ring.left, all);
  if (ring.right != problem.root) builder.Send(ring.right, all, {received});
}

}  // namespace

Schedule RingSchedule(const Problem& problem) {
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
    default:
      Broadcast(builder, problem);
  }
  return builder.Take();
}

}  // namespace syncline::collective
