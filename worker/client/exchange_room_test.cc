// Tests of the room for messages under way to a shard, by traffic class.
#include "gtest/gtest.h"
#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

// The room of other classes is not for urgent blocks. Otherwise each urgent block would
// be followed by the next one, and a whole step would be under way at once.
TEST_F(ExchangeTest, TheRoomOfOthersIsNotForWhatIsUrgent) {
  ReachStepZero();
  exchange_->SetRoom(0, 1, 0);
  EXPECT_TRUE(See(exchange_->Push(0, gradient_, 1, now_)).sends.empty());
  exchange_->SetRoom(0, 0, 1);
  const Seen front = See(exchange_->Pump(now_));
  ASSERT_EQ(front.sends.size(), 1u);
  EXPECT_EQ(front.sends[0].traffic_class, TrafficClass::kUrgent);
}

}  // namespace
}  // namespace syncline
