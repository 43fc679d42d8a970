#include "server/links/worker_link.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/event_queue.h"
#include "comm/transport/inproc/inproc.h"
#include "comm/transport/recording_receiver.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kViewBytes = size_t{2} << 20;
constexpr size_t kMaxUnread = kViewBytes + (size_t{256} << 10);

// A link at 10 Mbit/s; the worker's end records.
class WorkerLinkTest : public ::testing::Test {
 protected:
  void Pump() {
    link_.Pump(events_.now(), [this](const MessageHeader& question) {
      looked_at_.push_back(question.block);
      if (answers_) link_.Send(View(question.block, question.step));
    });
  }
  void RunFor(absl::Duration time) {
    for (const absl::Duration end = events_.now() + time; events_.now() < end;) {
      events_.RunUntil(events_.now() + absl::Milliseconds(10));
      Pump();
    }
  }

  static MessageHeader Header(MessageKind kind, uint32_t block, uint64_t step) {
    MessageHeader header;
    header.kind = static_cast<uint16_t>(kind);
    header.block = block;
    header.step = step;
    return header;
  }
  ShardReply View(uint32_t block, uint64_t version) const {
    return {.header = Header(MessageKind::kPublish, block, version),
            .payload = {Slice::Of(view_)}};
  }
  static ShardReply Ack(uint32_t block) {
    return {.header = Header(MessageKind::kAck, block, 0)};
  }
  static MessageHeader Question(uint32_t block, uint64_t version, uint16_t flags = 0) {
    MessageHeader header = Header(MessageKind::kPull, block, version);
    header.flags = flags;
    return header;
  }

  // Returns what arrived since the last call, such as "publish b1 v0".
  std::vector<std::string> Arrived() {
    std::vector<std::string> lines;
    for (const auto& message : receiver_.messages) {
      const auto header = *ParseHeader(std::as_bytes(std::span(message.header)));
      const auto kind = static_cast<MessageKind>(header.kind);
      const char* name = kind == MessageKind::kPublish   ? "publish"
                         : kind == MessageKind::kAverage ? "average"
                         : kind == MessageKind::kState   ? "state"
                         : kind == MessageKind::kAck     ? "ack"
                         : kind == MessageKind::kNoted   ? "noted"
                         : kind == MessageKind::kWelcome ? "welcome"
                                                         : "?";
      lines.push_back(absl::StrCat(name, " b", header.block, " v", header.step));
    }
    receiver_.messages.clear();
    return lines;
  }

  EventQueue events_;
  InprocNetwork network_{events_, {}};
  RecordingReceiver receiver_, nobody_;
  std::unique_ptr<Transport> worker_ = network_.CreateTransport(receiver_);
  std::unique_ptr<Transport> server_ = network_.CreateTransport(nobody_);
  const Buffer view_ = Buffer::Allocate(kViewBytes);
  bool answers_ = true;
  std::vector<uint32_t> looked_at_;
  int sent_ = 0;
  WorkerLink link_{{.endpoint = Connect(),
                    .number = 7,
                    .sent = [this] { ++sent_; },
                    .most_unread_bytes = kMaxUnread}};

 private:
  std::unique_ptr<Endpoint> Connect() {
    network_.SetRate(server_->address(), worker_->address(), 1.25e6);
    return *server_->Connect(worker_->address(), {});
  }
};

TEST_F(WorkerLinkTest, LittleIsOnItsWayAndFrontBlocksOvertake) {
  for (const uint32_t block : {5u, 3u, 9u}) EXPECT_TRUE(link_.Send(View(block, 1)));
  Pump();
  EXPECT_LT(link_.endpoint().send_state().waiting_bytes(), kViewBytes + 1000);
  EXPECT_GT(link_.window_fill(), 1) << "a view is larger than the window";
  link_.Send(View(1, 1));
  RunFor(absl::Seconds(8));
  EXPECT_THAT(Arrived(), ElementsAre("publish b3 v1", "publish b1 v1", "publish b5 v1",
                                     "publish b9 v1"));
  EXPECT_EQ(sent_, 4);
  EXPECT_FALSE(link_.is_waiting());
  EXPECT_EQ(link_.window_fill(), 0);
}

TEST_F(WorkerLinkTest, SmallAnswersWaitForNoView) {
  for (uint32_t block = 0; block < 10; ++block) link_.Send(View(block, 1));
  Pump();
  RunFor(absl::Milliseconds(500));
  EXPECT_TRUE(link_.Send(Ack(77)));
  RunFor(absl::Milliseconds(110));
  EXPECT_THAT(Arrived(), ElementsAre("ack b77 v0"));
}

TEST_F(WorkerLinkTest, WhatTheNextForwardWaitsForOvertakesWhatIsOnItsWay) {
  for (uint32_t block = 0; block < 4; ++block) {
    link_.Send(View(block, 1));
    RunFor(absl::Seconds(2));
  }
  Arrived();
  link_.Send(View(3, 2));
  RunFor(absl::Milliseconds(200));
  link_.Send(View(2, 2));  // waits for block 0
  link_.Send(View(0, 2));  // takes 1.7 s
  RunFor(absl::Milliseconds(2200));
  EXPECT_THAT(Arrived(), ElementsAre("publish b0 v2"));
  link_.Send(View(1, 2));
  RunFor(absl::Milliseconds(2000));
  EXPECT_THAT(Arrived(), ElementsAre("publish b1 v2"));
  RunFor(absl::Seconds(5));
  EXPECT_THAT(Arrived(), ElementsAre("publish b2 v2", "publish b3 v2"))
      << "block 2 is next now";
}

TEST_F(WorkerLinkTest, AveragesComeThoughViewsNeverEnd) {
  link_.Send(
      {.header = Header(MessageKind::kAverage, 0, 3), .payload = {Slice::Of(view_)}});
  bool has_come = false;
  uint64_t version = 1;
  for (; version < 60 && !has_come; ++version) {
    for (uint32_t block = 0; block < 2; ++block) link_.Send(View(block, version));
    RunFor(absl::Seconds(3));
    for (const std::string& line : Arrived()) has_come |= line == "average b0 v3";
  }
  EXPECT_TRUE(has_come);
  EXPECT_GT(version, 10u) << "a small share";
}

TEST_F(WorkerLinkTest, AVersionGoesOnceOverAConnectionHoweverOftenItIsAsked) {
  link_.Ask(Question(4, 2));
  Pump();
  for (int i = 0; i < 3; ++i) {
    link_.Ask(Question(4, 2));
    EXPECT_FALSE(link_.Send(View(4, 2)));
  }
  RunFor(absl::Seconds(5));
  link_.Ask(Question(4, 1));
  RunFor(absl::Seconds(5));
  EXPECT_THAT(looked_at_, ElementsAre(4u));
  EXPECT_THAT(Arrived(), ElementsAre("publish b4 v2", "noted b4 v2", "noted b4 v2",
                                     "noted b4 v2", "noted b4 v1"));
  link_.Ask(Question(4, 3));
  RunFor(absl::Seconds(5));
  EXPECT_THAT(Arrived(), ElementsAre("publish b4 v3"));
}

TEST_F(WorkerLinkTest, AWorkerThatCouldNotUseAViewGetsItAnew) {
  link_.Ask(Question(4, 2));
  RunFor(absl::Seconds(5));
  link_.Ask(Question(4, 2, kFlagResend));
  RunFor(absl::Seconds(5));
  EXPECT_THAT(Arrived(), ElementsAre("publish b4 v2", "publish b4 v2"));
}

TEST_F(WorkerLinkTest, QuestionsAreLookedAtWhenThereIsRoom) {
  for (uint32_t block = 0; block < 10; ++block) link_.Ask(Question(block, 0));
  Pump();
  EXPECT_THAT(looked_at_, ElementsAre(0u)) << "nothing else is encoded yet";
  RunFor(absl::Seconds(20));
  EXPECT_EQ(looked_at_.size(), 10u);
  EXPECT_EQ(Arrived().size(), 10u);
}

TEST_F(WorkerLinkTest, AQuestionThatIsNoted) {
  answers_ = false;  // the version is still to come
  link_.Ask(Question(4, 2));
  Pump();
  EXPECT_THAT(looked_at_, ElementsAre(4u));
  EXPECT_TRUE(link_.Send(View(4, 2)));
  RunFor(absl::Seconds(2));
  EXPECT_THAT(Arrived(), ElementsAre("publish b4 v2"));
}

TEST_F(WorkerLinkTest, AViewThatAStepMadeTakesThePlaceOfTheQuestion) {
  link_.Send(View(0, 1));
  Pump();
  link_.Ask(Question(4, 2));
  link_.Send(View(4, 2));
  RunFor(absl::Seconds(10));
  EXPECT_THAT(looked_at_, IsEmpty());
  EXPECT_THAT(Arrived(), ElementsAre("publish b0 v1", "publish b4 v2"));
}

TEST_F(WorkerLinkTest, AveragesComeAfterViews) {
  link_.Send(
      {.header = Header(MessageKind::kAverage, 0, 3), .payload = {Slice::Of(view_)}});
  link_.Send(View(8, 3));
  RunFor(absl::Seconds(10));
  EXPECT_THAT(Arrived(), ElementsAre("publish b8 v3", "average b0 v3"));
}

TEST_F(WorkerLinkTest, AnArrayOfStateIsNoAnswerToTheQuestionForAnother) {
  const auto of_array = [&](MessageKind kind, uint32_t array) {
    MessageHeader header = Header(kind, 0, 3);
    header.samples = array;
    return header;
  };
  link_.Send(View(8, 3));
  Pump();
  link_.Send(View(7, 3));  // waits behind it, and the state behind both
  link_.Send({.header = of_array(MessageKind::kState, 0), .payload = {Slice::Of(view_)}});
  link_.Ask(of_array(MessageKind::kPullState, 0));
  link_.Ask(of_array(MessageKind::kPullState, 1));
  RunFor(absl::Seconds(10));
  EXPECT_THAT(Arrived(), ElementsAre("noted b0 v3", "publish b8 v3", "publish b0 v3",
                                     "publish b7 v3"));
  EXPECT_THAT(looked_at_, ElementsAre(0u)) << "for the second array";
}

TEST_F(WorkerLinkTest, AnArrayGoesOnceOverAConnectionUnlessItIsAskedForAgain) {
  const auto of_array = [](MessageKind kind, uint32_t array) {
    MessageHeader header = Header(kind, 2, 3);
    header.samples = array;
    return header;
  };
  const auto answer = [&](MessageKind kind, uint32_t array) {
    const bool was_sent =
        !link_.Send({.header = of_array(kind, array), .payload = {Slice::Of(view_)}});
    RunFor(absl::Seconds(5));
    return was_sent;
  };
  EXPECT_FALSE(answer(MessageKind::kAverage, 0));
  EXPECT_FALSE(answer(MessageKind::kState, 0));
  EXPECT_FALSE(answer(MessageKind::kState, 1)) << "another array";
  EXPECT_TRUE(answer(MessageKind::kAverage, 0));
  EXPECT_TRUE(answer(MessageKind::kState, 1));
  EXPECT_THAT(Arrived(), ElementsAre("average b2 v3", "state b2 v3", "state b2 v3"));
  answers_ = false;
  // Older workers have no flag for it.
  for (const uint16_t flags : {uint16_t{0}, kFlagResend}) {
    looked_at_.clear();
    MessageHeader again = of_array(MessageKind::kPullState, 1);
    again.flags = flags;
    link_.Ask(again);
    Pump();
    EXPECT_THAT(looked_at_, ElementsAre(2u));
    EXPECT_FALSE(answer(MessageKind::kState, 1));
    EXPECT_TRUE(answer(MessageKind::kState, 0)) << "it was the other array";
    EXPECT_TRUE(answer(MessageKind::kAverage, 0));
    EXPECT_THAT(Arrived(), ElementsAre("state b2 v3"));
  }
  link_.Ask(of_array(MessageKind::kPullAverage, 0));
  Pump();
  EXPECT_FALSE(answer(MessageKind::kAverage, 0));
  EXPECT_THAT(Arrived(), ElementsAre("average b2 v3"));
}

TEST_F(WorkerLinkTest, WhoLeavesAnswersUnreadIsClogged) {
  link_.Send(View(0, 1));
  Pump();
  EXPECT_FALSE(link_.IsClogged());
  for (size_t i = 0; i <= (kMaxUnread - kViewBytes) / kMessageHeaderBytes; ++i) {
    link_.Send(Ack(0));
  }
  EXPECT_TRUE(link_.IsClogged());
  RunFor(absl::Seconds(2));
  EXPECT_FALSE(link_.IsClogged());
}

TEST_F(WorkerLinkTest, WelcomesWithTheNumberOfTheHello) {
  link_.Welcome(Header(MessageKind::kHello, 0, 12));
  RunFor(absl::Milliseconds(10));
  EXPECT_THAT(Arrived(), ElementsAre("welcome b0 v12"));
}

TEST_F(WorkerLinkTest, SaysHowManyBytesCrossed) {
  EXPECT_EQ(link_.TakeCrossedBytes(), 0u);
  link_.Send(View(0, 1));
  RunFor(absl::Seconds(1));
  EXPECT_NEAR(static_cast<double>(link_.TakeCrossedBytes()), 1.25e6, 1e5);
  RunFor(absl::Seconds(2));
  EXPECT_LT(link_.TakeCrossedBytes(), kViewBytes);
  EXPECT_EQ(link_.TakeCrossedBytes(), 0u);
}

}  // namespace
}  // namespace syncline
