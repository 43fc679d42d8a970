#include "server/coordinator/places.h"

#include <gmock/gmock.h>

#include <utility>

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

JobServer Server(uint32_t number, std::vector<std::string> addresses) {
  return {.server = number,
          .incarnation = 10 * number,
          .connection = 100 + number,
          .name = absl::StrCat("host", number),
          .shard_addresses = std::move(addresses)};
}

// Server 7 has shards 0 and 1, server 3 has shards 2 and 3. Of blocks 0 to 3, in this
// order, the last two are trained; shard 3 has none.
class PlacesTest : public ::testing::Test {
 protected:
  PlacesTest() {
    JobPlacement placement = {.shards = {2, 2},
                              .shard_of_block = {1, 2, 0, 1},
                              .server_use = {{.master = 300}, {.master = 100}},
                              .serves = {true, true}};
    placement.server_use[0].held = 20;
    TrainedBlocks trained;
    for (const bool is_trained : {false, false, true, true}) trained.Add(is_trained);
    places_.Begin({Server(7, {"a", "b"}), Server(3, {"c", "d"})},
                  std::make_shared<const JobPlacement>(std::move(placement)), trained);
  }

  Places places_;
};

TEST_F(PlacesTest, CountShardsOverAllServers) {
  EXPECT_EQ(places_.FirstShard(0), 0u);
  EXPECT_EQ(places_.FirstShard(1), 2u);
  EXPECT_EQ(places_.shards(), 4u);
  EXPECT_THAT(*places_.addresses(), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(places_.Of(3), Optional(1u));
  EXPECT_EQ(places_.Of(1), std::nullopt) << "it has another number";
}

TEST_F(PlacesTest, KnowWhatLiesInEach) {
  EXPECT_THAT(places_.ShardsOf(0), ElementsAre(0, 1));
  EXPECT_THAT(places_.ShardsOf(1), ElementsAre(2)) << "shard 3 has no block";
  EXPECT_THAT(places_.BlocksOf(0), ElementsAre(0, 2, 3));
  EXPECT_THAT(places_.BlocksOf(1), ElementsAre(1));
  EXPECT_THAT(places_.training_shards(), ElementsAre(0, 1));
  EXPECT_TRUE(places_.Trains(0));
  EXPECT_FALSE(places_.Trains(1));
}

TEST_F(PlacesTest, TellOfAMoveWithTheNextEpoch) {
  places_.Move(1, Server(9, {"x", "y"}), std::nullopt);
  EXPECT_TRUE(places_.HasUntoldMoves());
  EXPECT_THAT(places_.Moved(), IsEmpty()) << "no worker can know of it yet";
  places_.BeginEpoch(5);
  EXPECT_FALSE(places_.HasUntoldMoves());
  const std::vector<MovedShard> moved = places_.Moved();
  ASSERT_EQ(moved.size(), 2u);
  EXPECT_EQ(moved[0].shard, 2u);
  EXPECT_EQ(moved[0].epoch, 5u);
  EXPECT_EQ(moved[0].address, "x");
  EXPECT_EQ(moved[0].server.server, 9u);
  EXPECT_EQ(moved[0].server.incarnation, 90u);
  EXPECT_EQ(moved[1].address, "y");
  EXPECT_THAT(*places_.addresses(), ElementsAre("a", "b", "x", "y"));
  EXPECT_EQ(places_.Of(3), std::nullopt);
  EXPECT_THAT(places_.Of(9), Optional(1u));
  places_.BeginEpoch(6);
  EXPECT_EQ(places_.Moved()[0].epoch, 5u);
}

TEST_F(PlacesTest, AMoveInAnEpochUnderWayIsToldWithThatOne) {
  places_.Move(0, Server(9, {"x", "y"}), 4);
  EXPECT_FALSE(places_.HasUntoldMoves());
  EXPECT_EQ(places_.Moved().at(0).epoch, 4u);
}

TEST_F(PlacesTest, MoreStalenessIsPlannedOnlyWhereAllHaveRoom) {
  const StalenessChange change = {.planned = 0, .staleness = 3};
  ServerMemories memory = {
      {7, {.name = "host7", .budget_bytes = 379, .placed_bytes = 320}},
      {3, {.name = "host3", .budget_bytes = 100, .placed_bytes = 100}}};
  const absl::Status lacks = places_.PlanIfItFits("job", change, memory);
  EXPECT_TRUE(absl::IsResourceExhausted(lacks));
  EXPECT_THAT(std::string(lacks.message()),
              HasSubstr("staleness 3 needs too much memory"));
  EXPECT_EQ(places_.BytesOf(0), 320u);
  memory.at(7).budget_bytes = 380;
  EXPECT_EQ(places_.PlanIfItFits("job", change, memory), absl::OkStatus());
  EXPECT_EQ(places_.BytesOf(0), 380u);
  EXPECT_EQ(places_.BytesOf(1), 100u);
  // Of less it stays planned.
  EXPECT_EQ(places_.PlanIfItFits("job", {}, memory), absl::OkStatus());
  EXPECT_EQ(places_.BytesOf(0), 380u);
}

TEST_F(PlacesTest, MoreStalenessIsNotPlannedOnServersThatAreAway) {
  const absl::Status away =
      places_.PlanIfItFits("job", {.planned = 0, .staleness = 3}, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(away));
  EXPECT_THAT(std::string(away.message()), HasSubstr("server 7 (host7) is not attached"));
}

TEST_F(PlacesTest, ThoseOfAnEarlierCoordinatorAreAsTheyWerePlannedLast) {
  places_.Plan({.planned = 1, .staleness = 3});
  EXPECT_EQ(places_.BytesOf(0), 340u);
}

TEST_F(PlacesTest, WhenItIsOverTheServersAreStillKnown) {
  places_.Release();
  EXPECT_EQ(places_.placement(), nullptr);
  EXPECT_EQ(places_.addresses(), nullptr);
  EXPECT_EQ(places_.BytesOf(0), 0u);
  EXPECT_EQ(places_[1].name, "host3");
  EXPECT_TRUE(places_.Trains(0));
}

}  // namespace
}  // namespace syncline
