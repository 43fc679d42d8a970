#include "server/optimizer/loss_scaler.h"

#include <limits>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Returns the scale after each step of a pattern: '.' is a clean step, 'x' an overflow.
std::vector<float> Scales(const NamedOptions& scaling, std::string_view pattern) {
  EXPECT_EQ(ValidateLossScaling(scaling), absl::OkStatus());
  LossScalerState state = StartLossScaling(scaling);
  std::vector<float> scales;
  for (const char step : pattern) {
    state = AdvanceLossScaling(scaling, state,
                               step == 'x' ? Gradients::kNotFinite : Gradients::kFinite);
    scales.push_back(state.scale);
  }
  return scales;
}

std::string Refusal(const NamedOptions& scaling) {
  const absl::Status status = ValidateLossScaling(scaling);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

// ---- torch: values of torch._amp_update_scale_ (2.13) ----

TEST(TorchLossScaling, FollowsTorchThroughOverflowsAndGrowth) {
  EXPECT_THAT(
      Scales({"torch", {{"growth_interval", 3}}}, "..x...xx....x."),
      ElementsAreArray({65536.f, 65536.f, 32768.f, 32768.f, 32768.f, 65536.f, 32768.f,
                        16384.f, 16384.f, 16384.f, 32768.f, 32768.f, 16384.f, 16384.f}));
}

TEST(TorchLossScaling, RoundsToFloatAsTorchDoes) {
  const NamedOptions scaling = {"torch",
                                {{"init_scale", 1},
                                 {"growth_factor", 1.5},
                                 {"backoff_factor", 0.3},
                                 {"growth_interval", 2}}};
  EXPECT_THAT(
      Scales(scaling, "....x.."),
      ElementsAre(1.f, 1.5f, 1.5f, 2.25f, 0.675000012f, 0.675000012f, 1.01250005f));
}

TEST(TorchLossScaling, GrowsAfterTwoThousandCleanStepsAndNotOneEarlier) {
  const std::vector<float> scales = Scales({"torch", {}}, std::string(4000, '.'));
  EXPECT_EQ(scales[1998], 0x1p16f);
  EXPECT_EQ(scales[1999], 0x1p17f);
  EXPECT_EQ(scales[3998], 0x1p17f);
  EXPECT_EQ(scales[3999], 0x1p18f);
}

TEST(TorchLossScaling, NeverLeavesTheRangeOfFloats) {
  const NamedOptions scaling = {"torch", {{"growth_interval", 1}}};
  EXPECT_EQ(Scales(scaling, std::string(200, '.')).back(), 0x1p100f);
  EXPECT_EQ(Scales(scaling, std::string(200, 'x')).back(), 0x1p-100f);
}

// ---- deepspeed: hysteresis 2, floor 1, window 1000 ----

TEST(DeepSpeedLossScaling, ForgivesTheFirstOverflowOnceUntilTheScaleGrows) {
  const NamedOptions scaling = {"deepspeed",
                                {{"init_scale", 64}, {"growth_interval", 2}}};
  // Clean steps in between forgive nothing; growth does.
  EXPECT_THAT(Scales(scaling, "x.x.x..x.x"),
              ElementsAre(64, 64, 32, 32, 16, 16, 32, 32, 32, 16));
}

TEST(DeepSpeedLossScaling, AForgivenOverflowStillBeginsTheWindowAnew) {
  const NamedOptions scaling = {"deepspeed", {{"init_scale", 8}, {"growth_interval", 3}}};
  EXPECT_THAT(Scales(scaling, "..x..."), ElementsAre(8, 8, 8, 8, 8, 16));
}

TEST(DeepSpeedLossScaling, GoesOnAtItsFloor) {
  EXPECT_THAT(Scales({"deepspeed", {{"init_scale", 4}}}, "xxxxx"),
              ElementsAre(4, 2, 1, 1, 1));
  EXPECT_THAT(Scales({"deepspeed", {{"init_scale", 4}, {"min_scale", 3}}}, "xxx"),
              ElementsAre(4, 3, 3));
}

TEST(DeepSpeedLossScaling, GrowsAfterOneThousandCleanSteps) {
  const std::vector<float> scales = Scales({"deepspeed", {}}, std::string(1000, '.'));
  EXPECT_EQ(scales[998], 0x1p16f);
  EXPECT_EQ(scales[999], 0x1p17f);
}

// ---- apex ----

TEST(ApexLossScaling, StopsGrowingAtItsCeiling) {
  const std::vector<float> scales =
      Scales({"apex", {{"growth_interval", 1}}}, "..........x.");
  EXPECT_THAT(std::vector(scales.begin() + 6, scales.end()),
              ElementsAre(0x1p23f, 0x1p24f, 0x1p24f, 0x1p24f, 0x1p23f, 0x1p24f));
}

TEST(ApexLossScaling, HasTheWindowOfTorch) {
  const std::vector<float> scales = Scales({"apex", {}}, std::string(2000, '.'));
  EXPECT_EQ(scales[1998], 0x1p16f);
  EXPECT_EQ(scales[1999], 0x1p17f);
}

// The two branches of Apex's update_scale_hysteresis, written as in its kernel.
std::vector<float> HysteresisReference(std::string_view pattern, int hysteresis,
                                       int interval) {
  float scale = 65536;
  int growth = 0;
  int tracker = hysteresis;
  std::vector<float> scales;
  for (const char step : pattern) {
    if (step == 'x') {
      --tracker;
      growth = 0;
      if (tracker <= 0) scale *= 0.5f;
    } else {
      tracker = hysteresis;
      if (++growth == interval) {
        scale *= 2;
        growth = 0;
      }
    }
    scales.push_back(scale);
  }
  return scales;
}

TEST(LossScaling, ExpressesTheHysteresisOfApex) {
  for (const int hysteresis : {1, 2, 3}) {
    const NamedOptions scaling = {
        "torch",
        {{"hysteresis", hysteresis}, {"refill_on_clean", 1}, {"growth_interval", 3}}};
    for (const char* pattern :
         {"x.x.x.x", "xx.xx.xx", "xxx.xxxx...x..xx", "...xxxxx......x...xxx."}) {
      EXPECT_THAT(Scales(scaling, pattern),
                  ElementsAreArray(HysteresisReference(pattern, hysteresis, 3)))
          << pattern << " with " << hysteresis;
    }
  }
}

// ---- Refusals ----

TEST(LossScalingRefusal, NamesTheNearestPresetOrOption) {
  EXPECT_EQ(Refusal({"deepsped", {}}),
            "unknown loss scaling 'deepsped'; did you mean 'deepspeed'?");
  EXPECT_THAT(Refusal({"torch", {{"init_scal", 2}}}),
              AllOf(HasSubstr("'torch'"), HasSubstr("init_scale")));
}

TEST(LossScalingRefusal, OfEveryOptionOutsideItsRange) {
  for (const std::string_view preset : LossScalingPresets()) {
    for (const OptionSpec& spec : LossScalingOptionsOf(preset)) {
      for (const double bad :
           {std::numeric_limits<double>::quiet_NaN(),
            std::numeric_limits<double>::infinity(), spec.least - 1, spec.most * 2}) {
        EXPECT_THAT(Refusal({std::string(preset), {{std::string(spec.name), bad}}}),
                    HasSubstr(std::string(spec.name)))
            << preset << " " << bad;
      }
    }
  }
}

TEST(LossScalingRefusal, OfAFirstScaleOutsideOfFloorAndCeiling) {
  EXPECT_THAT(Refusal({"torch", {{"init_scale", 8}, {"min_scale", 16}}}),
              AllOf(HasSubstr("init_scale is 8"), HasSubstr("[16, ")));
  EXPECT_THAT(Refusal({"apex", {{"init_scale", 0x1p25}}}), HasSubstr("init_scale"));
}

}  // namespace
}  // namespace syncline
