// Algorithms with partners at distances 1, 2, 4, ...: recursive doubling with whole
// vectors, for few bytes; recursive halving and doubling (Rabenseifner), for more; and
// Bruck's all-gather.
//
// If the number of ranks is not a power of two, the first ranks form pairs: the even one
// gives its values to the odd one, does not take part, and receives the result at the
// end.
#include <algorithm>
#include <bit>

#include "comm/collective/schedule/builder.h"

namespace syncline::collective {
namespace {

using Number = ScheduleBuilder::Number;

class Folded {
 public:
  explicit Folded(const Problem& problem)
      : rank_(problem.rank),
        size_(static_cast<int>(std::bit_floor(static_cast<unsigned>(problem.ranks)))),
        extra_(problem.ranks - size_) {}

  int size() const { return size_; }  // ranks that take part, a power of two
  bool in_pair() const { return rank_ < 2 * extra_; }
  bool aside() const { return in_pair() && rank_ % 2 == 0; }
  // Returns this rank's number among those that take part.
  int place() const { return in_pair() ? rank_ / 2 : rank_ - extra_; }
  int RankOf(int place) const { return place < extra_ ? 2 * place + 1 : place + extra_; }
  int twin() const { return rank_ ^ 1; }

 private:
  const int rank_;
  const int size_;
  const int extra_;
};

// Runs `core` between the hand-over and the return. `core` adds the steps of a rank that
// takes part, after the given step, and returns the last ones. It does not run on a rank
// that stands aside.
template <typename Core>
void Fold(ScheduleBuilder& builder, const Problem& problem, const Core& core) {
  const Folded folded(problem);
  const Range all = {Area::kOutput, 0, problem.count};
  if (folded.aside()) {
    const Number sent = builder.Send(folded.twin(), all);
    builder.Receive(folded.twin(), all, {sent});
    return;
  }
  Number ready = ScheduleBuilder::kNone;
  if (folded.in_pair()) ready = builder.Reduce({folded.twin()}, all, all);
  const std::vector<Number> last = core(folded, ready);
  if (!folded.in_pair()) return;
  const Number back = builder.Send(folded.twin(), all);
  for (const Number step : last) builder.Wait(back, step);
}

std::vector<Number> Doubling(ScheduleBuilder& builder, const Problem& problem,
                             const Folded& folded, Number ready) {
  const Range all = {Area::kOutput, 0, problem.count};
  for (int distance = 1; distance < folded.size(); distance *= 2) {
    const int partner = folded.RankOf(folded.place() ^ distance);
    const Number sent = builder.Send(partner, all, {ready});
    ready = builder.Reduce({partner}, all, all, {sent});
  }
  builder.Completes(ready);
  return {ready};
}

// Returns the elements of participants [first, first + count).
Range Window(const Problem& problem, const Folded& folded, int first, int count) {
  const Range from = EvenSlice(Area::kOutput, problem.count, folded.size(), first);
  const Range to =
      EvenSlice(Area::kOutput, problem.count, folded.size(), first + count - 1);
  return {Area::kOutput, from.first, to.end() - from.first};
}

std::vector<Number> Halving(ScheduleBuilder& builder, const Problem& problem,
                            const Folded& folded, Number ready) {
  struct Round {
    int partner;
    Range kept;
    Range given;
    Number sent;
  };
  std::vector<Round> rounds;
  int first = 0;
  for (int half = folded.size() / 2; half >= 1; half /= 2) {
    const bool upper = (folded.place() & half) != 0;
    Round round = {.partner = folded.RankOf(folded.place() ^ half),
                   .kept = Window(problem, folded, first + (upper ? half : 0), half),
                   .given = Window(problem, folded, first + (upper ? 0 : half), half),
                   .sent = ScheduleBuilder::kNone};
    round.sent = builder.Send(round.partner, round.given, {ready});
    ready = builder.Reduce({round.partner}, round.kept, round.kept, {ready});
    if (upper) first += half;
    rounds.push_back(round);
  }
  builder.Completes(ready);
  // This rank sends what it holds when all parts are there.
  std::vector<Number> have = {ready};
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    const Number sent = builder.Send(round->partner, round->kept);
    for (const Number part : have) builder.Wait(sent, part);
    have.push_back(builder.Receive(round->partner, round->given, {round->sent}));
  }
  return have;
}

void AllGather(ScheduleBuilder& builder, const Problem& problem) {
  const int ranks = problem.ranks;
  // Returns the slice of the rank `ahead` places after this one.
  const auto slice = [&](int ahead) {
    const auto rank = static_cast<size_t>((problem.rank + ahead) % ranks);
    return Range{Area::kOutput, rank * problem.count, problem.count};
  };
  std::vector<Number> have = {builder.Copy({Area::kInput, 0, problem.count}, slice(0))};
  for (int distance = 1; distance < ranks; distance *= 2) {
    const int to = (problem.rank - distance + ranks) % ranks;
    const int from = (problem.rank + distance) % ranks;
    const int blocks = std::min(distance, ranks - distance);
    for (int k = 0; k < blocks; ++k) {
      builder.Send(to, slice(k), {have[static_cast<size_t>(k)]});
    }
    for (int k = 0; k < blocks; ++k) {
      have.push_back(builder.Receive(from, slice(distance + k)));
    }
  }
}

}  // namespace

Schedule DoublingSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  if (problem.op == CollectiveOp::kAllGather) {
    AllGather(builder, problem);
  } else {
    Fold(builder, problem, [&](const Folded& folded, Number ready) {
      return Doubling(builder, problem, folded, ready);
    });
  }
  return builder.Take();
}

Schedule HalvingSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  Fold(builder, problem, [&](const Folded& folded, Number ready) {
    return Halving(builder, problem, folded, ready);
  });
  return builder.Take();
}

}  // namespace syncline::collective
