#include "comm/collective/nccl/roll_call.h"

#include <gmock/gmock.h>

namespace syncline::collective {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Ranks {
  explicit Ranks(int count) {
    for (int rank = 0; rank < count; ++rank) calls.emplace_back(rank);
  }
  void Call(size_t rank, uint64_t count) {
    CallHeader header = {.count = count, .algorithm = kNcclAlgorithm};
    calls[rank].Note(header);
  }
  // Returns what each rank finds.
  std::vector<absl::Status> Round() {
    std::vector<RollCallRecord> records;
    for (const RollCall& one : calls) records.push_back(one.Answer());
    return Take(records);
  }
  std::vector<absl::Status> Take(const std::vector<RollCallRecord>& records) {
    std::vector<absl::Status> found;
    for (RollCall& one : calls) found.push_back(one.Take(records));
    return found;
  }
  bool AllWell() {
    bool well = true;
    for (const absl::Status& status : Round()) well = well && status.ok();
    return well;
  }

  std::vector<RollCall> calls;
};

TEST(RollCall, IsContentWhereAllCallTheSame) {
  Ranks ranks(3);
  EXPECT_TRUE(ranks.AllWell());
  for (uint64_t number = 1; number < 3000; ++number) {
    for (size_t rank = 0; rank < 3; ++rank) {
      ranks.Call(rank, number);
      if (number % (rank + 2) == 0) {
        EXPECT_TRUE(ranks.AllWell());  // some ranks are behind
      }
    }
    for (RollCall& one : ranks.calls) one.NoteEnd();
  }
  EXPECT_TRUE(ranks.AllWell());
  EXPECT_TRUE(ranks.AllWell());
}

TEST(RollCall, NamesBothCallsOfAnOperationThatHangs) {
  Ranks ranks(3);
  for (size_t rank = 0; rank < 3; ++rank) {
    ranks.Call(rank, 5);
    ranks.calls[rank].NoteEnd();
  }
  ranks.Call(0, 7);
  ranks.Call(1, 7);
  ranks.Call(2, 8);
  EXPECT_TRUE(ranks.AllWell());  // the first round only asks
  const auto found = ranks.Round();
  EXPECT_TRUE(absl::IsFailedPrecondition(found[0])) << found[0];
  EXPECT_EQ(FailedRank(found[0]), 2);
  EXPECT_EQ(FailedRank(found[1]), 2);
  EXPECT_EQ(FailedRank(found[2]), 0);
  EXPECT_THAT(std::string(found[0].message()),
              HasSubstr("rank 2 is in all_reduce (sum) number 2 of 8 f32 over NCCL, but "
                        "this rank is in all_reduce (sum) number 2 of 7"));
}

TEST(RollCall, FindsADifferenceThatHasPassed) {
  Ranks ranks(2);
  ranks.Call(0, 5);
  ranks.Call(1, 6);
  for (RollCall& one : ranks.calls) one.NoteEnd();
  for (size_t rank = 0; rank < 2; ++rank) ranks.Call(rank, 7);
  EXPECT_TRUE(ranks.AllWell());
  const auto found = ranks.Round();
  EXPECT_TRUE(absl::IsFailedPrecondition(found[1])) << found[1];
  EXPECT_EQ(FailedRank(found[1]), 0);
  EXPECT_THAT(std::string(found[1].message()), HasSubstr("before number 2"));
}

TEST(RollCall, KnowsWhoIsBehind) {
  Ranks ranks(4);
  for (const size_t rank : {0, 2}) ranks.Call(rank, 5);
  EXPECT_TRUE(ranks.AllWell());
  EXPECT_THAT(ranks.calls[0].Behind(1), ElementsAre(1, 3));
  EXPECT_THAT(ranks.calls[0].Behind(2), ElementsAre(0, 1, 2, 3));
}

// A rank far ahead in its calls has forgotten the call that another rank is in.
TEST(RollCall, SaysNothingOfWhatIsForgotten) {
  Ranks ranks(2);
  for (uint64_t number = 0; number < 5000; ++number) ranks.Call(0, number);
  ranks.Call(1, 99);
  EXPECT_TRUE(ranks.AllWell());
  EXPECT_TRUE(ranks.AllWell());
}

}  // namespace
}  // namespace syncline::collective
