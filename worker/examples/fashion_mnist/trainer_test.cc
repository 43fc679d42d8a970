#include "worker/examples/fashion_mnist/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "worker/examples/fashion_mnist/local_exchange.h"

namespace syncline::fashion_mnist {
namespace {

using ::testing::ElementsAre;

// Ten kinds of images that a network must tell apart: one bright row each.
Samples Stripes(int64_t count) {
  Samples samples;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t label = i % kClasses;
    samples.labels.push_back(static_cast<uint8_t>(label));
    for (int64_t pixel = 0; pixel < kImageBytes; ++pixel) {
      const bool bright = pixel / kImageSide / 2 == label + 2;
      samples.images.push_back(
          static_cast<uint8_t>((bright ? 200 : 20) + (i * 31 + pixel) % 40));
    }
  }
  return samples;
}

// Writes down the order of calls; gives no updates.
class Recorder final : public Exchange {
 public:
  int64_t step() const override { return 0; }
  absl::Status WaitForWeights(size_t parameter) override {
    waits.push_back(parameter);
    return wait_status;
  }
  absl::Status PushGradient(size_t parameter, std::span<const float> gradient,
                            int64_t samples) override {
    pushes.push_back(parameter);
    sample_counts.insert(samples);
    gradients[parameter].assign(gradient.begin(), gradient.end());
    return absl::OkStatus();
  }
  absl::Status EndStep(const StepResult& /*result*/) override { return absl::OkStatus(); }
  Traffic traffic() const override { return {}; }

  absl::Status wait_status;
  std::vector<size_t> waits;
  std::vector<size_t> pushes;
  std::set<int64_t> sample_counts;
  std::map<size_t, std::vector<float>> gradients;
};

const std::vector<uint32_t> kBatch = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

int64_t CountElements(const Model& model) {
  int64_t elements = 0;
  for (const Parameter& parameter : model.parameters())
    elements += parameter.values.size();
  return elements;
}

TEST(Model, HasBetweenAHalfAndTwoMillionParameters) {
  const Model model({});
  EXPECT_GT(CountElements(model), 500'000);
  EXPECT_LT(CountElements(model), 2'000'000);
}

TEST(Model, WaitsFrontToBackAndPushesBackToFront) {
  Model model({});
  Recorder recorder;
  ASSERT_TRUE(model.TrainStep(Stripes(20), kBatch, recorder).ok());
  EXPECT_THAT(recorder.waits, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  std::vector<size_t> layers;
  for (const size_t parameter : recorder.pushes) layers.push_back(parameter / 2);
  EXPECT_THAT(layers, ElementsAre(3, 3, 2, 2, 1, 1, 0, 0));
  EXPECT_THAT(recorder.sample_counts, ElementsAre(kBatch.size()));
}

TEST(Model, GradientsAreTheSlopeOfTheLoss) {
  Model model({});
  const Samples samples = Stripes(20);
  Recorder recorder;
  const double before = model.TrainStep(samples, kBatch, recorder)->loss;
  double slope = 0;  // along the negative gradient
  constexpr double kSmall = 1e-4;
  for (const auto& [index, gradient] : recorder.gradients) {
    const std::span<float> values = model.parameters()[index].values;
    ASSERT_EQ(values.size(), gradient.size());
    for (size_t i = 0; i < values.size(); ++i) {
      slope -= static_cast<double>(gradient[i]) * gradient[i];
      values[i] -= static_cast<float>(kSmall * gradient[i]);
    }
  }
  const double after = model.TrainStep(samples, kBatch, recorder)->loss;
  EXPECT_NEAR((after - before) / kSmall / slope, 1.0, 0.05);
}

TEST(Model, Bf16GradientsPointWhereFp32OnesDo) {
  const Samples samples = Stripes(20);
  Recorder recorders[2];
  Model fp32({.precision = Precision::kFp32});
  Model bf16({.precision = Precision::kBf16});
  ASSERT_TRUE(fp32.TrainStep(samples, kBatch, recorders[0]).ok());
  ASSERT_TRUE(bf16.TrainStep(samples, kBatch, recorders[1]).ok());
  for (size_t index = 0; index < fp32.parameters().size(); ++index) {
    const auto& a = recorders[0].gradients[index];
    const auto& b = recorders[1].gradients[index];
    ASSERT_EQ(a.size(), b.size());
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      ab += static_cast<double>(a[i]) * b[i];
      aa += static_cast<double>(a[i]) * a[i];
      bb += static_cast<double>(b[i]) * b[i];
    }
    EXPECT_GT(ab / std::sqrt(aa * bb), 0.99) << fp32.parameters()[index].name;
    EXPECT_NE(a, b) << "BF16 computed nothing in " << fp32.parameters()[index].name;
  }
}

TEST(Model, HandsTheErrorOfTheExchangeOnAndPushesNothing) {
  Model model({});
  Recorder recorder;
  recorder.wait_status = absl::UnavailableError("server 1 is gone");
  EXPECT_EQ(model.TrainStep(Stripes(20), kBatch, recorder).status(),
            recorder.wait_status);
  EXPECT_TRUE(recorder.pushes.empty());
}

class TrainTest : public ::testing::TestWithParam<Precision> {};

TEST_P(TrainTest, LearnsStripes) {
  const Dataset dataset{.train = Stripes(200), .test = Stripes(100)};
  Model model({.precision = GetParam()});
  const auto exchange = MakeLocalExchange(model.parameters(), {});
  BatchPlan plan({.samples = 200, .epochs = 5, .batch_size = 25});
  const StopSignal stop;
  const absl::StatusOr<TrainResult> result =
      Train({model, *exchange, plan, dataset, stop},
            {.total_steps = plan.total_steps(), .eval_steps = 10});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps, 28);
  ASSERT_EQ(result->evaluations.size(), 2u);
  EXPECT_EQ(result->evaluations[0].step, 10);
  EXPECT_GT(result->evaluations[1].accuracy, 0.5);
  EXPECT_EQ(*model.CountCorrect(dataset.test), 100);
}

INSTANTIATE_TEST_SUITE_P(Precisions, TrainTest,
                         ::testing::Values(Precision::kFp32, Precision::kBf16));

}  // namespace
}  // namespace syncline::fashion_mnist
