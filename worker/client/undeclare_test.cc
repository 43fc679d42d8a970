// Tests of tensors whose weights the program has taken back.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class Released : public ExchangeTest {
 protected:
  Released() {
    ReachStepZero();
    See(exchange_->Push(0, gradient_, 7, now_));
    See(exchange_->SendDone(0));
    Publish(0, 1, 2.5f);
    exchange_->Release(0);
    first_.assign(4, -1.0f);  // as another owner of the memory would
  }
};

TEST_F(Released, TensorsAreSkippedAndTheirViewsDropped) {
  for (uint64_t step = 1; step < 4; ++step) {
    const Seen seen = See(exchange_->Skip(0, now_));
    ASSERT_THAT(seen.Messages(), ElementsAre(Pair(MessageKind::kPush, 0u)));
    EXPECT_EQ(seen.sends[0].header.samples, 0u);
    EXPECT_EQ(seen.sends[0].header.step, step);
    Answer(From(MessageKind::kAck, 0, step));
    EXPECT_THAT(Publish(0, step + 1, 3.5f).ready, ElementsAre(0u));
    EXPECT_EQ(exchange_->version_of(0), step + 1);
  }
  EXPECT_THAT(PublishUnchanged(0, 4).ready, IsEmpty()) << "nothing waits for it";
  EXPECT_THAT(first_, Each(-1.0f));
}

TEST_F(Released, TensorsAreNeitherSeededNorComparedAfterABreak) {
  See(exchange_->Skip(0, now_));
  Answer(From(MessageKind::kAck, 0, 1));
  const Seen again = Reconnect();
  ASSERT_THAT(again.Messages(), ElementsAre(Pair(MessageKind::kPull, 0u)));
  EXPECT_EQ(again.sends[0].header.flags & kFlagHeld, 0);
  EXPECT_THAT(See(exchange_->EpochChanged(4, SeedRole::kSeeder, now_)).Messages(),
              IsEmpty());
  EXPECT_THAT(Publish(0, 2, 3.5f).ready, ElementsAre(0u));
  EXPECT_THAT(first_, Each(-1.0f));
}

TEST_F(Released, TensorsLetTheOthersGoOn) {
  const std::vector<float> gradient = {1, 2};
  See(exchange_->Skip(0, now_));
  See(exchange_->Push(1, gradient, 7, now_));
  See(exchange_->SendDone(1));
  EXPECT_THAT(Publish(1, 1, 4.0f).ready, ElementsAre(1u));
  EXPECT_THAT(second_, Each(4.0f));
}

}  // namespace
}  // namespace syncline
