// One rank of `syncline bench collective`: its memory, its calls, and the expected
// results.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cli/bench/collective_plan.h"
#include "comm/collective/group/call.h"

namespace syncline {

// The memory of a rank, with inputs and expected outputs. All values are small integers.
class BenchRank {
 public:
  static constexpr int kMaxOperations = 5000;  // in a round

  // Returns whether the size counts the parts of all ranks together.
  static bool IsCut(collective::CollectiveOp op) {
    return op == collective::CollectiveOp::kReduceScatter ||
           op == collective::CollectiveOp::kAllGather ||
           op == collective::CollectiveOp::kGather ||
           op == collective::CollectiveOp::kScatter ||
           op == collective::CollectiveOp::kAllToAll;
  }

  BenchRank(const CollectivePlan& plan, uint64_t bytes, int rank)
      : plan_(plan),
        rank_(rank),
        count_(
            std::max<uint64_t>(bytes / sizeof(float) /
                                   static_cast<uint64_t>(IsCut(plan.op) ? plan.ranks : 1),
                               1)),
        in_(count_ * (TakesAll() ? static_cast<size_t>(plan.ranks) : 1)),
        out_(count_ * (GivesAll() ? static_cast<size_t>(plan.ranks) : 1)) {
    Reset();
  }

  size_t bytes() const {
    return sizeof(float) * count_ *
           static_cast<size_t>(IsCut(plan_.op) ? plan_.ranks : 1);
  }

  void Reset() {
    for (size_t i = 0; i < in_.size(); ++i) in_[i] = Stored(Value(rank_, i));
    const bool in_place =
        InPlace() && (plan_.op != collective::CollectiveOp::kBroadcast || rank_ == 0);
    for (size_t i = 0; i < out_.size(); ++i) {
      out_[i] = Stored(in_place ? Value(rank_, i) : -1);
    }
  }

  void FillUneven() {
    const auto fill = [&](std::vector<float>& values) {
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] =
            1.0f / static_cast<float>(i % 1021 + 3 * static_cast<size_t>(rank_) + 1);
      }
    };
    fill(in_);
    fill(out_);
  }
  std::span<const float> output() const { return out_; }

  collective::Call MakeCall() {
    return {.op = plan_.op,
            .type = plan_.type,
            .reduce = plan_.reduce,
            .factor = kFactor,
            .input = InPlace() ? nullptr : in_.data(),
            .output = out_.data(),
            .count = count_,
            .algorithm = plan_.algorithm};
  }

  // Returns how many operations may follow each other before Reset. In-place sums grow
  // with each operation, and must stay exact in FP32.
  int MostOperations() const {
    if (plan_.op != collective::CollectiveOp::kAllReduce || plan_.ranks == 1)
      return kMaxOperations;
    if (plan_.reduce != collective::ReduceOp::kSum) return 1;
    constexpr double kLargestValue = 6;
    return static_cast<int>(std::log2((1 << 24) / kLargestValue) /
                            std::log2(plan_.ranks));
  }

  // Returns the number of wrong elements after `operations` operations since Reset.
  uint64_t CountWrong(int operations) const {
    const bool grows = plan_.op == collective::CollectiveOp::kAllReduce;
    const auto factor =
        grows ? static_cast<float>(std::pow(plan_.ranks, operations - 1)) : 1.0f;
    uint64_t wrong = 0;
    const bool gets = rank_ == 0 || (plan_.op != collective::CollectiveOp::kReduce &&
                                     plan_.op != collective::CollectiveOp::kGather);
    for (size_t i = 0; gets && i < out_.size(); ++i)
      wrong += out_[i] == Stored(Expected(i) * factor) ? 0 : 1;
    return plan_.op == collective::CollectiveOp::kBarrier ? 0 : wrong;
  }

 private:
  static constexpr float kFactor = 2;  // of the premultiplied sum

  static float Value(int rank, size_t element) {
    return static_cast<float>((static_cast<size_t>(rank) + element) % 7);
  }
  bool InPlace() const {
    return plan_.op == collective::CollectiveOp::kAllReduce ||
           plan_.op == collective::CollectiveOp::kBroadcast;
  }
  bool TakesAll() const {
    return plan_.op == collective::CollectiveOp::kReduceScatter ||
           plan_.op == collective::CollectiveOp::kScatter ||
           plan_.op == collective::CollectiveOp::kAllToAll;
  }
  bool GivesAll() const {
    return plan_.op == collective::CollectiveOp::kAllGather ||
           plan_.op == collective::CollectiveOp::kGather ||
           plan_.op == collective::CollectiveOp::kAllToAll;
  }
  // Returns the value as it is stored: integers use the same memory as floats.
  float Stored(float value) const {
    if (plan_.type == collective::ElementType::kF32) return value;
    return std::bit_cast<float>(static_cast<int32_t>(value));
  }
  float Combined(float a, float b) const {
    switch (plan_.reduce) {
      case collective::ReduceOp::kMin:
        return std::min(a, b);
      case collective::ReduceOp::kMax:
        return std::max(a, b);
      case collective::ReduceOp::kBitwiseAnd:
        return static_cast<float>(static_cast<int>(a) & static_cast<int>(b));
      case collective::ReduceOp::kBitwiseOr:
        return static_cast<float>(static_cast<int>(a) | static_cast<int>(b));
      case collective::ReduceOp::kBitwiseXor:
        return static_cast<float>(static_cast<int>(a) ^ static_cast<int>(b));
      default:
        return a + b;
    }
  }
  float Reduced(size_t element) const {
    float result = Value(0, element);
    for (int rank = 1; rank < plan_.ranks; ++rank) {
      result = Combined(result, Value(rank, element));
    }
    if (plan_.reduce == collective::ReduceOp::kPremultipliedSum) return result * kFactor;
    if (plan_.reduce != collective::ReduceOp::kAverage) return result;
    return result / static_cast<float>(plan_.ranks);
  }
  float Expected(size_t i) const {
    const size_t own = static_cast<size_t>(rank_) * count_;
    const auto from = static_cast<int>(i / count_);
    switch (plan_.op) {
      case collective::CollectiveOp::kAllReduce:
      case collective::CollectiveOp::kReduce:
        return Reduced(i);
      case collective::CollectiveOp::kReduceScatter:
        return Reduced(own + i);
      case collective::CollectiveOp::kAllToAll:
        return Value(from, own + i % count_);
      case collective::CollectiveOp::kScatter:
        return Value(0, own + i);
      case collective::CollectiveOp::kBroadcast:
        return Value(0, i);
      default:
        return Value(from, i % count_);
    }
  }

  const CollectivePlan& plan_;
  const int rank_;
  const size_t count_;
  std::vector<float> in_;
  std::vector<float> out_;
};

}  // namespace syncline
