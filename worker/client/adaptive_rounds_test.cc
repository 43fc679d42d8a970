#include "worker/client/adaptive_rounds.h"

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kElements = AdaptiveRounds::kElements;

// Workers whose rounds take their seconds per step, and servers that take the mean.
class Job {
 public:
  Job(const RoundBounds& bounds, std::vector<double> step_seconds)
      : step_seconds_(std::move(step_seconds)),
        workers_(step_seconds_.size(), AdaptiveRounds(bounds)) {}

  void SetSeconds(size_t worker, double seconds) { step_seconds_[worker] = seconds; }

  // Every worker that is `present` makes a round and pushes it. `samples`: of each one's
  // step.
  void Round(const std::vector<bool>& present, double samples = 1) {
    std::vector<double> sums(kElements);
    double total = 0;
    for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
      if (!present[rank]) continue;
      const uint64_t steps = workers_[rank].steps();
      const double seconds = static_cast<double>(steps) * step_seconds_[rank];
      EXPECT_TRUE(workers_[rank].Note(steps, seconds).ok());
      std::vector<float> pushed(kElements);
      workers_[rank].Write(rank, pushed);
      const double weight = samples * static_cast<double>(steps);
      for (size_t i = 0; i < kElements; ++i) sums[i] += weight * pushed[i];
      total += weight;
    }
    std::vector<float> mean;
    for (const double sum : sums) mean.push_back(static_cast<float>(sum / total));
    for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
      workers_[rank].Read(rank, mean);
    }
  }
  void Rounds(int count) {
    for (int i = 0; i < count; ++i) Round(std::vector<bool>(workers_.size(), true));
  }

  std::vector<uint64_t> Steps() const {
    std::vector<uint64_t> steps;
    for (const AdaptiveRounds& worker : workers_) steps.push_back(worker.steps());
    return steps;
  }

 private:
  std::vector<double> step_seconds_;
  std::vector<AdaptiveRounds> workers_;
};

TEST(AdaptiveRounds, BeginShortUntilWorkersAreMeasured) {
  EXPECT_EQ(AdaptiveRounds({.most = 100}).steps(), 25u);
  EXPECT_EQ(AdaptiveRounds({.most = 3}).steps(), 1u);
  EXPECT_EQ(AdaptiveRounds({.most = 100, .least = 40}).steps(), 40u);
}

TEST(AdaptiveRounds, TakeAboutAsLongOnAllWorkers) {
  Job job({.most = 100}, {0.5, 1, 2, 0.75});
  job.Rounds(1);
  EXPECT_THAT(job.Steps(), ElementsAre(100, 50, 25, 67));
  job.Rounds(10);  // whatever the weights of the rounds
  EXPECT_THAT(job.Steps(), ElementsAre(100, 50, 25, 67));
}

TEST(AdaptiveRounds, KeepToTheBounds) {
  Job job({.most = 40, .least = 8}, {1, 4, 1000});
  job.Rounds(1);
  EXPECT_THAT(job.Steps(), ElementsAre(40, 10, 8));
}

TEST(AdaptiveRounds, FollowAWorkerThatSlowsDown) {
  Job job({.most = 64}, {1, 1});
  job.Rounds(2);
  job.SetSeconds(1, 4);
  job.Rounds(1);
  EXPECT_THAT(job.Steps(), ElementsAre(64, 26));  // 1 / 2.5: the mean of 1 and 4
  job.Rounds(20);
  EXPECT_THAT(job.Steps(), ElementsAre(64, 16));
}

TEST(AdaptiveRounds, ForgetAWorkerThatNoLongerContributes) {
  Job job({.most = 64}, {1, 4, 8});
  job.Rounds(1);
  EXPECT_THAT(job.Steps(), ElementsAre(64, 16, 8));
  job.Round({false, true, true});
  EXPECT_EQ(job.Steps()[1], 64u);
  EXPECT_EQ(job.Steps()[2], 32u);
}

TEST(AdaptiveRounds, OfAWorkerThatDidNotCountUseItsOwnMeasurement) {
  Job job({.most = 64}, {1, 4});
  job.Rounds(1);
  job.Round({true, false});
  EXPECT_THAT(job.Steps(), ElementsAre(64, 16));
}

TEST(AdaptiveRounds, StayShortUntilSpeedsWereRead) {
  AdaptiveRounds rounds({.most = 100});
  ASSERT_TRUE(rounds.Note(25, 50).ok());
  EXPECT_EQ(rounds.steps(), 25u);  // others may be faster
  rounds.Read(0, std::vector<float>(kElements));
  EXPECT_EQ(rounds.steps(), 25u);
}

TEST(AdaptiveRounds, OfANewcomerAreShortAlthoughItsRankWasThereBefore) {
  std::vector<float> mean(kElements);
  mean[3] = 0.25f;
  mean[AdaptiveRounds::kSlots + 3] = 0.5f;
  AdaptiveRounds rounds({.most = 100});
  rounds.Read(3, mean);
  EXPECT_EQ(rounds.steps(), 25u);
}

TEST(AdaptiveRounds, WriteNothingUntilTheyAreMeasured) {
  std::vector<float> pushed(kElements, 7);
  AdaptiveRounds({.most = 100}).Write(1, pushed);
  EXPECT_THAT(pushed, ::testing::Each(0.0f));
}

TEST(AdaptiveRounds, TakeNothingThatIsNoTime) {
  AdaptiveRounds rounds({.most = 100});
  ASSERT_TRUE(rounds.Note(1, 2.0).ok());
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), -1.0f, 0.0f}) {
    std::vector<float> mean(kElements, bad);
    rounds.Read(0, mean);
    EXPECT_EQ(rounds.steps(), 25u) << bad;
    mean.assign(kElements, 0);
    mean[0] = 2;
    mean[5] = bad;
    mean[AdaptiveRounds::kSlots] = mean[AdaptiveRounds::kSlots + 5] = 1;
    rounds.Read(0, mean);
    EXPECT_EQ(rounds.steps(), 100u) << bad;
  }
}

TEST(AdaptiveRounds, OfRanksThatShareASlotUseTheirMean) {
  constexpr uint32_t kSame = AdaptiveRounds::kSlots;
  AdaptiveRounds one({.most = 100});
  AdaptiveRounds other({.most = 100});
  ASSERT_TRUE(one.Note(1, 1).ok());
  ASSERT_TRUE(other.Note(1, 3).ok());
  std::vector<float> first(kElements);
  std::vector<float> second(kElements);
  one.Write(0, first);
  other.Write(kSame, second);
  for (size_t i = 0; i < kElements; ++i) first[i] = (first[i] + second[i]) / 2;
  one.Read(0, first);
  other.Read(kSame, first);
  EXPECT_EQ(one.steps(), 100u);
  EXPECT_EQ(other.steps(), 100u);
}

TEST(AdaptiveRounds, RefuseMeasurementsThatAreNone) {
  AdaptiveRounds rounds({.most = 100});
  EXPECT_FALSE(rounds.Note(0, 1).ok());
  EXPECT_FALSE(rounds.Note(1, 0).ok());
  EXPECT_FALSE(rounds.Note(1, -1).ok());
  EXPECT_FALSE(rounds.Note(1, std::numeric_limits<double>::infinity()).ok());
  EXPECT_EQ(rounds.steps(), 25u);
}

TEST(AdaptiveRounds, AreReadFromText) {
  EXPECT_EQ(*ParseAdaptiveRounds("adaptive:100"), (RoundBounds{.most = 100}));
  EXPECT_EQ(*ParseAdaptiveRounds("adaptive:most=100,least=10"),
            (RoundBounds{.most = 100, .least = 10}));
  EXPECT_EQ(*ParseAdaptiveRounds("adaptive:most=7"), (RoundBounds{.most = 7}));
}

TEST(AdaptiveRounds, OfTextThatSaysSomethingElseAreRefusedWithAnExample) {
  const auto message = [](std::string_view text) {
    return std::string(ParseAdaptiveRounds(text).status().message());
  };
  const auto example = HasSubstr("such as adaptive:100");
  EXPECT_THAT(message("adaptive"), AllOf(HasSubstr("lacks the number"), example));
  EXPECT_THAT(message("100"), AllOf(HasSubstr("only 'adaptive' is known"), example));
  EXPECT_THAT(message("adaptive:0"), AllOf(HasSubstr("most"), example));
  EXPECT_THAT(message("adaptive:2.5"), AllOf(HasSubstr("most"), example));
  EXPECT_THAT(message("adaptive:most=5,least=6"), HasSubstr("least is more than most"));
  EXPECT_THAT(message("adaptive:least=6"), HasSubstr("lacks the number"));
  EXPECT_THAT(message("adaptive:mots=6"), HasSubstr("mots"));
}

}  // namespace
}  // namespace syncline
