// Tests of a worker's connection to one shard over a simulated network.
#include "worker/client/shard_links.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "comm/base/event_queue.h"
#include "comm/transport/inproc/inproc.h"
#include "comm/transport/recording_receiver.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kF = absl::Seconds(10);

class ShardLinksTest : public ExchangeTest {
 protected:
  ShardLinksTest() {
    Make({});
    exchange_->Disconnected(0);
    // Messages are handled as soon as they arrive.
    worker_receiver_.on_message = [this](const auto& message) {
      const auto header = *ParseHeader(std::as_bytes(std::span(message.header)));
      if (links_->TakeWelcome(header)) {
        Run(exchange_->Connected(header.shard, events_.now()));
        return;
      }
      links_->Heard(0);
      Run(exchange_->OnMessage(header, {}, events_.now()));
    };
    links_ =
        std::make_unique<ShardLinks>(ShardLinksOptions{.timeouts = Timeouts::Derive(kF),
                                                       .addresses = {shard_->address()},
                                                       .job = 5,
                                                       .rank = 1,
                                                       .incarnation = 2,
                                                       .session_key = 99},
                                     *worker_);
    EXPECT_TRUE(links_->Connect(events_.now()).ok());
    Run(exchange_->Start(events_.now()));
    Settle();
  }

  void Run(ExchangeOutputs outputs) {
    for (ExchangeOutput& output : outputs) {
      if (auto* encode = std::get_if<ExchangeEncode>(&output)) {
        encode->work->Run(workspace_);
        Run(exchange_->Encoded(*encode->work, events_.now()));
      }
      if (auto* send = std::get_if<ExchangeSend>(&output)) {
        links_->Send(
            std::move(*send), [](const absl::Status&) {}, events_.now());
      }
    }
  }
  void Settle() { events_.RunUntil(events_.now() + absl::Milliseconds(1)); }
  void RunFor(absl::Duration time) {
    for (const absl::Duration end = events_.now() + time; events_.now() < end;) {
      events_.RunUntil(events_.now() + absl::Milliseconds(10));
      links_->OfferRoom(*exchange_, events_.now());
      Run(links_->Tick(*exchange_, events_.now()));
    }
  }

  // Returns the kinds of the messages that the shard received since the last call.
  std::vector<MessageKind> Arrived() {
    std::vector<MessageKind> kinds;
    for (const auto& message : shard_receiver_.messages) {
      last_ = *ParseHeader(std::as_bytes(std::span(message.header)));
      kinds.push_back(static_cast<MessageKind>(last_.kind));
      if (kinds.back() == MessageKind::kHello) {
        const auto bytes = message.payload.view();
        back_ = *shard_->Connect(
            std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), {});
      }
    }
    shard_receiver_.messages.clear();
    return kinds;
  }
  // Answers the last message that Arrived returned.
  void Answer(MessageKind kind) {
    MessageHeader header = last_;
    header.kind = static_cast<uint16_t>(kind);
    back_->Send(SealHeader(header), {}, nullptr);
    Settle();
  }

  EventQueue events_;
  InprocNetwork network_{events_, {}};
  RecordingReceiver worker_receiver_, shard_receiver_;
  std::unique_ptr<Transport> worker_ = network_.CreateTransport(worker_receiver_);
  std::unique_ptr<Transport> shard_ = network_.CreateTransport(shard_receiver_);
  std::unique_ptr<ShardLinks> links_;
  std::unique_ptr<Endpoint> back_;
  MessageHeader last_;
};

TEST_F(ShardLinksTest, AsksOnlyOnceItIsWelcome) {
  EXPECT_THAT(Arrived(), ElementsAre(MessageKind::kHello));
  Answer(MessageKind::kWelcome);
  EXPECT_THAT(Arrived(), ElementsAre(MessageKind::kPull, MessageKind::kPull));
}

TEST_F(ShardLinksTest, ABrokenConnectionIsMadeAnew) {
  Arrived();
  Answer(MessageKind::kWelcome);
  Arrived();
  network_.Break(worker_->address(), shard_->address());
  RunFor(kF / 5);
  EXPECT_THAT(Arrived(), ElementsAre(MessageKind::kHello));
  EXPECT_EQ(last_.step, 2u);
  Answer(MessageKind::kWelcome);
  EXPECT_THAT(Arrived(), ElementsAre(MessageKind::kPull, MessageKind::kPull));
}

TEST_F(ShardLinksTest, AWelcomeOfAnEarlierConnectionSaysNothing) {
  Arrived();
  const MessageHeader first = last_;
  network_.Break(worker_->address(), shard_->address());
  RunFor(kF / 5);
  EXPECT_THAT(Arrived(), ElementsAre(MessageKind::kHello));
  last_ = first;
  Answer(MessageKind::kWelcome);
  EXPECT_THAT(Arrived(), IsEmpty());
}

TEST_F(ShardLinksTest, AWelcomeOfAConnectionThatWasGivenUpSaysNothing) {
  Arrived();
  network_.Break(worker_->address(), shard_->address());
  RunFor(absl::Milliseconds(50));  // given up, and not yet connected again
  Answer(MessageKind::kWelcome);
  RunFor(absl::Milliseconds(50));
  EXPECT_THAT(Arrived(), IsEmpty());
}

TEST_F(ShardLinksTest, AShardThatOwesAnAnswerAndIsSilentIsDialledAnew) {
  Arrived();
  Answer(MessageKind::kWelcome);
  EXPECT_THAT(Arrived(), ElementsAre(MessageKind::kPull, MessageKind::kPull));
  RunFor(0.45 * kF);
  EXPECT_THAT(Arrived(), IsEmpty());
  RunFor(0.2 * kF);
  EXPECT_THAT(Arrived(), ElementsAre(MessageKind::kHello));
}

TEST_F(ShardLinksTest, BytesThatMoveAreNoSilence) {
  Arrived();
  Answer(MessageKind::kWelcome);
  Arrived();
  // The view takes a minute to arrive.
  network_.SetRate(shard_->address(), worker_->address(), 1000);
  const Buffer view = Buffer::Allocate(60'000);
  MessageHeader header = From(MessageKind::kPublish, 0, 0);
  back_->Send(SealHeader(header), {Slice::Of(view)}, nullptr);
  RunFor(absl::Seconds(59));
  EXPECT_THAT(Arrived(), IsEmpty());
}

TEST_F(ShardLinksTest, AShardThatWaitsForOthersIsAskedAndThenGivenUp) {
  Arrived();
  Answer(MessageKind::kWelcome);
  Arrived();
  for (const uint32_t block : {0u, 1u}) {
    last_ = From(MessageKind::kPull, block, 0);
    Answer(MessageKind::kNoted);
  }
  for (int i = 0; i < 3; ++i) {
    RunFor(0.6 * kF);
    EXPECT_THAT(Arrived(), ElementsAre(MessageKind::kPull));
    Answer(MessageKind::kNoted);
  }
  RunFor(0.6 * kF);
  EXPECT_THAT(Arrived(), ElementsAre(MessageKind::kPull));
  RunFor(0.7 * kF);
  EXPECT_THAT(Arrived(), ElementsAre(MessageKind::kHello))
      << "it hears, and cannot answer";
}

TEST_F(ShardLinksTest, SaysHowFullItsWindowIs) {
  Arrived();
  Answer(MessageKind::kWelcome);
  Arrived();
  Publish(0, 0, 1.0f);
  Publish(1, 0, 1.0f);
  RunFor(absl::Seconds(1));
  EXPECT_EQ(links_->window_fill(), 0);
  network_.SetRate(worker_->address(), shard_->address(), 1000);
  Run(exchange_->Push(0, gradient_, 1, events_.now()));
  links_->OfferRoom(*exchange_, events_.now());
  EXPECT_GT(links_->window_fill(), 0);
  EXPECT_LT(links_->window_fill(), 1);
  RunFor(absl::Seconds(3));
  EXPECT_EQ(links_->window_fill(), 0);
}

TEST_F(ShardLinksTest, AnIdleConnectionIsLeftAlone) {
  Arrived();
  Answer(MessageKind::kWelcome);
  Arrived();
  Publish(0, 0, 1.0f);
  Publish(1, 0, 1.0f);
  RunFor(3 * kF);
  // An answer cannot be late yet.
  Run(exchange_->Push(0, gradient_, 1, events_.now()));
  RunFor(0.4 * kF);
  EXPECT_THAT(Arrived(), ElementsAre(MessageKind::kPush));
  RunFor(0.3 * kF);
  EXPECT_THAT(Arrived(), ElementsAre(MessageKind::kHello));
}

TEST_F(ShardLinksTest, WhatPassedWhileTheProcessStoodStillDoesNotCount) {
  Arrived();
  Answer(MessageKind::kWelcome);
  Arrived();
  events_.RunUntil(events_.now() + 100 * kF);
  Run(links_->Tick(*exchange_, events_.now()));
  RunFor(kF / 4);
  EXPECT_THAT(Arrived(), IsEmpty());
}

}  // namespace
}  // namespace syncline
