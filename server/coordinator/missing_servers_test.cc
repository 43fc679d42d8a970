#include "server/coordinator/missing_servers.h"

#include <gmock/gmock.h>

#include <memory>

namespace syncline {
namespace {

using ::testing::Optional;

constexpr absl::Duration kFailureTimeout = absl::Seconds(10);
constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr absl::Duration kNow = absl::Seconds(1000);

JobServer Server(uint32_t number) {
  return {.server = number,
          .name = absl::StrCat("host", number),
          .shard_addresses = {"address"}};
}

// The server of place 1 is missing, since kNow.
class MissingServersTest : public ::testing::Test {
 protected:
  MissingServersTest() {
    missing_.Add(1, kNow);
    const JobPlacement placement = {.server_use = {{}, {}}};
    places_.Begin({Server(0), Server(4)}, std::make_shared<const JobPlacement>(placement),
                  TrainedBlocks());
  }
  std::string TextAfter(absl::Duration waited) {
    return missing_.Text(kNow + waited, places_);
  }

  const CoordinatorOptions options_ = {.timeouts = Timeouts::Derive(kFailureTimeout),
                                       .patience = kPatience};
  MissingServers missing_{options_};
  Places places_;
};

TEST_F(MissingServersTest, AreThereAgainWhenTheirSuccessorsAre) {
  EXPECT_TRUE(missing_.contains(1));
  EXPECT_EQ(missing_.Find(0), nullptr);
  missing_.Restore(1, Server(7));
  EXPECT_THAT(missing_.SucceededBy(7), Optional(1u));
  EXPECT_EQ(missing_.SucceededBy(4), std::nullopt);
  const MissingServer was = missing_.Take(1);
  EXPECT_EQ(was.successor->server, 7u);
  EXPECT_FALSE(was.by_backup);
  EXPECT_TRUE(missing_.empty());
}

TEST_F(MissingServersTest, ABackupBeginsAJournalOfItsOwn) {
  missing_.Promote(1, Server(7), 99);
  const MissingServer was = missing_.Take(1);
  EXPECT_TRUE(was.by_backup);
  EXPECT_EQ(was.generation, 99u);
}

// ---- Who restores it ----

TEST_F(MissingServersTest, OneThatServesAlreadyIsAskedAfterAWhile) {
  EXPECT_FALSE(missing_.MayAsk(1)) << "others may be on their way";
  for (int second = 0; second < 5; ++second) missing_.Look(kNow + absl::Seconds(second));
  EXPECT_FALSE(missing_.MayAsk(1));
  missing_.Look(kNow + absl::Seconds(5));  // it is said for the second time
  EXPECT_TRUE(missing_.MayAsk(1));
  missing_.Ask(1, Server(0), 8);
  EXPECT_FALSE(missing_.MayAsk(1)) << "it is asked";
  EXPECT_THAT(missing_.OrderedBy(8), Optional(1u));
  EXPECT_THAT(missing_.AwaitedOn(0), Optional(1u));
  EXPECT_EQ(missing_.Find(1)->host, "host0");
  missing_.Restore(1, Server(9));
  EXPECT_EQ(missing_.OrderedBy(8), std::nullopt) << "its node has come";
  EXPECT_EQ(missing_.AwaitedOn(0), std::nullopt);
}

TEST_F(MissingServersTest, NobodyIsAwaitedByNoOrder) {
  EXPECT_EQ(missing_.OrderedBy(0), std::nullopt);
  EXPECT_EQ(missing_.AwaitedOn(0), std::nullopt);
}

TEST_F(MissingServersTest, ANodeThatDoesNotComeIsAskedForAnew) {
  missing_.Look(kNow);
  missing_.Ask(1, Server(0), 8);
  missing_.Look(kNow + absl::Seconds(4));
  EXPECT_THAT(missing_.OrderedBy(8), Optional(1u));
  missing_.Look(kNow + absl::Seconds(5));
  EXPECT_EQ(missing_.OrderedBy(8), std::nullopt);
}

TEST_F(MissingServersTest, ALostRestorerIsAwaitedNoMore) {
  missing_.Add(0, kNow);
  missing_.Ask(0, Server(3), 8);
  missing_.Ask(1, Server(3), 9);
  missing_.ForgetOrdersOf(2);
  EXPECT_THAT(missing_.AwaitedOn(3), Optional(0u));
  missing_.ForgetOrdersOf(3);
  EXPECT_EQ(missing_.AwaitedOn(3), std::nullopt);
}

// ---- Who does not ----

TEST_F(MissingServersTest, WhoCannotLeavesTheClockRunning) {
  missing_.Restore(1, Server(7));
  missing_.Fail(1, "server 7 (host7): the journal is held");
  EXPECT_EQ(missing_.SucceededBy(7), std::nullopt);
  EXPECT_EQ(TextAfter(absl::Seconds(3)),
            "waits for server 4 (host4), 3 s of 60 s (server 7 (host7): the journal is "
            "held)");
}

TEST_F(MissingServersTest, AfterALostBackupTheJournalIsWaitedForAnew) {
  missing_.Promote(1, Server(7), 99);
  missing_.Look(kNow + absl::Seconds(50));
  missing_.FailAndWaitAnew(1, "its backup is lost, too");
  EXPECT_FALSE(missing_.Find(1)->by_backup);
  EXPECT_FALSE(missing_.Look(kNow + absl::Seconds(100)).late.has_value());
  EXPECT_THAT(missing_.Look(kNow + absl::Seconds(160)).late, Optional(1u));
}

// ---- Time ----

TEST_F(MissingServersTest, AreWaitedForSoLong) {
  EXPECT_FALSE(missing_.Look(kNow + kPatience - absl::Milliseconds(1)).late.has_value());
  const MissingServers::Verdict verdict = missing_.Look(kNow + kPatience);
  EXPECT_THAT(verdict.late, Optional(1u));
  EXPECT_EQ(verdict.limit, kPatience);
}

TEST_F(MissingServersTest, OneThatReadsRecordsHasFourTimesAsLong) {
  missing_.Restore(1, Server(7));
  EXPECT_FALSE(missing_.Look(kNow + 4 * kPatience - absl::Seconds(1)).late.has_value());
  EXPECT_EQ(missing_.Look(kNow + 4 * kPatience).limit, 4 * kPatience);
}

TEST_F(MissingServersTest, WithoutATimeTheFirstLookBeginsIt) {
  missing_.Add(1, std::nullopt);
  EXPECT_EQ(TextAfter(absl::Seconds(7)), "waits for server 4 (host4), 0 s of 60 s");
  missing_.Look(kNow + absl::Seconds(10));
  EXPECT_EQ(TextAfter(absl::Seconds(17)), "waits for server 4 (host4), 7 s of 60 s");
}

TEST_F(MissingServersTest, ItIsSaidLessAndLessOften) {
  std::vector<int> said;
  for (int second = 0; second < 60; ++second) {
    if (missing_.Look(kNow + absl::Seconds(second)).says) said.push_back(second);
  }
  EXPECT_THAT(said, ::testing::ElementsAre(0, 5, 10, 20, 40));
}

TEST_F(MissingServersTest, SayWhoReadsWhat) {
  missing_.Add(0, kNow - absl::Seconds(2));
  missing_.Promote(0, Server(7), 0);
  missing_.Restore(1, Server(8));
  EXPECT_EQ(
      TextAfter(absl::ZeroDuration()),
      "waits for server 0 (host0), 2 s of 60 s; server 7 (host7) is reading its backup "
      "and server 4 (host4), 0 s of 60 s; server 8 (host8) is reading its journal");
}

}  // namespace
}  // namespace syncline
