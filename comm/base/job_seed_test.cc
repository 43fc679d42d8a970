#include "comm/base/job_seed.h"

#include <cstdint>
#include <set>

#include "gtest/gtest.h"

namespace syncline {
namespace {

// Test vectors of the FNV draft. They must never change: a job must have the same bits
// when a later version runs it.
TEST(JobSeed, IsFnv1a) {
  EXPECT_EQ(JobSeed(""), 0xcbf29ce484222325u);
  EXPECT_EQ(JobSeed("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(JobSeed("foobar"), 0x85944171f73967e8u);
}

TEST(JobSeed, RanksDifferFromEachOtherAndFromTheServers) {
  std::set<uint64_t> seeds = {JobSeed("resnet")};
  for (uint32_t rank = 0; rank < 4096; ++rank) {
    EXPECT_TRUE(seeds.insert(SeedOfRank(JobSeed("resnet"), rank)).second) << rank;
  }
}

}  // namespace
}  // namespace syncline
