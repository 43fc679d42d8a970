// How long a server must have been attached before it is given a copy.
#include "server/coordinator/newcomers.h"

#include <gtest/gtest.h>

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr absl::Duration kInstant = absl::Seconds(1);

class NewcomersTest : public ::testing::Test {
 protected:
  // The next life of that name, attached now.
  JobServer Life(const std::string& name = "a") {
    return {.server = ++lives_, .name = name, .shard_addresses = {}, .attached_at = now_};
  }
  // Whether the server becomes steady after that time, and not before.
  bool IsSteadyAfter(const JobServer& server, absl::Duration time) {
    now_ = server.attached_at + time - kInstant;
    if (newcomers_.IsSteady(server, now_)) return false;
    now_ += kInstant;
    return newcomers_.IsSteady(server, now_);
  }

  uint32_t lives_ = 0;
  absl::Duration now_ = absl::Seconds(1000);
  Newcomers newcomers_{kTimeout};
};

TEST_F(NewcomersTest, OneThatIsNewMustLastForAFailureTimeout) {
  EXPECT_TRUE(IsSteadyAfter(Life(), kTimeout));
  EXPECT_TRUE(IsSteadyAfter(Life(), kTimeout))
      << "it was given nothing, so it cost nothing";
}

TEST_F(NewcomersTest, EachLifeThatWasGivenACopyDoublesThePauseUpToALimit) {
  for (const int pause : {1, 2, 4, 8, 16, 32, 64, 64, 64}) {
    const JobServer life = Life();
    EXPECT_TRUE(IsSteadyAfter(life, pause * kTimeout)) << pause;
    newcomers_.Give(life, now_);
  }
}

TEST_F(NewcomersTest, TheSameLifeMayBeGivenMoreAtOnce) {
  const JobServer life = Life();
  for (int copies = 0; copies < 5; ++copies) newcomers_.Give(life, now_);
  EXPECT_TRUE(newcomers_.IsSteady(life, now_));
  EXPECT_FALSE(newcomers_.IsUnsteadyAgain(life, now_));
  EXPECT_TRUE(IsSteadyAfter(Life(), 2 * kTimeout)) << "it was one life";
}

TEST_F(NewcomersTest, OtherNamesDoNotPayForIt) {
  newcomers_.Give(Life("a"), now_);
  EXPECT_TRUE(IsSteadyAfter(Life("b"), kTimeout));
}

TEST_F(NewcomersTest, OnlyALaterLifeIsUnsteadyAgain) {
  EXPECT_FALSE(newcomers_.IsUnsteadyAgain(Life(), now_)) << "the first one";
  newcomers_.Give(Life(), now_);
  const JobServer later = Life();
  EXPECT_TRUE(newcomers_.IsUnsteadyAgain(later, now_));
  EXPECT_FALSE(newcomers_.IsUnsteadyAgain(later, now_ + 2 * kTimeout));
}

TEST_F(NewcomersTest, WhatIsLongAgoIsForgotten) {
  for (int lives = 0; lives < 3; ++lives) newcomers_.Give(Life(), now_);
  now_ += 256 * kTimeout;
  EXPECT_TRUE(newcomers_.IsUnsteadyAgain(Life(), now_));
  now_ += kInstant;
  EXPECT_FALSE(newcomers_.IsUnsteadyAgain(Life(), now_));
  newcomers_.Give(Life(), now_);
  EXPECT_TRUE(IsSteadyAfter(Life(), 2 * kTimeout)) << "the count began again";
}

}  // namespace
}  // namespace syncline
