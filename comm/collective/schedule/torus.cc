// An all-reduce on a grid of a rows and b columns, closed to a torus (Mikami et al.
// 2018). A ring within each row leaves every rank a slice. A ring within each column
// reduces that slice over the rows. A ring within each row gathers the slices. It needs
// the bytes of one ring of all ranks, 2(p - 1)/p n, in 2(a + b - 2) rounds instead of
// 2(p - 1).
#include <functional>

#include "comm/collective/schedule/builder.h"

namespace syncline::collective {
namespace {

using Number = ScheduleBuilder::Number;
using Numbers = std::vector<Number>;

// One of the two rings that a rank belongs to.
class Ring {
 public:
  Ring(ScheduleBuilder& builder, int members, int place,
       const std::function<int(int)>& rank_of)
      : builder_(builder),
        members_(members),
        place_(place),
        left_(rank_of((place + members - 1) % members)),
        right_(rank_of((place + 1) % members)),
        sent_(static_cast<size_t>(members), ScheduleBuilder::kNone) {}

  // Returns the slice whose reduction ends on this rank.
  int own() const { return Before(members_ - 1); }

  // Returns the last reduction, which is that of slice own(). Every step waits for
  // `ready`.
  Number ReduceScatter(Range whole, Number ready) {
    Number reduced = ready;
    for (int k = 0; k + 1 < members_; ++k) {
      Sent(Before(k)) = builder_.Send(right_, SliceOf(whole, Before(k)), {reduced});
      const Range in = SliceOf(whole, Before(k + 1));
      reduced = builder_.Reduce({left_}, in, in, {ready});
    }
    return reduced;
  }

  // Gathers the other slices after ReduceScatter. `had`: the steps after which own() is
  // complete. Returns the steps after which all slices are.
  Numbers AllGather(Range whole, const Numbers& had) {
    Numbers all = had;
    for (int k = 0; k + 1 < members_; ++k) {
      const Range out = SliceOf(whole, Before(k + members_ - 1));
      const Number sent = builder_.Send(right_, out);
      if (k == 0) {
        for (const Number step : had) builder_.Wait(sent, step);
      } else {
        builder_.Wait(sent, all.back());
      }
      const int in = Before(k);
      all.push_back(builder_.Receive(left_, SliceOf(whole, in), {Sent(in)}));
    }
    return all;
  }

  Range SliceOf(Range whole, int index) const {
    Range slice = EvenSlice(whole.area, whole.count, members_, index);
    slice.first += whole.first;
    return slice;
  }

 private:
  int Before(int steps) const {
    return (place_ - steps % members_ + members_) % members_;
  }
  Number& Sent(int slice) { return sent_[static_cast<size_t>(slice)]; }

  ScheduleBuilder& builder_;
  const int members_;
  const int place_;
  const int left_;
  const int right_;
  Numbers sent_;  // by slice: step of the reduction
};

}  // namespace

int TorusRows(int ranks) {
  int rows = 1;
  for (int a = 2; a * a <= ranks; ++a) {
    if (ranks % a == 0) rows = a;
  }
  return rows;
}

Schedule TorusSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  const int rows = TorusRows(problem.ranks);
  const int columns = problem.ranks / rows;
  const int row = problem.rank / columns;
  const int column = problem.rank % columns;
  Ring across(builder, columns, column, [&](int place) { return row * columns + place; });
  Ring along(builder, rows, row, [&](int place) { return place * columns + column; });
  const Range all = {Area::kOutput, 0, problem.count};
  const Range own = across.SliceOf(all, across.own());
  const Number of_row = across.ReduceScatter(all, ScheduleBuilder::kNone);
  const Number of_all = along.ReduceScatter(own, of_row);
  builder.Completes(of_all);
  across.AllGather(all, along.AllGather(own, {of_all}));
  return builder.Take();
}

}  // namespace syncline::collective
