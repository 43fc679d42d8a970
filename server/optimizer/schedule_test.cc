#include "server/optimizer/schedule.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Pairs of the number of an update and its factor.
using Points = std::vector<std::pair<uint64_t, double>>;

void ExpectPoints(const NamedOptions& schedule, const Points& points) {
  ASSERT_EQ(ValidateSchedule(schedule), absl::OkStatus());
  for (const auto& [update, factor] : points) {
    EXPECT_NEAR(ScheduleFactor(schedule, update), factor, 1e-14)
        << schedule.name << " at " << update;
  }
}

std::string Refusal(const NamedOptions& schedule) {
  const absl::Status status = ValidateSchedule(schedule);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << schedule.name;
  return std::string(status.message());
}

// Returns a schedule with only the options that it requires.
NamedOptions Minimal(std::string_view name) {
  NamedOptions schedule = {.name = std::string(name)};
  for (const OptionSpec& spec : ScheduleOptionsOf(name)) {
    if (spec.name == "total_steps") schedule.values["total_steps"] = 100;
  }
  return schedule;
}

// ---- Against torch 2.13: param_groups[0]["lr"] of SGD with lr=1 at each update ----

TEST(Schedule, CosineIsThatOfTorch) {  // CosineAnnealingLR(T_max=20, eta_min=0.1)
  ExpectPoints({"cosine", {{"total_steps", 20}, {"min_factor", 0.1}}},
               {{0, 1},
                {1, 0.994459753267812},
                {5, 0.86819805153394636},
                {10, 0.55000000000000016},
                {15, 0.23180194846605376},
                {19, 0.10554024673218806},
                {20, 0.10000000000000001}});
}

TEST(Schedule, CosineRestartsAsInTorch) {
  // CosineAnnealingWarmRestarts(T_0=7, T_mult=1, eta_min=0.05)
  ExpectPoints({"cosine", {{"period", 7}, {"min_factor", 0.05}}},
               {{0, 1},
                {1, 0.95296021225364902},
                {3, 0.63069744362924929},
                {6, 0.097039787746350956},
                {7, 1},
                {13, 0.097039787746350956},
                {14, 1},
                {20, 0.097039787746350956},
                {21, 1}});
  // CosineAnnealingWarmRestarts(T_0=3, T_mult=2)
  ExpectPoints({"cosine", {{"period", 3}, {"period_factor", 2}}},
               {{0, 1},
                {1, 0.75},
                {2, 0.25000000000000011},
                {3, 1},
                {4, 0.93301270189221941},
                {8, 0.066987298107780646},
                {9, 1},
                {10, 0.9829629131445341},
                {20, 0.017037086855465899},
                {21, 1},
                {33, 0.5},
                {39, 0.14644660940672627}});
}

TEST(Schedule, OneCycleIsThatOfTorch) {
  // OneCycleLR(max_lr=1, total_steps=50)
  ExpectPoints({"one_cycle", {{"total_steps", 50}}}, {{0, 0.040000000000000036},
                                                      {1, 0.052034602152724707},
                                                      {7, 0.52000000000000002},
                                                      {13, 0.98796539784727533},
                                                      {14, 1},
                                                      {15, 0.99798715504903157},
                                                      {31, 0.52243432544559687},
                                                      {48, 0.0020168449509684566},
                                                      {49, 3.9999999999999998e-06}});
  // OneCycleLR(max_lr=1, total_steps=37, pct_start=0.4, div_factor=10,
  // final_div_factor=100): the maximum lies between two updates.
  ExpectPoints({"one_cycle",
                {{"total_steps", 37},
                 {"pct_start", 0.4},
                 {"div_factor", 10},
                 {"final_div_factor", 100}}},
               {{0, 0.099999999999999978},
                {1, 0.11161041279693429},
                {13, 0.99255776573518395},
                {14, 0.99979995380560172},
                {15, 0.99281514721868036},
                {25, 0.49343165245258946},
                {35, 0.0059931476433289959},
                {36, 0.001}});
}

TEST(Schedule, PolynomialIsThatOfTorch) {  // PolynomialLR(total_iters=10, power=...)
  ExpectPoints({"polynomial", {{"total_steps", 10}, {"power", 2}}},
               {{0, 1}, {1, 0.81}, {5, 0.25}, {9, 0.01}, {10, 0}, {13, 0}});
  ExpectPoints({"polynomial", {{"total_steps", 10}, {"power", 0.5}}},
               {{1, 0.94868329805051377},
                {5, 0.70710678118654757},
                {9, 0.31622776601683794},
                {10, 0},
                {11, 0}});
}

TEST(Schedule, LinearIsThatOfTorch) {  // LinearLR(1, end_factor=0.2, total_iters=8)
  ExpectPoints({"linear", {{"total_steps", 8}, {"min_factor", 0.2}}},
               {{0, 1}, {1, 0.9}, {4, 0.6}, {7, 0.3}, {8, 0.2}, {11, 0.2}});
}

TEST(Schedule, StepIsThatOfTorch) {  // StepLR(step_size=3, gamma=0.5)
  ExpectPoints(
      {"step", {{"step_size", 3}, {"gamma", 0.5}}},
      {{0, 1}, {2, 1}, {3, 0.5}, {5, 0.5}, {6, 0.25}, {11, 0.125}, {12, 0.0625}});
}

TEST(Schedule, ExponentialIsThatOfTorch) {  // ExponentialLR(gamma=0.9)
  ExpectPoints({"exponential", {{"gamma", 0.9}}}, {{0, 1},
                                                   {1, 0.9},
                                                   {2, 0.81},
                                                   {10, 0.34867844010000015},
                                                   {30, 0.042391158275216244}});
}

TEST(Schedule, WarmsUpAsSequentialLrOfTorchDoes) {
  // SequentialLR([LinearLR(0.25, total_iters=5), CosineAnnealingLR(15, 0.1)], [5])
  ExpectPoints({"cosine",
                {{"warmup_steps", 5},
                 {"warmup_start_factor", 0.25},
                 {"total_steps", 20},
                 {"min_factor", 0.1}}},
               {{0, 0.25},
                {1, 0.4},
                {4, 0.85},
                {5, 1},
                {6, 0.99016642033021252},
                {12, 0.59703780847044408},
                {19, 0.10983357966978745},
                {20, 0.1}});
  // [LinearLR(0.5, total_iters=4), CosineAnnealingWarmRestarts(3, 2, eta_min=0.2)]
  ExpectPoints({"cosine",
                {{"warmup_steps", 4},
                 {"warmup_start_factor", 0.5},
                 {"period", 3},
                 {"period_factor", 2},
                 {"min_factor", 0.2}}},
               {{0, 0.5},
                {3, 0.875},
                {4, 1},
                {5, 0.8},
                {6, 0.4},
                {7, 1},
                {8, 0.94641016151377566},
                {12, 0.25358983848622452},
                {13, 1},
                {14, 0.98637033051562728},
                {19, 0.6}});
  // [LinearLR(0.01, total_iters=4), StepLR(3, gamma=0.5)]
  ExpectPoints(
      {"step",
       {{"warmup_steps", 4},
        {"warmup_start_factor", 0.01},
        {"step_size", 3},
        {"gamma", 0.5}}},
      {{0, 0.01}, {1, 0.2575}, {3, 0.7525}, {4, 1}, {6, 1}, {7, 0.5}, {13, 0.125}});
  // [LinearLR(0.1, total_iters=3), ExponentialLR(0.5)]
  ExpectPoints({"exponential",
                {{"warmup_steps", 3}, {"warmup_start_factor", 0.1}, {"gamma", 0.5}}},
               {{0, 0.1}, {1, 0.4}, {2, 0.7}, {3, 1}, {4, 0.5}, {7, 0.0625}});
}

// ---- Against their formulas ----

TEST(Schedule, ConstantIsOneAfterItsWarmUp) {
  ExpectPoints({"constant", {}}, {{0, 1}, {1, 1}, {1'000'000'000'000, 1}});
  ExpectPoints({"constant", {{"warmup_steps", 4}}},
               {{0, 0}, {1, 0.25}, {3, 0.75}, {4, 1}, {5, 1}});
}

TEST(Schedule, InverseSqrtTakesItsTimescaleFromTheWarmUp) {
  const auto decay = [](double t, double c) { return 1 / std::sqrt((t + c) / c); };
  ExpectPoints({"inverse_sqrt", {{"warmup_steps", 100}}},
               {{50, 0.5}, {100, 1}, {400, 0.5}, {250, decay(150, 100)}});
  ExpectPoints({"inverse_sqrt", {{"warmup_steps", 10}, {"timescale", 30}}},
               {{10, 1}, {100, 0.5}, {45, decay(35, 30)}});
  ExpectPoints({"inverse_sqrt", {}}, {{0, 1}, {30000, 0.5}});
}

TEST(Schedule, WsdStaysAtOneUntilItsDecay) {
  ExpectPoints({"wsd",
                {{"warmup_steps", 10},
                 {"total_steps", 100},
                 {"decay_steps", 20},
                 {"min_factor", 0.1}}},
               {{5, 0.5}, {10, 1}, {80, 1}, {90, 0.55}, {100, 0.1}, {5000, 0.1}});
  ExpectPoints({"wsd", {{"total_steps", 100}, {"decay_steps", 20}, {"decay_power", 0.5}}},
               {{80, 1}, {85, 0.5}, {90, 1 - std::sqrt(0.5)}, {100, 0}});
  ExpectPoints({"wsd", {{"total_steps", 100}}}, {{99, 1}, {1000, 1}});
}

TEST(Schedule, RangeTestGrowsExponentially) {
  ExpectPoints(
      {"range_test", {{"total_steps", 5}, {"first_factor", 1e-4}, {"last_factor", 10}}},
      {{0, 1e-4}, {1, 1e-3}, {2, 1e-2}, {3, 0.1}, {4, 1}, {5, 10}, {6, 10}});
}

TEST(Schedule, AllStayFiniteAndNonNegativeForEver) {
  for (const std::string_view name : ScheduleNames()) {
    const NamedOptions schedule = Minimal(name);
    ASSERT_EQ(ValidateSchedule(schedule), absl::OkStatus()) << name;
    for (const uint64_t update : {uint64_t{0}, uint64_t{1}, uint64_t{99}, uint64_t{100},
                                  uint64_t{1} << 40, ~uint64_t{0}}) {
      const double factor = ScheduleFactor(schedule, update);
      EXPECT_TRUE(std::isfinite(factor) && factor >= 0) << name << " at " << update;
    }
  }
}

TEST(Schedule, ManyRestartsStayExact) {
  // 3 (2^20 - 1) updates are exactly 20 periods.
  const NamedOptions schedule = {"cosine", {{"period", 3}, {"period_factor", 2}}};
  const uint64_t begin = 3 * ((uint64_t{1} << 20) - 1);
  EXPECT_EQ(ScheduleFactor(schedule, begin), 1);
  EXPECT_LT(ScheduleFactor(schedule, begin - 1), 1e-11);
}

// ---- The batch ----

TEST(BatchScale, IsAPowerOfTheBatchInUnitsOfTheBaseBatch) {
  const NamedOptions none = {"constant", {}};
  EXPECT_EQ(BatchScale(none, 4096), 1);
  NamedOptions schedule = {"constant", {{"base_batch", 256}}};
  EXPECT_EQ(BatchScale(schedule, 256), 1);
  EXPECT_EQ(BatchScale(schedule, 1024), 4);
  EXPECT_EQ(BatchScale(schedule, 64), 0.25);
  schedule.values["batch_exponent"] = 0.5;
  EXPECT_EQ(BatchScale(schedule, 1024), 2);
  EXPECT_DOUBLE_EQ(BatchScale(schedule, 512), std::numbers::sqrt2);
  schedule.values["batch_exponent"] = 0;
  EXPECT_EQ(BatchScale(schedule, 1024), 1);
}

// ---- Refusals ----

TEST(ScheduleRefusal, NamesTheNearestScheduleOrOption) {
  EXPECT_EQ(Refusal({"cosin", {}}), "unknown schedule 'cosin'; did you mean 'cosine'?");
  EXPECT_THAT(Refusal({"onecycle", {}}), HasSubstr("did you mean 'one_cycle'?"));
  EXPECT_THAT(
      Refusal({"cosine", {{"total_step", 100}}}),
      AllOf(HasSubstr("'cosine'"), HasSubstr("total_step"), HasSubstr("'total_steps'")));
  EXPECT_THAT(Refusal({"constant", {{"gamma", 0.5}}}), HasSubstr("gamma"));
}

TEST(ScheduleRefusal, SaysThatTotalStepsIsMissing) {
  for (const char* name :
       {"linear", "cosine", "polynomial", "one_cycle", "wsd", "range_test"}) {
    EXPECT_THAT(Refusal({name, {}}),
                AllOf(HasSubstr(name), HasSubstr("total_steps is missing")));
  }
}

TEST(ScheduleRefusal, OfAScheduleThatEndsInsideItsWarmUp) {
  EXPECT_THAT(Refusal({"cosine", {{"total_steps", 100}, {"warmup_steps", 100}}}),
              HasSubstr("total_steps is 100, shorter than its 100 updates of warm-up"));
  EXPECT_EQ(ValidateSchedule({"cosine", {{"total_steps", 101}, {"warmup_steps", 100}}}),
            absl::OkStatus());
  EXPECT_THAT(
      Refusal({"wsd", {{"total_steps", 100}, {"warmup_steps", 60}, {"decay_steps", 41}}}),
      HasSubstr("60 updates of warm-up and 41 of decay"));
}

TEST(ScheduleRefusal, OfAOneCycleThatCannotRise) {
  EXPECT_THAT(Refusal({"one_cycle", {{"total_steps", 100}, {"warmup_steps", 10}}}),
              HasSubstr("warmup_steps must be 0"));
  EXPECT_THAT(Refusal({"one_cycle", {{"total_steps", 3}}}), HasSubstr("pct_start"));
  EXPECT_THAT(Refusal({"one_cycle", {{"total_steps", 100}, {"pct_start", 1}}}),
              HasSubstr("pct_start is 1"));
}

TEST(ScheduleRefusal, OfZeroWhereItWouldDivide) {
  EXPECT_THAT(Refusal({"step", {{"step_size", 0}}}), HasSubstr("step_size is 0"));
  EXPECT_THAT(Refusal({"range_test", {{"total_steps", 5}, {"first_factor", 0}}}),
              HasSubstr("first_factor is 0"));
}

TEST(ScheduleRefusal, OfEveryOptionOutsideItsRange) {
  for (const std::string_view name : ScheduleNames()) {
    for (const OptionSpec& spec : ScheduleOptionsOf(name)) {
      for (const double bad : {kNaN, std::numeric_limits<double>::infinity(),
                               spec.least - 1, spec.most * 2 + 1}) {
        NamedOptions schedule = Minimal(name);
        schedule.values[std::string(spec.name)] = bad;
        EXPECT_THAT(Refusal(schedule), HasSubstr(std::string(spec.name)));
      }
    }
  }
  EXPECT_THAT(Refusal({"constant", {{"warmup_steps", 1.5}}}), HasSubstr("1.5"));
}

}  // namespace
}  // namespace syncline
