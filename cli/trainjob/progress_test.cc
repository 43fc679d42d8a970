#include "cli/trainjob/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kSecond = absl::Seconds(1);

Json Job(uint32_t number, uint64_t step, uint64_t total = 0) {
  return {{"job", number},
          {"name", "bert"},
          {"run_id", "r1"},
          {"mode", "bsp"},
          {"phase", "running"},
          {"step", step},
          {"total_steps", total},
          {"learning_rate", 0.00025},
          {"loss", 0.5},
          {"gradient_norm", nullptr},
          {"members", {{{"rank", 0}}, {{"rank", 1}}}}};
}

std::string Status(const std::vector<Json>& jobs) { return Json{{"jobs", jobs}}.dump(); }

class TrainJobProgressTest : public testing::Test {
 protected:
  Json Told() const {
    return Json::parse(progress_.Message(absl::UnixEpoch())).at("trainerStatus");
  }
  std::string Metric(const std::string& name) const {
    const Json told = Told();
    for (const Json& metric : told.at("metrics")) {
      if (metric.at("name") == name) return metric.at("value");
    }
    return "none";
  }

  TrainJobProgress progress_{{.job = "default", .run_id = "r1"}};
};

TEST_F(TrainJobProgressTest, WithoutATotalThereAreOnlyMetrics) {
  ASSERT_TRUE(progress_.Add(Status({Job(1, 450)}), kSecond));
  EXPECT_EQ(progress_.Message(absl::FromUnixSeconds(1769164245)),
            R"({"trainerStatus":{"metrics":[{"name":"step","value":"450"},)"
            R"({"name":"loss","value":"0.5"},)"
            R"({"name":"learning_rate","value":"0.00025"},)"
            R"({"name":"workers","value":"2"}],)"
            R"("lastUpdatedTime":"2026-01-23T10:30:45Z"}})");
}

TEST_F(TrainJobProgressTest, PercentageIsRoundedDownAndEndsWithTheJob) {
  const auto percentage = [&](uint64_t step) {
    EXPECT_TRUE(progress_.Add(Status({Job(1, step, 1000)}), kSecond));
    return Told().at("progressPercentage").get<int>();
  };
  EXPECT_EQ(percentage(0), 0);
  EXPECT_EQ(percentage(459), 45);
  EXPECT_EQ(percentage(999), 99);
  EXPECT_EQ(percentage(1000), 99) << "the program may still evaluate";
  EXPECT_EQ(percentage(2000), 99);
  EXPECT_EQ(Metric("total_steps"), "1000");
  ASSERT_TRUE(progress_.Add(Status({Job(1, 600, 1000)}), kSecond));
  progress_.Finish();
  EXPECT_EQ(Told().at("progressPercentage"), 100) << "it has stopped early, and is done";
  EXPECT_EQ(Told().at("estimatedRemainingSeconds"), 0);
}

TEST_F(TrainJobProgressTest, TimeLeftIsThatOfTheLastSteps) {
  for (int i = 0; i <= 10; ++i) {
    ASSERT_TRUE(progress_.Add(Status({Job(1, 100 + 10 * i, 1000)}), i * 5 * kSecond));
    EXPECT_EQ(Told().contains("estimatedRemainingSeconds"), i >= 2) << i;
  }
  EXPECT_EQ(Told().at("estimatedRemainingSeconds"), 400);  // 800 steps of 0.5 s
  EXPECT_EQ(Metric("steps_per_second"), "2");
}

TEST(TimeLeft, ShrinksBetweenStepsAndIsUnknownOnceTheyStop) {
  TimeLeft left;
  for (uint64_t step = 0; step <= 4; ++step) {
    left.Add(step, static_cast<int>(step) * absl::Minutes(10));
  }
  const absl::Duration last = absl::Minutes(40);
  EXPECT_EQ(left.Until(6, last), absl::Minutes(20));
  EXPECT_EQ(left.Until(6, last + absl::Minutes(5)), absl::Minutes(15));
  EXPECT_EQ(left.Until(6, last + absl::Minutes(30)), absl::ZeroDuration());
  EXPECT_EQ(left.Until(2, last), absl::ZeroDuration());
  EXPECT_EQ(left.Until(6, last + absl::Minutes(102)), std::nullopt);
  EXPECT_EQ(left.Rate(last + absl::Minutes(102)), std::nullopt);
}

TEST(TimeLeft, BeginsAnewWhenTheStepGoesBack) {
  TimeLeft left;
  for (uint64_t step = 0; step < 5; ++step) {
    left.Add(step, static_cast<int>(step) * kSecond);
  }
  left.Add(2, 10 * kSecond);
  EXPECT_EQ(left.Until(10, 10 * kSecond), std::nullopt);
  left.Add(3, 20 * kSecond);
  left.Add(4, 30 * kSecond);
  EXPECT_EQ(left.Until(10, 30 * kSecond), 60 * kSecond);
}

TEST(TimeLeft, ForgetsOldSteps) {
  TimeLeft left;
  uint64_t step = 0;
  absl::Duration now = {};
  for (int i = 0; i < 40; ++i) left.Add(++step, now += absl::Seconds(10));
  for (int i = 0; i < 40; ++i) left.Add(++step, now += kSecond);
  EXPECT_EQ(left.Until(step + 100, now), 100 * kSecond);
}

TEST_F(TrainJobProgressTest, TheNewestJobOfTheRunIsShown) {
  Json other = Job(9, 9);
  other["run_id"] = "r2";
  EXPECT_FALSE(progress_.Add(Status({other}), kSecond));
  EXPECT_FALSE(progress_.Add("not JSON", kSecond));
  EXPECT_FALSE(progress_.Add("{}", kSecond));
  Json ended = Job(7, 0);
  ended["mode"] = "";
  Json fold = Job(3, 30);
  fold["name"] = "bert-2";
  ASSERT_TRUE(progress_.Add(Status({Job(2, 20), fold, other, ended}), kSecond));
  EXPECT_EQ(Metric("step"), "30");
  EXPECT_EQ(progress_.job(), "bert-2");
}

TEST(TrainJobProgressByName, CountsWithoutARunId) {
  TrainJobProgress progress({.job = "bert"});
  Json other = Job(9, 9);
  other["name"] = "else";
  EXPECT_FALSE(progress.Add(Status({other}), kSecond));
  EXPECT_TRUE(progress.Add(Status({Job(1, 5), other}), kSecond));
}

TEST_F(TrainJobProgressTest, NewsAreEqualIfNothingChanged) {
  ASSERT_TRUE(progress_.Add(Status({Job(1, 5)}), kSecond));
  const std::string news = progress_.News();
  ASSERT_TRUE(progress_.Add(Status({Job(1, 5)}), 2 * kSecond));
  EXPECT_EQ(progress_.News(), news);
  ASSERT_TRUE(progress_.Add(Status({Job(1, 6)}), 3 * kSecond));
  EXPECT_NE(progress_.News(), news);
}

TEST_F(TrainJobProgressTest, HugeTimesFitTheField) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(progress_.Add(Status({Job(1, i, 1'000'000'000'000)}), i * kSecond));
  }
  EXPECT_EQ(Told().at("estimatedRemainingSeconds"), 2147483647);
}

}  // namespace
}  // namespace syncline
