// Tests the rounds of libsyncline.so, which need no session.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "worker/c/syncline.h"

namespace {

using ::testing::HasSubstr;

void ExpectRefused(syncline_code code, const char* message) {
  EXPECT_EQ(code, SYNCLINE_INVALID_ARGUMENT);
  EXPECT_THAT(syncline_last_error(), HasSubstr(message));
}

TEST(CRounds, FollowTheSpeedsThatAreRead) {
  syncline_rounds* rounds = nullptr;
  ASSERT_EQ(syncline_rounds_new("adaptive:most=100,least=10", &rounds), SYNCLINE_OK);
  EXPECT_EQ(syncline_rounds_most(rounds), 100u);
  EXPECT_EQ(syncline_rounds_least(rounds), 10u);
  EXPECT_EQ(syncline_rounds_steps(rounds), 25u);
  ASSERT_EQ(syncline_rounds_note(rounds, 25, 50), SYNCLINE_OK);
  std::vector<float> values(SYNCLINE_ROUNDS_ELEMENTS);
  ASSERT_EQ(syncline_rounds_write(rounds, 7, values.data(), values.size()), SYNCLINE_OK);
  EXPECT_EQ(values[7], 2.0f);
  // Rank 0 takes one second per step. Both have the same weight.
  for (float& value : values) value /= 2;
  values[0] = values[SYNCLINE_ROUNDS_ELEMENTS / 2] = 0.5f;
  ASSERT_EQ(syncline_rounds_read(rounds, 7, values.data(), values.size()), SYNCLINE_OK);
  EXPECT_EQ(syncline_rounds_steps(rounds), 50u);
  ASSERT_EQ(syncline_rounds_note(rounds, 1, 30), SYNCLINE_OK);  // (2 + 30) / 2
  values[7] = 8;
  ASSERT_EQ(syncline_rounds_read(rounds, 7, values.data(), values.size()), SYNCLINE_OK);
  EXPECT_EQ(syncline_rounds_steps(rounds), 10u);
  syncline_rounds_free(rounds);
}

TEST(CRounds, RefuseWhatTheyCannotDo) {
  syncline_rounds* rounds = nullptr;
  ExpectRefused(syncline_rounds_new("adaptive:0", &rounds), "such as adaptive:100");
  ExpectRefused(syncline_rounds_new(nullptr, &rounds), "text is NULL");
  ExpectRefused(syncline_rounds_new("adaptive:8", nullptr), "out is NULL");
  ASSERT_EQ(syncline_rounds_new("adaptive:8", &rounds), SYNCLINE_OK);
  std::vector<float> values(SYNCLINE_ROUNDS_ELEMENTS);
  ExpectRefused(syncline_rounds_note(rounds, 0, 1), "0 steps in 1 s");
  ExpectRefused(syncline_rounds_write(rounds, 0, values.data(), 3),
                "3 values: the tensor of the rounds has 512");
  ExpectRefused(syncline_rounds_read(rounds, 0, nullptr, 512), "values is NULL");
  ExpectRefused(syncline_rounds_read(nullptr, 0, values.data(), 512), "rounds is NULL");
  EXPECT_EQ(syncline_rounds_steps(nullptr), 0u);
  EXPECT_EQ(syncline_rounds_most(nullptr), 0u);
  EXPECT_EQ(syncline_rounds_least(nullptr), 0u);
  syncline_rounds_free(nullptr);
  syncline_rounds_free(rounds);
}

}  // namespace
