#include "server/admin/own_times.h"

#include <array>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// `seconds`: of compute, encode, push, others, publish, decode.
MemberView Member(uint32_t rank, uint64_t steps, std::array<double, 6> seconds,
                  uint32_t incarnation = 1) {
  return {.rank = rank,
          .incarnation = incarnation,
          .phases = {.steps = steps, .seconds = seconds}};
}

TEST(OwnTimes, AreOfAStepAndLeaveOutWhatIsWaitedForOthers) {
  OwnTimes times;
  times.Add({Member(0, 10, {1, 0, 0, 0, 0, 0})});
  EXPECT_THAT(times.workers().at(0).points, IsEmpty());
  times.Add({Member(0, 14, {1.4, 0.04, 0.02, 9, 9, 0.06})});
  EXPECT_THAT(times.workers().at(0).points, ElementsAre(0.13));
  EXPECT_EQ(times.workers().at(0).steps, 14u);
  times.Add({Member(0, 14, {1.9, 0.04, 0.02, 9, 9, 0.06})});  // in the middle of a step
  EXPECT_THAT(times.workers().at(0).points, ElementsAre(0.13));
  times.Add({Member(0, 15, {2, 0.04, 0.02, 9, 9, 0.06})});
  EXPECT_THAT(times.workers().at(0).points, ElementsAre(0.13, 0.6));
}

TEST(OwnTimes, BeginAnewWithALifeAndEndWithTheMember) {
  OwnTimes times;
  times.Add({Member(0, 1, {1}), Member(1, 1, {1})});
  times.Add({Member(0, 2, {2}), Member(1, 2, {2})});
  times.Add({Member(0, 9, {3}, 2)});
  EXPECT_THAT(times.workers().at(0).points, IsEmpty());
  EXPECT_FALSE(times.workers().contains(1));
  times.Add({Member(0, 4, {1}, 2)});  // fewer steps: another process
  EXPECT_THAT(times.workers().at(0).points, IsEmpty());
}

TEST(OwnTimes, AreBounded) {
  OwnTimes times;
  for (uint64_t look = 1; look <= OwnTimes::kPoints + 10; ++look) {
    std::vector<MemberView> members;
    for (uint32_t rank = 0; rank < OwnTimes::kRanks + 10; ++rank) {
      members.push_back(Member(rank, look, {static_cast<double>(look * look)}));
    }
    times.Add(members);
  }
  EXPECT_EQ(times.workers().size(), OwnTimes::kRanks);
  const auto& points = times.workers().at(0).points;
  EXPECT_EQ(points.size(), OwnTimes::kPoints);
  constexpr double kLast = OwnTimes::kPoints + 10;
  EXPECT_EQ(points.back(), kLast * kLast - (kLast - 1) * (kLast - 1));
}

TEST(OwnTimes, HaveNothingOfAWorkerThatMeasuresNothing) {
  OwnTimes times;
  times.Add({{.rank = 3, .step = 100}});
  EXPECT_TRUE(times.workers().empty());
}

}  // namespace
}  // namespace syncline
