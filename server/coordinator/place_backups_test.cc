#include "server/coordinator/place_backups.h"

#include <gmock/gmock.h>

#include <utility>

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

constexpr absl::Duration kFailureTimeout = absl::Seconds(10);
constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr absl::Duration kNow = absl::Seconds(1000);

JobServer Server(uint32_t number) {
  return {.server = number, .name = absl::StrCat("host", number), .shard_addresses = {}};
}

// Two places. The backup of the first is on server 1, by order 7, in stand-in 11.
class PlaceBackupsTest : public ::testing::Test {
 protected:
  PlaceBackupsTest() {
    backups_.Begin(2);
    backups_.Ask(0, Server(1), 7);
    backups_.Ask(1, Server(0), 8);
  }
  void Come(size_t place, uint32_t stand_in, uint64_t session_key = 5) {
    backups_.Come(place, Server(stand_in), {.session_key = session_key});
  }
  // Begins a new backup of the first place, which lacks only the records.
  void MakeAnew(absl::Duration now) {
    backups_.BeginNew(0, now);
    backups_.Ask(0, Server(2), 9);
    Come(0, 12, 6);
    backups_.SetReady(0);
  }

  const CoordinatorOptions options_ = {.timeouts = Timeouts::Derive(kFailureTimeout),
                                       .patience = kPatience};
  PlaceBackups backups_{options_};
};

TEST_F(PlaceBackupsTest, OneThatHasItsShardsCanTakeOver) {
  EXPECT_THAT(backups_.OrderedBy(7), Optional(0u));
  EXPECT_FALSE(backups_.AreAllReady());
  Come(0, 11);
  EXPECT_EQ(backups_.OrderedBy(7), std::nullopt) << "one is enough";
  EXPECT_THAT(backups_.HeldBy(11), Optional(0u));
  EXPECT_EQ(backups_[0].present.stand_in->host, "host1") << "it runs there";
  EXPECT_FALSE(backups_.CanTakeOver(0));
  EXPECT_TRUE(backups_.SetReady(0));
  EXPECT_FALSE(backups_.SetReady(0)) << "it says so once";
  EXPECT_TRUE(backups_.CanTakeOver(0));
  EXPECT_FALSE(backups_.AreAllReady()) << "the other place has none yet";
  Come(1, 12);
  backups_.SetReady(1);
  EXPECT_TRUE(backups_.AreAllReady());
  EXPECT_EQ(backups_.View(0, 0).holder, "server 1 (host1)");
}

TEST_F(PlaceBackupsTest, JobsWithoutHaveNone) {
  const PlaceBackups none(options_);
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none.CanTakeOver(0));
  EXPECT_TRUE(none.AreAllThere());
}

TEST_F(PlaceBackupsTest, OneThatIsLostNeverTakesOver) {
  Come(0, 11);
  EXPECT_TRUE(backups_.Lose(0, "its stream broke"));
  EXPECT_FALSE(backups_.Lose(0, "another reason"));
  EXPECT_FALSE(backups_.SetReady(0)) << "nobody wants it any more";
  EXPECT_FALSE(backups_.CanTakeOver(0));
  EXPECT_FALSE(backups_.AreAllThere());
  EXPECT_TRUE(backups_.Lacks(0));
  EXPECT_EQ(backups_.View(0, 3).lost, "its stream broke");
  EXPECT_EQ(backups_.View(0, 3).server, 3u);
  EXPECT_EQ(backups_.TakeStandIn(0)->server, 11u);
  EXPECT_FALSE(backups_.TakeStandIn(0).has_value());
  EXPECT_EQ(backups_.HeldBy(11), std::nullopt);
}

TEST_F(PlaceBackupsTest, NobodyComesForOneThatIsLost) {
  backups_.Lose(0, "its holder is lost");
  EXPECT_EQ(backups_.OrderedBy(7), std::nullopt);
}

TEST_F(PlaceBackupsTest, ANewOneCountsOnceItHasAll) {
  backups_.Lose(0, "its holder is lost");
  MakeAnew(kNow);
  EXPECT_FALSE(backups_.CanTakeOver(0));
  EXPECT_FALSE(backups_.Lacks(0)) << "one is being made";
  EXPECT_THAT(backups_.View(0, 0).next, HasSubstr("is being made with server 2 (host2)"));
  EXPECT_FALSE(backups_.Complete(0, 5)) << "that was the one before";
  EXPECT_TRUE(backups_.Complete(0, 6));
  EXPECT_FALSE(backups_.Complete(0, 6));
  EXPECT_TRUE(backups_.CanTakeOver(0));
  EXPECT_THAT(backups_.View(0, 0).lost, IsEmpty());
}

TEST_F(PlaceBackupsTest, OneThatIsThereCountsUntilTheNewOneHasAll) {
  Come(0, 11);
  backups_.SetReady(0);
  MakeAnew(kNow);
  EXPECT_TRUE(backups_.AreAllThere());
  EXPECT_TRUE(backups_.IsAnyBeingMade());
  EXPECT_TRUE(backups_.CanTakeOver(0));
  EXPECT_TRUE(backups_.IsWith(0, "host1") && backups_.IsWith(0, "host2"));
  EXPECT_THAT(backups_.HeldBy(11), Optional(0u));
  EXPECT_THAT(backups_.HeldBy(12), Optional(0u));
  EXPECT_TRUE(backups_.IsNext(0, 12));
  EXPECT_FALSE(backups_.IsNext(0, 11));
  EXPECT_EQ(backups_.View(0, 0).holder, "server 1 (host1)");
  EXPECT_THAT(backups_.View(0, 0).next, HasSubstr("server 2 (host2)"));
  EXPECT_TRUE(backups_.Complete(0, 6));
  EXPECT_EQ(backups_[0].present.stand_in->server, 12u);
  EXPECT_FALSE(backups_.IsWith(0, "host1"));
  EXPECT_FALSE(backups_.IsAnyBeingMade());
  EXPECT_EQ(backups_.HeldBy(11), std::nullopt);
}

TEST_F(PlaceBackupsTest, ANewOneIsMadeToItsEndAlthoughTheOneBeforeIsLost) {
  Come(0, 11);
  backups_.SetReady(0);
  MakeAnew(kNow);
  EXPECT_TRUE(backups_.Lose(0, "its holder is lost"));
  EXPECT_FALSE(backups_.CanTakeOver(0));
  EXPECT_FALSE(backups_.Lacks(0));
  EXPECT_EQ(backups_.TakeStandIn(0)->server, 11u);
  EXPECT_TRUE(backups_.Complete(0, 6));
  EXPECT_TRUE(backups_.CanTakeOver(0));
}

TEST_F(PlaceBackupsTest, ANewOneThatIsGivenUpLeavesTheOneThatIsThere) {
  Come(0, 11);
  backups_.SetReady(0);
  MakeAnew(kNow);
  EXPECT_TRUE(backups_.GiveUpFailed(0));
  EXPECT_EQ(backups_.TakeNext(0)->server, 12u);
  EXPECT_TRUE(backups_.CopyFailedOn(0, 2));
  EXPECT_FALSE(backups_.CopyFailedOn(0, 1));
  EXPECT_TRUE(backups_.CanTakeOver(0));
  EXPECT_FALSE(backups_.Complete(0, 6));
  EXPECT_THAT(backups_.HeldBy(11), Optional(0u));
}

TEST_F(PlaceBackupsTest, ANewOneThatIsGivenUpDoesNotCountWhenItSaysThatItHasAll) {
  backups_.Lose(0, "its holder is lost");
  MakeAnew(kNow);
  EXPECT_TRUE(backups_.GiveUp(0));
  EXPECT_FALSE(backups_.GiveUp(0));
  EXPECT_FALSE(backups_.Complete(0, 6));
  EXPECT_EQ(backups_[0].lost, "its holder is lost");
}

TEST_F(PlaceBackupsTest, ANewOneIsAwaitedOnItsHolderForSoLong) {
  EXPECT_EQ(backups_.AwaitedOn(1), std::nullopt) << "the first ones end their job";
  backups_.Lose(0, "its holder is lost");
  backups_.BeginNew(0, kNow);
  backups_.Ask(0, Server(2), 9);
  EXPECT_THAT(backups_.AwaitedOn(2), Optional(0u));
  EXPECT_FALSE(backups_.IsLate(0, kNow + kPatience - absl::Seconds(1)));
  EXPECT_TRUE(backups_.IsLate(0, kNow + kPatience));
  Come(0, 12);
  EXPECT_EQ(backups_.AwaitedOn(2), std::nullopt);
  EXPECT_FALSE(backups_.IsLate(0, kNow + kPatience)) << "it has come";
}

TEST_F(PlaceBackupsTest, ThoseThatFollowSoonWaitLongerAndLonger) {
  backups_.Lose(0, "its holder is lost");
  EXPECT_TRUE(backups_.MayTry(0, kNow)) << "the first one is made at once";
  absl::Duration now = kNow;
  for (const int wait : {1, 2, 4, 8, 16, 32, 64}) {
    backups_.BeginNew(0, now);
    backups_.GiveUp(0);
    EXPECT_FALSE(backups_.MayTry(0, now + wait * kFailureTimeout - absl::Seconds(1)));
    now += wait * kFailureTimeout;
    EXPECT_TRUE(backups_.MayTry(0, now)) << wait;
  }
  backups_.BeginNew(0, now);
  EXPECT_TRUE(backups_.MayTry(0, now + 64 * kFailureTimeout)) << "but no longer";
  // After a long rest the count of tries begins again.
  now += 65 * kFailureTimeout;
  backups_.BeginNew(0, now);
  EXPECT_TRUE(backups_.MayTry(0, now + kFailureTimeout));
}

TEST_F(PlaceBackupsTest, OneThatIsThereMayBeReplacedAtOnceUnlessTheLastTryFailed) {
  backups_.Lose(0, "its holder is lost");
  MakeAnew(kNow);
  EXPECT_TRUE(backups_.Complete(0, 6));
  EXPECT_TRUE(backups_.MayTry(0, kNow));
  MakeAnew(kNow);
  EXPECT_TRUE(backups_.GiveUpFailed(0));
  EXPECT_FALSE(backups_.MayTry(0, kNow));
  EXPECT_TRUE(backups_.MayTry(0, kNow + 2 * kFailureTimeout));
}

TEST_F(PlaceBackupsTest, ASuccessorGetsANewOneAtOnce) {
  Come(0, 11);
  backups_.SetReady(0);
  backups_.BeginNew(0, kNow);
  backups_.GiveUp(0);
  backups_.UseUp(0);
  backups_.NoteSuccessor(0);
  EXPECT_THAT(backups_[0].lost, HasSubstr("it has taken over"));
  EXPECT_EQ(backups_.HeldBy(11), std::nullopt) << "it is the server now";
  EXPECT_TRUE(backups_.MayTry(0, kNow));
}

TEST_F(PlaceBackupsTest, ThoseOfAnEarlierCoordinatorAreLost) {
  PlaceBackups restored(options_);
  restored.AddLost("");
  restored.AddLost("its holder is lost");
  EXPECT_EQ(restored[0].lost, "the coordinator was restarted");
  EXPECT_EQ(restored[1].lost, "its holder is lost");
  EXPECT_EQ(restored.OrderedBy(0), std::nullopt);
}

TEST_F(PlaceBackupsTest, SayWhyNoneIsBeingMade) {
  backups_.Lose(0, "its holder is lost");
  backups_.NoteWhyNone(0, "no other server is attached");
  EXPECT_EQ(backups_.View(0, 0).next, "no other server is attached");
}

// ---- Who holds them ----

TEST(FindHolder, TakesTheOneWithTheFewestBytesThatHasRoom) {
  std::vector<JobServer> servers = {Server(0), Server(1), Server(2), Server(3)};
  servers[0].memory = {.budget_bytes = 100, .placed_bytes = 0};  // it serves the place
  servers[1].memory = {.budget_bytes = 30, .placed_bytes = 10};  // too little
  servers[2].memory = {.budget_bytes = 100, .placed_bytes = 30};
  servers[3].memory = {.budget_bytes = 100, .placed_bytes = 20};
  const CopyNeed copy = {.bytes = 21, .host = "host0"};
  EXPECT_EQ(FindHolder(servers, copy), &servers[3]);
  EXPECT_TRUE(MayHold(servers[1], {.bytes = 20, .host = "host0"}));
  servers[3].memory.placed_bytes = 30;
  EXPECT_EQ(FindHolder(servers, copy), &servers[2]) << "of equals the first";
  servers[2].memory.placed_bytes = servers[3].memory.placed_bytes = 80;
  EXPECT_EQ(FindHolder(servers, copy), nullptr);
  servers[1].memory.budget_bytes = 0;
  EXPECT_EQ(FindHolder(servers, copy), &servers[1]) << "what is not known is not checked";
}

// ---- Where one failed ----

TEST_F(PlaceBackupsTest, AServerOnWhichACopyFailedIsRememberedUntilACopyThereIsComplete) {
  backups_.Lose(0, "its holder is lost");
  EXPECT_TRUE(backups_.MayMoveTo(0, 2));
  EXPECT_FALSE(backups_.GiveUpFailed(0)) << "none is being made";
  EXPECT_TRUE(backups_.MayMoveTo(0, 1)) << "that one was complete";
  MakeAnew(kNow);
  EXPECT_TRUE(backups_.GiveUpFailed(0));
  EXPECT_TRUE(backups_.CopyFailedOn(0, 2));
  EXPECT_FALSE(backups_.MayMoveTo(0, 2));
  EXPECT_TRUE(backups_.MayMoveTo(0, 3)) << "a server that starts again has a new number";
  EXPECT_TRUE(backups_.MayMoveTo(1, 2)) << "another place may fit";
  MakeAnew(kNow + kFailureTimeout);
  EXPECT_TRUE(backups_.Complete(0, 6));
  EXPECT_TRUE(backups_.MayMoveTo(0, 2));
}

TEST_F(PlaceBackupsTest, ACopyThatIsGivenUpForAnotherReasonIsNoFailure) {
  backups_.Lose(0, "its holder is lost");
  MakeAnew(kNow);
  EXPECT_TRUE(backups_.GiveUp(0));
  EXPECT_TRUE(backups_.MayMoveTo(0, 2));
}

TEST_F(PlaceBackupsTest, AServerThatDidNotTakeAPlaceOverMayHoldItsBackupAndNoMore) {
  Come(0, 11);
  backups_.NoteMoveFailed(0);
  EXPECT_FALSE(backups_.MayMoveTo(0, 1));
  EXPECT_FALSE(backups_.CopyFailedOn(0, 1));
}

TEST_F(PlaceBackupsTest, AServerThatIsAvoidedHoldsACopyOnlyIfNoOtherMay) {
  std::vector<JobServer> servers = {Server(1), Server(2)};
  servers[1].memory.placed_bytes = 100;
  EXPECT_EQ(FindHolder(servers, {})->server, 1u);
  EXPECT_EQ(FindHolder(servers, {.avoided = {1}})->server, 2u);
  EXPECT_EQ(FindHolder(servers, {.host = "host2", .avoided = {1}})->server, 1u);
  for (const std::vector<uint32_t>& failed : {std::vector<uint32_t>{1, 2}, {2, 1}}) {
    EXPECT_EQ(FindHolder(servers, {.host = "host3", .avoided = failed})->server,
              failed.front())
        << "the one on which a copy failed longest ago";
  }
}

}  // namespace
}  // namespace syncline
