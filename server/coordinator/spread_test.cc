// Which share moves next. The last test is a plain loop that carries out the moves until
// there are none.
#include "server/coordinator/spread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

ShareHost Host(const std::string& name) { return {.name = name}; }

TEST(NextMove, OneOfTwoGoesToTheServerThatHasNoneAndHoldsItsBackup) {
  const auto move = NextMove({{.place = 0, .host = "b", .holder = "d"},
                              {.place = 1, .host = "b", .holder = "c"},
                              {.place = 2, .host = "d", .holder = "b"}},
                             {Host("b"), Host("c"), Host("d")});
  ASSERT_TRUE(move.has_value());
  EXPECT_EQ(move->place, 1u);
  EXPECT_EQ(move->to, "c");
  EXPECT_TRUE(move->has_copy);
}

TEST(NextMove, WhereNoneServesTwoMoreThanAnotherNothingMoves) {
  EXPECT_FALSE(NextMove({}, {Host("a")}).has_value());
  EXPECT_FALSE(NextMove({{.place = 0, .host = "a", .holder = "b"},
                         {.place = 1, .host = "b", .holder = "c"}},
                        {Host("a"), Host("b"), Host("c")})
                   .has_value());
  EXPECT_FALSE(NextMove({{.place = 0, .host = "a", .holder = "b"},
                         {.place = 1, .host = "a", .holder = "b"},
                         {.place = 2, .host = "b", .holder = "a"}},
                        {Host("a"), Host("b")})
                   .has_value());
}

// A server that may not be given shares may still give some away.
TEST(NextMove, FromAServerThatMayBeGivenNone) {
  const auto move = NextMove({{.place = 4, .host = "a", .holder = "b"},
                              {.place = 5, .host = "a", .holder = "b"}},
                             {Host("b")});
  ASSERT_TRUE(move.has_value());
  EXPECT_EQ(move->place, 4u);
}

TEST(NextMove, ACopyIsMadeWhereTheServerStaysAndHasRoom) {
  const std::vector<Share> shares = {
      {.place = 0, .host = "a", .holder = "b", .bytes = 100},
      {.place = 1, .host = "a", .holder = "b", .bytes = 40},
      {.place = 2, .host = "b", .holder = "a", .bytes = 100}};
  ShareHost newcomer = {
      .name = "c", .memory = {.budget_bytes = 50, .placed_bytes = 10}, .is_steady = true};
  const auto move = NextMove(shares, {Host("a"), Host("b"), newcomer});
  ASSERT_TRUE(move.has_value());
  EXPECT_EQ(move->place, 1u) << "the other one is too large";
  EXPECT_FALSE(move->has_copy);
  newcomer.memory.placed_bytes = 11;
  EXPECT_FALSE(NextMove(shares, {Host("a"), Host("b"), newcomer}).has_value());
  newcomer = {.name = "c", .is_steady = false};
  EXPECT_FALSE(NextMove(shares, {Host("a"), Host("b"), newcomer}).has_value());
}

TEST(NextMove, AShareMovesToNoServerThatItIsBarredFrom) {
  const std::vector<Share> shares = {
      {.place = 0, .host = "a", .holder = "c", .barred = {"c"}},
      {.place = 1, .host = "a", .holder = "b", .barred = {"c"}}};
  EXPECT_FALSE(NextMove(shares, {Host("a"), Host("c")}).has_value())
      << "neither where its backup is, nor for a copy";
  const auto move = NextMove(shares, {Host("a"), Host("c"), Host("d")});
  ASSERT_TRUE(move.has_value());
  EXPECT_EQ(move->to, "d");
}

// The memory of the backup is in use already.
TEST(NextMove, AServerWithoutRoomForMoreServesWhatItHoldsTheBackupOf) {
  const ShareHost full = {.name = "b",
                          .memory = {.budget_bytes = 200, .placed_bytes = 200},
                          .is_steady = false};
  const auto move = NextMove({{.place = 0, .host = "a", .holder = "b", .bytes = 100},
                              {.place = 1, .host = "a", .holder = "b", .bytes = 100}},
                             {Host("a"), full});
  ASSERT_TRUE(move.has_value());
  EXPECT_TRUE(move->has_copy);
}

TEST(NextMove, OfServersThatHaveNoneTheEmptierIsTaken) {
  ShareHost crowded = {.name = "c", .memory = {.placed_bytes = 1000}};
  const auto move = NextMove({{.place = 0, .host = "a", .holder = "b"},
                              {.place = 1, .host = "a", .holder = "b"},
                              {.place = 2, .host = "b", .holder = "a"}},
                             {crowded, Host("d")});
  ASSERT_TRUE(move.has_value());
  EXPECT_EQ(move->to, "d");
}

TEST(NextMove, MovesComeToAnEndAndLeaveAboutAsManyEverywhere) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    std::vector<ShareHost> hosts;
    for (uint32_t i = 0; i < 2 + random() % 6; ++i)
      hosts.push_back(Host(absl::StrCat(i)));
    const auto any = [&] { return hosts[random() % hosts.size()].name; };
    std::vector<Share> shares;
    for (size_t place = 0; place < 1 + random() % 20; ++place) {
      shares.push_back({.place = place, .host = any(), .holder = any()});
    }
    size_t moves = 0;
    while (const auto move = NextMove(shares, hosts)) {
      ASSERT_LT(++moves, 20u);
      Share& share = shares[move->place];
      ASSERT_NE(share.host, move->to);
      ASSERT_EQ(move->has_copy, share.holder == move->to);
      share.host = move->to;
      share.holder = any();
    }
    std::map<std::string, int> served;
    for (const ShareHost& host : hosts) served[host.name] = 0;
    for (const Share& share : shares) ++served[share.host];
    const auto by_count = [](const auto& a, const auto& b) {
      return a.second < b.second;
    };
    const auto [least, most] = std::ranges::minmax_element(served, by_count);
    EXPECT_LE(most->second - least->second, 1);
  }
}

}  // namespace
}  // namespace syncline
