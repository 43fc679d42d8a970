// Tests of a shard whose server was considered dead and replaced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <utility>

#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

// The acknowledgement was under way when the server died. The successor does not have the
// contribution.
TEST_F(ExchangeTest, TheAcknowledgementOfAServerThatWasReplacedIsNotItsSuccessors) {
  Make({});
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  exchange_->Replaced(0, 4);
  Answer(From(MessageKind::kAck, 0, 0));
  EXPECT_THAT(See(exchange_->Connected(0, now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kPush, 0u}));
}

// The server was only cut off, and answers late. By then the block has been sent to the
// successor, or is about to be.
TEST_F(ExchangeTest, NorIsOneThatComesOnceTheSuccessorIsThere) {
  for (const size_t room : {size_t{0}, size_t{1} << 20}) {
    SCOPED_TRACE(room);
    Make({});
    ReachStepZero();
    See(exchange_->Push(0, gradient_, 1, now_));
    exchange_->Replaced(0, 4);
    exchange_->SetRoom(0, room);
    See(exchange_->Connected(0, now_));
    Answer(From(MessageKind::kAck, 0, 0));
    Answer(From(MessageKind::kNoted, 0, 0));
    EXPECT_TRUE(Refuse(RefuseCode::kNotMember, 0, 0).failures.empty());
    exchange_->SetRoom(0, 1 << 20);
    EXPECT_THAT(Reconnect().Messages(), ElementsAre(std::pair{MessageKind::kPush, 0u}));
    Answer(From(MessageKind::kAck, 0, 0, 4));
    EXPECT_THAT(Reconnect().Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
  }
}

// The server had acknowledged the contribution before it was replaced.
TEST_F(ExchangeTest, WhatAServerHadAcknowledgedGoesToItsSuccessorOnce) {
  Make({});
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  Answer(From(MessageKind::kAck, 0, 0));
  exchange_->Replaced(0, 4);
  Answer(From(MessageKind::kAck, 0, 0));  // answers a repetition
  EXPECT_THAT(See(exchange_->Connected(0, now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kPush, 0u}));
}

}  // namespace
}  // namespace syncline
