#include "server/links/record_link.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/base/event_queue.h"
#include "comm/transport/inproc/inproc.h"
#include "comm/transport/recording_receiver.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/record_bytes.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

ShardRecord Step(uint64_t step, size_t payload_bytes) {
  StepRecord record;
  record.step = step;
  const Buffer payload = Buffer::CopyOf(std::vector<std::byte>(payload_bytes));
  record.payload = Slice::Of(payload);
  return {.epoch = 1, .what = std::move(record)};
}

ByteView BytesOf(const std::string& header) {
  return {reinterpret_cast<const std::byte*>(header.data()), header.size()};
}

// A sender, and the pieces that arrive from it.
class RecordLinkTest : public ::testing::Test {
 protected:
  void Connect() {
    auto endpoint = server_->Connect(backup_->address(), {});
    ASSERT_TRUE(endpoint.ok());
    sender_.Connect(*std::move(endpoint), NameOfRecords(3, {5, 2}, 99),
                    server_->address());
  }
  // Returns what arrived since the last call, without hellos.
  std::vector<RecordingReceiver::Message> Pieces() {
    events_.RunUntil(events_.now() + absl::Seconds(10));
    std::vector<RecordingReceiver::Message> pieces;
    for (RecordingReceiver::Message& message : arrived_.messages) {
      const MessageHeader header = *ParseHeader(BytesOf(message.header));
      EXPECT_TRUE(IsOfBackup(header));
      EXPECT_EQ(header.job, 3u);
      EXPECT_EQ(header.rank, kBackupRanks + 5);
      EXPECT_EQ(header.session_key, 99u);
      if (header.kind == static_cast<uint16_t>(MessageKind::kBackupHello)) continue;
      pieces.push_back(std::move(message));
    }
    arrived_.messages.clear();
    return pieces;
  }
  absl::StatusOr<std::optional<std::vector<std::byte>>> Take(
      const RecordingReceiver::Message& piece) {
    return receiver_.Take(*ParseHeader(BytesOf(piece.header)),
                          {piece.payload.data(), piece.payload.size()});
  }

  EventQueue events_;
  InprocNetwork network_{events_, {}};
  RecordingReceiver arrived_;
  std::unique_ptr<Transport> server_ = network_.CreateTransport(arrived_);
  std::unique_ptr<Transport> backup_ = network_.CreateTransport(arrived_);
  RecordSender sender_;
  RecordReceiver receiver_;
};

TEST_F(RecordLinkTest, WhatCameBeforeTheConnectionGoesOutInOrder) {
  sender_.Take(Step(0, 10));
  sender_.Take(Step(1, 10));
  Connect();
  sender_.Take(Step(2, 10));
  uint64_t step = 0;
  for (const auto& piece : Pieces()) {
    const auto record = Take(piece);
    ASSERT_TRUE(record.ok() && *record);
    const ShardRecord read = *ReadRecord(**record);
    EXPECT_EQ(std::get<StepRecord>(read.what).step, step++);
    EXPECT_EQ(receiver_.records(), step);
  }
  EXPECT_EQ(step, 3u);
}

TEST_F(RecordLinkTest, LongRecordsComeInPieces) {
  Connect();
  sender_.Take(Step(0, 2 * kRecordPieceBytes + 7));
  const auto pieces = Pieces();
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(*Take(pieces[0]), std::nullopt);
  EXPECT_EQ(*Take(pieces[1]), std::nullopt);
  const auto record = Take(pieces[2]);
  ASSERT_TRUE(record.ok() && *record);
  const ShardRecord read = *ReadRecord(**record);
  EXPECT_EQ(std::get<StepRecord>(read.what).payload.size, 2 * kRecordPieceBytes + 7);
}

TEST_F(RecordLinkTest, ARecordThatIsLeftOutIsNoticed) {
  Connect();
  for (uint64_t step = 0; step < 3; ++step) sender_.Take(Step(step, 10));
  const auto pieces = Pieces();
  ASSERT_TRUE(Take(pieces[0]).ok());
  const auto next = Take(pieces[2]);
  EXPECT_TRUE(absl::IsDataLoss(next.status()));
  EXPECT_THAT(std::string(next.status().message()),
              HasSubstr("piece 0 of record 3 came where piece 0 of record 2 was due"));
}

TEST_F(RecordLinkTest, APieceThatIsLeftOutIsNoticed) {
  Connect();
  sender_.Take(Step(0, 2 * kRecordPieceBytes));
  const auto pieces = Pieces();
  ASSERT_TRUE(Take(pieces[0]).ok());
  EXPECT_TRUE(absl::IsDataLoss(Take(pieces[2]).status()));
}

TEST_F(RecordLinkTest, DamageIsNoticed) {
  Connect();
  sender_.Take(Step(0, 100));
  auto pieces = Pieces();
  ASSERT_EQ(pieces.size(), 1u);
  pieces[0].payload.data()[50] ^= std::byte{4};
  const auto record = Take(pieces[0]);
  EXPECT_TRUE(absl::IsDataLoss(record.status()));
  EXPECT_THAT(std::string(record.status().message()), HasSubstr("record 1 came damaged"));
}

TEST_F(RecordLinkTest, KnowsWhatIsWithTheBackup) {
  Connect();
  for (uint64_t step = 4; step < 7; ++step) sender_.Take(Step(step, 10));
  EXPECT_EQ(sender_.progress().taken, 7u);
  EXPECT_EQ(sender_.progress().durable, 4u);
  EXPECT_EQ(sender_.Acknowledged(2), 2u);
  EXPECT_EQ(sender_.progress().durable, 6u);
  EXPECT_EQ(sender_.Acknowledged(3), 3u);
  EXPECT_EQ(sender_.progress().durable, 7u);
}

// An acknowledgement of more records than were sent must not release a publish.
TEST_F(RecordLinkTest, AcknowledgementsThatCannotBeAreIgnored) {
  Connect();
  sender_.Take(Step(0, 10));
  sender_.Take(Step(1, 10));
  EXPECT_EQ(sender_.Acknowledged(3), std::nullopt);
  EXPECT_EQ(sender_.Acknowledged(~uint64_t{0}), std::nullopt);
  EXPECT_EQ(sender_.Acknowledged(2), 2u);
  EXPECT_EQ(sender_.Acknowledged(1), std::nullopt);
}

TEST_F(RecordLinkTest, AShardHasASlotForItsBackupAndOneForTheNext) {
  RecordSenders senders;
  EXPECT_TRUE(senders.empty());
  EXPECT_FALSE(senders.progress());
  EXPECT_EQ(senders.Begin(), 0u);
  EXPECT_EQ(senders.Begin(), 1u);
  EXPECT_EQ(senders.Begin(), std::nullopt) << "a third backup";
  auto endpoint = server_->Connect(backup_->address(), {});
  ASSERT_TRUE(endpoint.ok());
  senders.at(1)->Connect(*std::move(endpoint), NameOfRecords(3, {5, 2}, 99),
                         server_->address());
  EXPECT_EQ(senders.Find(99), 1u);
  EXPECT_EQ(senders.Find(98), std::nullopt);
  senders.at(0)->Take(Step(4, 10));
  senders.at(1)->Take(Step(4, 10));
  events_.RunUntil(events_.now() + absl::Seconds(10));
  ASSERT_TRUE(senders.at(1)->Acknowledged(1));
  EXPECT_EQ(senders.progress()->durable, 5u) << "the one that is furthest";
  senders.End(1);
  EXPECT_EQ(senders.Find(99), std::nullopt);
  EXPECT_EQ(senders.progress()->durable, 4u);
  EXPECT_EQ(senders.Begin(), 1u) << "its slot is free again";
  senders.Clear();
  EXPECT_TRUE(senders.empty());
}

}  // namespace
}  // namespace syncline
