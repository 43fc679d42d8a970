#include "comm/transport/front.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(Front, IsWhatHasNoGapBeforeIt) {
  Front front;
  for (uint32_t block = 0; block < 4; ++block) front.Expect(block, 5);
  EXPECT_TRUE(front.IsNext(0, 5));
  EXPECT_FALSE(front.IsNext(3, 5)) << "backward is at the end, the forward begins with 0";
  front.Sent(3, 5);
  front.Sent(0, 5);
  EXPECT_TRUE(front.IsNext(1, 5));
  EXPECT_FALSE(front.IsNext(2, 5));
  front.Sent(1, 5);
  EXPECT_TRUE(front.IsNext(2, 5));
  EXPECT_FALSE(front.IsNext(3, 5));
  front.Sent(2, 5);
  EXPECT_TRUE(front.IsNext(3, 5)) << "sent again";
}

TEST(Front, IsOfItsStep) {
  Front front;
  for (uint32_t block = 0; block < 3; ++block) front.Expect(block, 0);
  front.Sent(0, 0);
  front.Sent(1, 0);
  EXPECT_TRUE(front.IsNext(2, 0)) << "that 0 and 1 are not there at step 1 is no gap";
  front.Sent(2, 0);
  EXPECT_FALSE(front.IsNext(1, 1));
  EXPECT_TRUE(front.IsNext(0, 1));
}

TEST(Front, DoesNotWaitForWhatStaysOrIsForgotten) {
  Front front;
  front.Expect(0, 0);  // never has a message
  front.Expect(1, 3);
  front.Expect(2, 3);
  EXPECT_TRUE(front.IsNext(1, 3));
  EXPECT_FALSE(front.IsNext(2, 3));
  front.Forget(1);
  EXPECT_TRUE(front.IsNext(2, 3));
  front.Forget(1);
}

}  // namespace
}  // namespace syncline
