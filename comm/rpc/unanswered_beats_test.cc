#include "comm/rpc/unanswered_beats.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr absl::Duration At(int seconds) { return absl::Seconds(seconds); }

TEST(UnansweredBeats, NobodyIsSilentBeforeBeingAsked) {
  UnansweredBeats beats;
  EXPECT_EQ(beats.Silence(At(100)), absl::ZeroDuration());
  EXPECT_EQ(beats.Sent(At(100)), 1);
  EXPECT_EQ(beats.Sent(At(101)), 2);
  EXPECT_EQ(beats.Silence(At(103)), At(3));
  beats.Answered(2);
  EXPECT_EQ(beats.Silence(At(200)), absl::ZeroDuration());
}

// The silence must count from the oldest unanswered heartbeat. If it counted from the
// last answer, a late answer would end the dialling, and the member would be dropped
// while TCP still waits to repeat its heartbeats.
TEST(UnansweredBeats, ALateAnswerToAnOldOneDoesNotBeginTheSilenceAnew) {
  UnansweredBeats beats;
  for (int second = 1; second <= 5; ++second) beats.Sent(At(second));
  beats.Answered(1);
  EXPECT_EQ(beats.Silence(At(6)), At(4));
  beats.Answered(1);
  beats.Answered(0);
  EXPECT_EQ(beats.Silence(At(6)), At(4));
}

TEST(UnansweredBeats, ANewStreamBeginsAnew) {
  UnansweredBeats beats;
  beats.Sent(At(1));
  beats.Sent(At(2));
  beats.Restart(At(9));
  EXPECT_EQ(beats.Silence(At(10)), At(1));
  beats.Answered(1);
  EXPECT_EQ(beats.Silence(At(10)), At(1));
}

TEST(UnansweredBeats, AnswersToWhatWasNeverAskedChangeNothing) {
  UnansweredBeats beats;
  beats.Answered(7);
  EXPECT_EQ(beats.Sent(At(1)), 1);
  EXPECT_EQ(beats.Silence(At(2)), At(1));
  beats.Answered(~uint64_t{0});
  EXPECT_EQ(beats.Silence(At(2)), absl::ZeroDuration());
}

}  // namespace
}  // namespace syncline
