// What may be on its way to a shard, by class.
#include "gtest/gtest.h"
#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

// Behind urgent blocks there is room for one of another class: were it for urgent ones, each
// would be followed by the next, and all of a step be on its way at once.
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
