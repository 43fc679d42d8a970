#include "comm/transport/send_queue.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

constexpr size_t kPiece = 1000;

ByteView Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

void Push(SendQueue& queue, const Traffic& traffic, const std::string& name,
          size_t bytes) {
  queue.Push(traffic, {Bytes(name), {Slice::Of(Buffer::Allocate(bytes))}, nullptr}, {});
}

// Pops a piece and describes it: "name+100" for the first piece of a message, "class+100"
// for another one, with "." at the message's end.
std::string Next(SendQueue& queue, size_t piece_bytes = kPiece) {
  const SendQueue::Piece piece = queue.Pop(piece_bytes);
  const std::string header(reinterpret_cast<const char*>(piece.header().data()),
                           piece.header_size);
  return absl::StrCat(piece.begins ? header : TrafficClassName(piece.traffic_class), "+",
                      piece.payload_bytes, piece.ended ? "." : "");
}

std::vector<std::string> Drain(SendQueue& queue) {
  std::vector<std::string> pieces;
  while (!queue.empty()) pieces.push_back(Next(queue));
  return pieces;
}

TEST(SendQueue, WhatIsUrgentWaitsForTheEndOfAPieceOnly) {
  SendQueue queue;
  Push(queue, Traffic::OfBlock(TrafficClass::kOther, 7), "late", 2500);
  EXPECT_EQ(Next(queue), "late+1000");
  Push(queue, Traffic::OfBlock(TrafficClass::kUrgent, 1), "front", 1200);
  Push(queue, Traffic::OfBlock(TrafficClass::kControl, 9), "ack", 0);
  EXPECT_THAT(Drain(queue), ElementsAre("ack+0.", "front+1000", "urgent+200.",
                                        "other+1000", "other+500."));
}

TEST(SendQueue, MessagesOfAClassFollowEachOther) {
  SendQueue queue;
  for (const uint32_t block : {3u, 1u, 2u}) {
    Push(queue, Traffic::OfBlock(TrafficClass::kUrgent, block), absl::StrCat("b", block),
         1500);
  }
  EXPECT_THAT(Drain(queue), ElementsAre("b3+1000", "urgent+500.", "b1+1000",
                                        "urgent+500.", "b2+1000", "urgent+500."));
}

TEST(SendQueue, AFlowStaysInOrderWhateverItsClasses) {
  SendQueue queue;
  Push(queue, Traffic::OfBlock(TrafficClass::kOther, 4), "view", 1500);
  Push(queue, Traffic::OfBlock(TrafficClass::kControl, 4), "ack of it", 0);
  Push(queue, Traffic::OfBlock(TrafficClass::kControl, 5), "ack", 0);
  EXPECT_THAT(Drain(queue),
              ElementsAre("ack+0.", "view+1000", "other+500.", "ack of it+0."));
  // When no message of the flow waits, its class may change.
  Push(queue, Traffic::OfBlock(TrafficClass::kControl, 4), "ack", 0);
  Push(queue, Traffic::OfBlock(TrafficClass::kUrgent, 4), "view", 10);
  EXPECT_THAT(Drain(queue), ElementsAre("ack+0.", "view+10."));
}

TEST(SendQueue, NoClassStarves) {
  SendQueue queue;
  for (uint32_t block = 0; block < 1000; ++block) {
    Push(queue, Traffic::OfBlock(TrafficClass::kUrgent, block), "urgent", 4000);
    Push(queue, Traffic::OfBlock(TrafficClass::kOther, 1000 + block), "other", 4000);
    Push(queue, Traffic::OfBlock(TrafficClass::kBackground, 2000 + block), "background",
         4000);
  }
  std::map<TrafficClass, size_t> sent;
  size_t since_urgent = 0;
  for (int i = 0; i < 3000; ++i) {
    const SendQueue::Piece piece = queue.Pop(kPiece);
    sent[piece.traffic_class] += piece.payload_bytes;
    since_urgent = piece.traffic_class == TrafficClass::kUrgent ? 0 : since_urgent + 1;
    ASSERT_LE(since_urgent, 2u);
  }
  const auto urgent = static_cast<double>(sent[TrafficClass::kUrgent]);
  EXPECT_NEAR(static_cast<double>(sent[TrafficClass::kOther]) / urgent, 1.0 / 16, 0.01);
  EXPECT_NEAR(static_cast<double>(sent[TrafficClass::kBackground]) / urgent, 1.0 / 16,
              0.01);
}

TEST(SendQueue, WhatWaitedInVainIsNoCredit) {
  SendQueue queue;
  for (uint32_t block = 0; block < 100; ++block) {
    Push(queue, Traffic::OfBlock(TrafficClass::kUrgent, block), "urgent", 4000);
  }
  for (int i = 0; i < 300; ++i) Next(queue);
  Push(queue, Traffic::OfBlock(TrafficClass::kOther, 200), "other", 4000);
  for (int i = 0; i < 10; ++i) EXPECT_THAT(Next(queue), ::testing::StartsWith("urgent"));
}

TEST(SendQueue, PiecesAreTheMessageInOrder) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    SendQueue queue;
    std::string expected;
    Payload payload;
    for (size_t i = random() % 6; i > 0; --i) {
      const Buffer buffer = Buffer::Allocate(random() % 3 == 0 ? 0 : random() % 5000);
      for (std::byte& byte : buffer.mutable_view()) {
        byte = static_cast<std::byte>(random());
      }
      expected.append(reinterpret_cast<const char*>(buffer.data()), buffer.size());
      payload.push_back(Slice::Of(buffer));
    }
    int told = 0;
    queue.Push({}, {Bytes("m"), payload, [&](const auto&) { ++told; }}, {});
    payload.clear();
    EXPECT_EQ(queue.total_queued_bytes(), 1 + expected.size());
    std::string got;
    while (!queue.empty()) {
      const SendQueue::Piece piece = queue.Pop(1 + random() % 3000);
      EXPECT_EQ(piece.begins, got.empty());
      EXPECT_EQ(piece.message_payload_bytes, expected.size());
      for (const ByteView view : piece.payload) {
        got.append(reinterpret_cast<const char*>(view.data()), view.size());
      }
      EXPECT_EQ(piece.ended.has_value(), queue.empty());
    }
    EXPECT_TRUE(got == expected);
    EXPECT_EQ(queue.total_queued_bytes(), 0u);
    EXPECT_EQ(told, 0) << "by whoever sent the last piece";
  }
}

TEST(SendQueue, ClearTellsOfAllThatWaited) {
  SendQueue queue;
  for (uint32_t block = 0; block < 5; ++block) {
    Push(queue, Traffic::OfBlock(TrafficClass::kOther, block), "m", 3000);
  }
  Next(queue);
  std::vector<SendDone> pending;
  queue.Clear(pending);
  EXPECT_EQ(pending.size(), 5u);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.total_queued_bytes(), 0u);
  Push(queue, Traffic::OfBlock(TrafficClass::kUrgent, 1), "again", 1);
  EXPECT_EQ(Next(queue), "again+1.");
}

}  // namespace
}  // namespace syncline
