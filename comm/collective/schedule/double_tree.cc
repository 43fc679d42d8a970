// Two binary trees, each for half of the values (Sanders, Speck and Traeff 2009). An
// inner rank of one tree is a leaf of the other, so all ranks send and receive equally.
// It takes 2 log p rounds, as a tree, and 2n bytes, nearly as a ring, for any number of
// ranks.
//
// In the first tree, number 0 is the root with one child. Among the others, in order, the
// odd ones are leaves. The second tree is the first with other numbers: they are reversed
// if the number of ranks is even, and shifted by one rank if it is odd.
#include <vector>

#include "comm/collective/schedule/builder.h"

namespace syncline::collective {
namespace {

using Number = ScheduleBuilder::Number;

// Returns the number in [first, end) with the most trailing zero bits.
int MostTrailingZeros(int first, int end) {
  int number = end - 1;
  while ((number & (number - 1)) >= first) number &= number - 1;
  return number;
}

// A node of the first tree, in its numbers; -1: none.
struct Node {
  int parent = -1;
  std::vector<int> children = {};
};

// The root of a range is its number with the most trailing zeros. The numbers before and
// after it form its subtrees.
Node NodeOf(int number, int ranks) {
  if (number == 0) return {.parent = -1, .children = {MostTrailingZeros(1, ranks)}};
  Node node = {.parent = 0};
  int first = 1;
  int end = ranks;
  int root = MostTrailingZeros(first, end);
  while (root != number) {
    node.parent = root;
    if (number < root) {
      end = root;
    } else {
      first = root + 1;
    }
    root = MostTrailingZeros(first, end);
  }
  if (first < number) node.children.push_back(MostTrailingZeros(first, number));
  if (number + 1 < end) node.children.push_back(MostTrailingZeros(number + 1, end));
  return node;
}

class Tree {
 public:
  Tree(const Problem& problem, bool is_second)
      : ranks_(problem.ranks),
        is_mirrored_(is_second && ranks_ % 2 == 0),
        shift_(is_second && ranks_ % 2 != 0 ? 1 : 0),
        node_(NodeOf(Swap(problem.rank, -shift_), ranks_)) {}

  bool is_root() const { return node_.parent < 0; }
  int parent() const { return Swap(node_.parent, shift_); }
  std::vector<int> children() const {
    std::vector<int> ranks;
    for (const int child : node_.children) ranks.push_back(Swap(child, shift_));
    return ranks;
  }

 private:
  // Converts a rank to its number, or back.
  int Swap(int number, int shift) const {
    return is_mirrored_ ? ranks_ - 1 - number : (number + shift + ranks_) % ranks_;
  }

  const int ranks_;
  const bool is_mirrored_;
  const int shift_;
  const Node node_;
};

void AllReduce(ScheduleBuilder& builder, const Tree& tree, Range half) {
  const std::vector<int> children = tree.children();
  Number had = ScheduleBuilder::kNone;
  if (!children.empty()) had = builder.Reduce(children, half, half);
  if (tree.is_root()) {
    builder.Completes(had);
  } else {
    const Number given = builder.Send(tree.parent(), half, {had});
    had = builder.Receive(tree.parent(), half, {given});
  }
  for (const int child : children) builder.Send(child, half, {had});
}

}  // namespace

Schedule DoubleTreeSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  for (const int index : {0, 1}) {
    AllReduce(builder, Tree(problem, index == 1),
              EvenSlice(Area::kOutput, problem.count, 2, index));
  }
  return builder.Take();
}

}  // namespace syncline::collective
