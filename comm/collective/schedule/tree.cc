// Binomial trees: ceil(log2 p) rounds. Inner ranks reduce from all their children in one
// pass, and forward while they receive.
#include <algorithm>
#include <bit>

#include "comm/collective/schedule/builder.h"

namespace syncline::collective {
namespace {

using Number = ScheduleBuilder::Number;

// Places count from the root: the root is 0, its children are 1, 2, 4, ... The subtree of
// place v with lowest set bit b is [v, v + b).
class Tree {
 public:
  Tree(const Problem& problem, int root)
      : ranks_(problem.ranks),
        root_(root),
        place_((problem.rank - root + problem.ranks) % problem.ranks) {
    const int reach = place_ == 0
                          ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks_)))
                          : static_cast<int>(static_cast<unsigned>(place_) &
                                             -static_cast<unsigned>(place_));
    end_ = std::min(place_ + reach, ranks_);
    for (int bit = reach / 2; bit >= 1; bit /= 2) {
      if (place_ + bit < ranks_) children_.push_back(place_ + bit);
    }
  }

  bool is_root() const { return place_ == 0; }
  int place() const { return place_; }
  int end() const { return end_; }  // of the subtree
  int parent() const { return RankOf(place_ & (place_ - 1)); }
  // Returns places, the largest subtree first.
  const std::vector<int>& children() const { return children_; }
  int EndOf(int child) const { return std::min(child + (child - place_), ranks_); }
  int RankOf(int place) const { return (place + root_) % ranks_; }
  std::vector<int> ChildRanks() const {
    std::vector<int> ranks;
    for (const int child : children_) ranks.push_back(RankOf(child));
    return ranks;
  }

 private:
  const int ranks_;
  const int root_;
  const int place_;
  int end_ = 0;
  std::vector<int> children_;
};

Number BroadcastFrom(ScheduleBuilder& builder, const Tree& tree, Range all,
                     Number ready) {
  if (!tree.is_root()) ready = builder.Receive(tree.parent(), all, {ready});
  for (const int child : tree.children()) {
    builder.Send(tree.RankOf(child), all, {ready});
  }
  return ready;
}

// Returns the last step that accessed `target`.
Number ReduceTo(ScheduleBuilder& builder, const Tree& tree, Range source, Range target) {
  if (tree.children().empty()) return builder.Send(tree.parent(), source);
  const Number reduced = builder.Reduce(tree.ChildRanks(), source, target);
  if (!tree.is_root()) return builder.Send(tree.parent(), target, {reduced});
  builder.Completes(reduced);
  return reduced;
}

void AllReduce(ScheduleBuilder& builder, const Problem& problem) {
  const Tree tree(problem, 0);
  const Range all = {Area::kOutput, 0, problem.count};
  BroadcastFrom(builder, tree, all, ReduceTo(builder, tree, all, all));
}

void Reduce(ScheduleBuilder& builder, const Problem& problem) {
  const Tree tree(problem, problem.root);
  Range target = {Area::kOutput, 0, problem.count};
  if (!tree.is_root() && !tree.children().empty()) {
    target = builder.Scratch(problem.count);
  }
  ReduceTo(builder, tree, {Area::kInput, 0, problem.count}, target);
}

// Where the blocks of a subtree are kept: at the root in their final place, on inner
// ranks one after another, and on a leaf in the user's own memory.
struct Rest {
  Range Of(const Tree& tree, int place) const {
    const size_t block =
        static_cast<size_t>(at_root ? tree.RankOf(place) : place - tree.place());
    return {area, first + block * count, count};
  }
  Area area;
  size_t first;
  size_t count;
  bool at_root;
};

Rest RestOf(ScheduleBuilder& builder, const Problem& problem, const Tree& tree,
            Area area) {
  if (tree.is_root()) return {area, 0, problem.count, true};
  const auto blocks = static_cast<size_t>(tree.end() - tree.place());
  const Range scratch = builder.Scratch(blocks * problem.count);
  return {Area::kScratch, scratch.first, problem.count, false};
}

void Gather(ScheduleBuilder& builder, const Problem& problem) {
  const Tree tree(problem, problem.root);
  const Range own = {Area::kInput, 0, problem.count};
  if (tree.children().empty()) {
    builder.Send(tree.parent(), own);
    return;
  }
  const Rest rest = RestOf(builder, problem, tree, Area::kOutput);
  if (tree.is_root()) {
    builder.Copy(own, rest.Of(tree, tree.place()));
  } else {
    builder.Send(tree.parent(), own);
  }
  // Sends in ascending order, as the parent expects.
  for (auto child = tree.children().rbegin(); child != tree.children().rend(); ++child) {
    for (int place = *child; place < tree.EndOf(*child); ++place) {
      const Range block = rest.Of(tree, place);
      const Number received = builder.Receive(tree.RankOf(*child), block);
      if (!tree.is_root()) builder.Send(tree.parent(), block, {received});
    }
  }
}

void Scatter(ScheduleBuilder& builder, const Problem& problem) {
  const Tree tree(problem, problem.root);
  const Range own = {Area::kOutput, 0, problem.count};
  if (tree.is_root()) {
    const Rest rest = RestOf(builder, problem, tree, Area::kInput);
    builder.Copy(rest.Of(tree, 0), own);
    for (const int child : tree.children()) {
      for (int place = child; place < tree.EndOf(child); ++place) {
        builder.Send(tree.RankOf(child), rest.Of(tree, place));
      }
    }
    return;
  }
  builder.Receive(tree.parent(), own);
  if (tree.children().empty()) return;
  const Rest rest = RestOf(builder, problem, tree, Area::kInput);
  // The parent sends the subtree's blocks in ascending order, those of the smallest child
  // first.
  for (auto child = tree.children().rbegin(); child != tree.children().rend(); ++child) {
    for (int place = *child; place < tree.EndOf(*child); ++place) {
      const Range block = rest.Of(tree, place);
      const Number received = builder.Receive(tree.parent(), block);
      builder.Send(tree.RankOf(*child), block, {received});
    }
  }
}

}  // namespace

Schedule TreeSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  switch (problem.op) {
    case CollectiveOp::kAllReduce:
      AllReduce(builder, problem);
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
    default:
      BroadcastFrom(builder, Tree(problem, problem.root),
                    {Area::kOutput, 0, problem.count}, ScheduleBuilder::kNone);
  }
  return builder.Take();
}

}  // namespace syncline::collective
