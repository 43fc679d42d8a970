// Tests of programs whose gradients and weights are BF16 or FP16.
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "comm/base/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace syncline::cluster {
namespace {

constexpr size_t kElements = 70000;  // more than a tile

uint16_t Narrowed(float value, DType dtype) {
  return dtype == DType::kBf16 ? Bf16FromFloat(value) : F16FromFloat(value);
}

std::vector<uint16_t> Narrowed(const std::vector<float>& values, DType dtype) {
  std::vector<uint16_t> narrow;
  for (const float value : values) narrow.push_back(Narrowed(value, dtype));
  return narrow;
}

// Returns values that are exact in both types.
std::vector<float> InitialValues() {
  std::vector<float> values(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    values[i] = static_cast<float>(i % 61) * 0.125f - 3.0f;
  }
  return values;
}
std::vector<float> GradientOf(uint64_t step) {
  std::vector<float> values(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    values[i] = static_cast<float>((i + step) % 7) - 3.0f;
  }
  return values;
}

struct Ends {
  std::vector<std::vector<float>> wide;       // FP32 weights after each step
  std::vector<std::vector<uint16_t>> narrow;  // 16-bit weights after each step
};

// Trains with gradients of one type. Each run has weights in FP32 and in a 16-bit type.
Ends Train(const SessionOptions& options, DType gradients, DType weights) {
  Ends ends;
  std::vector<float> wide = InitialValues();
  std::vector<uint16_t> narrow = Narrowed(wide, weights);
  const auto session = *Session::Create(options);
  EXPECT_TRUE(session->Declare({.name = "wide", .shape = {kElements}}, wide).ok());
  EXPECT_TRUE(session
                  ->Declare({.name = "narrow", .shape = {kElements}},
                            TensorMemory{.data = narrow.data(), .dtype = weights})
                  .ok());
  EXPECT_TRUE(session->Start().ok());
  while (session->step() < 4) {
    const std::vector<float> gradient = GradientOf(session->step());
    std::vector<uint16_t> halves = Narrowed(gradient, weights);
    for (const TensorId id : {0u, 1u}) {
      const absl::Status pushed =
          gradients == DType::kF32
              ? session->PushPull(id, gradient, 1)
              : session->PushPull(id, ConstTensorMemory{halves.data(), gradients}, 1);
      EXPECT_TRUE(pushed.ok()) << pushed;
    }
    EXPECT_TRUE(session->WaitAll().ok());
    // From then on the program may use its memory again.
    std::ranges::fill(halves, uint16_t{0x7fff});
    ends.wide.push_back(wide);
    ends.narrow.push_back(narrow);
    // Between Wait and PushPull it may also write to its weights. The next views replace
    // them.
    std::ranges::fill(narrow, uint16_t{0});
  }
  EXPECT_TRUE(session->Leave().ok());
  return ends;
}

class ClusterDTypes : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, ClusterDTypes,
                         ::testing::Values(DType::kBf16, DType::kF16));

TEST_P(ClusterDTypes, GiveTheSameBitsAsFp32WhereTheyAreExact) {
  Cluster cluster({.servers = 1});
  const Ends expected = Train(cluster.Options(0, 1, "fp32"), DType::kF32, GetParam());
  const Ends halves = Train(cluster.Options(0, 1, "halves"), GetParam(), GetParam());
  EXPECT_EQ(expected.wide, halves.wide);
  EXPECT_EQ(expected.narrow, halves.narrow);
  ASSERT_EQ(expected.wide.size(), 4u);
  for (size_t step = 0; step < expected.wide.size(); ++step) {
    EXPECT_EQ(expected.narrow[step], Narrowed(expected.wide[step], GetParam())) << step;
  }
}

TEST_P(ClusterDTypes, RoundWeightsThatAreNotExactAndKeepTheServersOwn) {
  Cluster cluster({.servers = 1});
  SessionOptions options = cluster.Options(0, 1);
  options.training.optimizer.values["lr"] = 1.0 / 3;
  const Ends ends = Train(options, GetParam(), GetParam());
  ASSERT_EQ(ends.wide.size(), 4u);
  for (size_t step = 0; step < ends.wide.size(); ++step) {
    EXPECT_EQ(ends.narrow[step], Narrowed(ends.wide[step], GetParam())) << step;
  }
}

TEST_P(ClusterDTypes, CarryNanAndInfinity) {
  Cluster cluster({.servers = 1});
  std::vector<uint16_t> weights(3, Narrowed(1.0f, GetParam()));
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<uint16_t> gradient =
      Narrowed({std::numeric_limits<float>::quiet_NaN(), -infinity, 2.0f}, GetParam());
  const auto session = *Session::Create(cluster.Options(0, 1));
  ASSERT_TRUE(
      session
          ->Declare({.name = "w", .shape = {3}}, TensorMemory{weights.data(), GetParam()})
          .ok());
  ASSERT_TRUE(session->Start().ok());
  ASSERT_TRUE(
      session->PushPull(0, ConstTensorMemory{gradient.data(), GetParam()}, 1).ok());
  ASSERT_TRUE(session->Wait(0).ok());
  const auto widened = [&](size_t i) {
    return GetParam() == DType::kBf16 ? FloatFromBf16(weights[i])
                                      : FloatFromF16(weights[i]);
  };
  EXPECT_TRUE(std::isnan(widened(0)));
  EXPECT_EQ(widened(1), infinity);  // minus lr times minus infinity
  EXPECT_EQ(widened(2), 0.0f);
}

}  // namespace
}  // namespace syncline::cluster
