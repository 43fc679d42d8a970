// A block with as many members as a job may have: which contributions are held, and in
// which order they are summed.
#include "server/shard/block.h"

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/base/limits.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

class BlockTest : public ::testing::Test {
 protected:
  BlockTest() {
    block_.Seed({});
    EXPECT_TRUE(block_.seeded());
  }

  static ShardMember Member(uint32_t rank, uint32_t incarnation = 1) {
    return {.rank = rank, .incarnation = incarnation};
  }
  PushRuling RulingOf(const ShardMember& member, uint64_t step) const {
    return policy_->Judge(block_.FactsOf(member, step));
  }
  void Hold(uint32_t rank, uint32_t samples = 1) {
    ASSERT_EQ(RulingOf(Member(rank), block_.version()), PushRuling::kTake);
    block_.Hold(block_.version(),
                {.from = {.rank = rank, .incarnation = 1, .samples = samples}});
  }
  std::vector<uint32_t> RanksOfTheSum() {
    block_.SetWeights();
    std::vector<uint32_t> ranks;
    for (const Contribution& one : block_.Sum().contributions) {
      ranks.push_back(one.from.rank);
    }
    return ranks;
  }

  const std::unique_ptr<const SyncPolicy> policy_ = MakeSyncPolicy({});
  std::array<float, 1> weights_ = {};
  Block block_{ShardBlock{.block = 0, .range = {.tensor = 0, .elements = 1}},
               BlockMemory{.weights = weights_}};
};

TEST_F(BlockTest, SumsUpInRankOrderWhateverTheOrderOfArrival) {
  for (const uint32_t rank : {5, 2, 9}) Hold(rank);
  EXPECT_EQ(RanksOfTheSum(), (std::vector<uint32_t>{2, 5, 9}));
  for (const uint32_t rank : {7, 0, 3}) Hold(rank);  // more after they were sorted
  EXPECT_EQ(RanksOfTheSum(), (std::vector<uint32_t>{0, 2, 3, 5, 7, 9}));
}

TEST_F(BlockTest, KnowsWhomItHoldsThroughForgettingAndAdvancing) {
  for (const uint32_t rank : {4, 1, 3}) Hold(rank);
  EXPECT_EQ(RulingOf(Member(3), 0), PushRuling::kHeld);
  EXPECT_EQ(RulingOf(Member(3, 2), 0), PushRuling::kTake) << "another life";
  EXPECT_EQ(block_.present(), 3u);
  block_.Forget([](const WorkerId& worker) { return worker.first != 3; });
  EXPECT_EQ(block_.present(), 2u);
  EXPECT_EQ(RulingOf(Member(3), 0), PushRuling::kTake);
  EXPECT_EQ(RulingOf(Member(4), 0), PushRuling::kHeld);
  block_.Advance(Block::Outcome::kUnchanged);
  EXPECT_EQ(block_.present(), 0u);
  for (const uint32_t rank : {4, 1, 3}) {
    EXPECT_EQ(RulingOf(Member(rank), 1), PushRuling::kTake);
  }
}

// This takes minutes, not milliseconds, if a push searches all other pushes.
TEST_F(BlockTest, TakesAPushOfEachOfTheMostWorkersForManySteps) {
  constexpr uint64_t kSteps = 5;
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (uint32_t rank = kMaxWorkers; rank-- > 0;) {
      Hold(rank);
      ASSERT_EQ(block_.present(), kMaxWorkers - rank);
    }
    ASSERT_EQ(RanksOfTheSum().size(), kMaxWorkers);
    block_.Advance(Block::Outcome::kUpdated);
  }
}

}  // namespace
}  // namespace syncline
