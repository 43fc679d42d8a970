#include "server/machine/server_progress.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(AddProgress, AServerIsAsFarAsItsSlowestEngineThatTrains) {
  JobProgress job;
  AddProgress({.step = 0, .trained = 0, .completed = 1}, job);
  AddProgress({.step = 9, .trained = 2, .completed = 20}, job);
  AddProgress({.step = 7, .trained = 3, .completed = 30}, job);
  AddProgress({.step = 0, .trained = 0, .completed = 4}, job);
  EXPECT_EQ(job.step, 7u);
  EXPECT_EQ(job.trained, 5u);
  EXPECT_EQ(job.completed, 55u);
}

TEST(AddProgress, MembersAreAddedByRank) {
  JobProgress job;
  AddProgress({.members = {{.rank = 1, .owed = 1}, {.rank = 4, .owed = 2}}}, job);
  AddProgress({.members = {{.rank = 0, .owed = 10}, {.rank = 4, .owed = 20}}}, job);
  ASSERT_EQ(job.members.size(), 3u);
  EXPECT_EQ(job.members[0].rank, 0u);
  EXPECT_EQ(job.members[1].owed, 1u);
  EXPECT_EQ(job.members[2].owed, 22u);
}

TEST(AddRecords, TwoEnginesAreAsFarAsTheSlowerAndHaveSentTogether) {
  RecordSender::Progress server = {.taken = 7, .durable = 5, .bytes = 1000};
  AddRecords({.taken = 9, .durable = 4, .bytes = 300}, server);
  EXPECT_EQ(server.taken, 9u);
  EXPECT_EQ(server.durable, 4u);
  EXPECT_EQ(server.bytes, 1300u);
}

}  // namespace
}  // namespace syncline
