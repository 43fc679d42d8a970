// An all-reduce of hosts with several ranks each, which share the host's cable. The ranks
// of a host reduce among themselves, a slice each. The ranks that hold the same slice,
// one per host, reduce it along a ring. Then the ranks of a host gather the slices. A
// cable carries 2(hosts - 1)/hosts of the bytes, whatever the number of ranks per host.
//
// Slices are divided into parts, one for each host, in the order in which the ring needs
// them. While one part is on the cable, the next is reduced within the host.
#include <utility>

#include "comm/collective/schedule/builder.h"

namespace syncline::collective {
namespace {

using Number = ScheduleBuilder::Number;

class AllReduce {
 public:
  AllReduce(ScheduleBuilder& builder, const Problem& problem)
      : builder_(builder),
        problem_(problem),
        hosts_(problem.ranks / problem.local),
        host_(problem.rank / problem.local),
        place_(problem.rank % problem.local),
        reduced_(static_cast<size_t>(hosts_), ScheduleBuilder::kNone),
        given_(static_cast<size_t>(problem.ranks), ScheduleBuilder::kNone) {
    for (int k = 1; k < problem.local; ++k) {
      beside_.push_back((place_ + k) % problem.local);
    }
  }

  void Build() {
    for (int k = 0; k < hosts_; ++k) ReduceWithin(Before(k));
    ReduceAlongRing();
    Number had = OfPart(Before(hosts_ - 1));
    builder_.Completes(had);
    GatherWithin(Before(hosts_ - 1), had);
    for (int k = 0; k + 1 < hosts_; ++k) {
      const int in = Before(k);
      builder_.Send(RankOf(host_ + 1, place_), Part(place_, Before(k + hosts_ - 1)),
                    {had});
      had = builder_.Receive(RankOf(host_ - 1, place_), Part(place_, in),
                             {passed_[static_cast<size_t>(in)]});
      GatherWithin(in, had);
    }
  }

 private:
  int RankOf(int host, int place) const {
    return (host + hosts_) % hosts_ * problem_.local + place;
  }
  // Returns the host `steps` before this one on the ring. It is also the number of the
  // part that begins there.
  int Before(int steps) const { return (host_ - steps % hosts_ + hosts_) % hosts_; }

  Range Part(int place, int part) const {
    const Range slice = EvenSlice(Area::kOutput, problem_.count, problem_.local, place);
    Range range = EvenSlice(Area::kOutput, slice.count, hosts_, part);
    range.first += slice.first;
    return range;
  }
  Number& OfPart(int part) { return reduced_[static_cast<size_t>(part)]; }
  Number& Given(int place, int part) {
    return given_[static_cast<size_t>(place * hosts_ + part)];
  }

  void ReduceWithin(int part) {
    std::vector<int> peers;
    for (const int place : beside_) {
      peers.push_back(RankOf(host_, place));
      Given(place, part) = builder_.Send(peers.back(), Part(place, part));
    }
    const Range own = Part(place_, part);
    OfPart(part) = builder_.Reduce(std::move(peers), own, own);
  }

  void ReduceAlongRing() {
    passed_.resize(static_cast<size_t>(hosts_), ScheduleBuilder::kNone);
    for (int k = 0; k + 1 < hosts_; ++k) {
      const int out = Before(k);
      const int in = Before(k + 1);
      passed_[static_cast<size_t>(out)] =
          builder_.Send(RankOf(host_ + 1, place_), Part(place_, out), {OfPart(out)});
      OfPart(in) = builder_.Reduce({RankOf(host_ - 1, place_)}, Part(place_, in),
                                   Part(place_, in), {OfPart(in)});
    }
  }

  void GatherWithin(int part, Number had) {
    for (const int place : beside_) {
      builder_.Send(RankOf(host_, place), Part(place_, part), {had});
    }
    for (const int place : beside_) {
      builder_.Receive(RankOf(host_, place), Part(place, part), {Given(place, part)});
    }
  }

  ScheduleBuilder& builder_;
  const Problem& problem_;
  const int hosts_;
  const int host_;
  const int place_;              // on its host
  std::vector<int> beside_;      // the other places, the next one first
  std::vector<Number> reduced_;  // by part of the own slice: the last step that wrote it
  std::vector<Number> given_;    // by place and part: sent within the host
  std::vector<Number> passed_;   // by part: sent along the ring
};

}  // namespace

Schedule HierarchicalSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  AllReduce(builder, problem).Build();
  return builder.Take();
}

}  // namespace syncline::collective
