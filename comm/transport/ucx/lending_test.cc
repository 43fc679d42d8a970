// Loans between UCX transports: payloads that the receiver reads in the sender's memory.
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "comm/base/limits.h"
#include "comm/transport/recording_receiver.h"
#include "comm/transport/ucx/test_peer/peer_process.h"
#include "comm/transport/ucx/ucx.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

ByteView Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// Keeps borrowed payloads where they are.
class InPlaceReceiver : public RecordingReceiver {
 public:
  void OnBorrowed(ByteView header, Landed payload) override {
    headers.emplace_back(reinterpret_cast<const char*>(header.data()), header.size());
    borrowed.push_back(std::move(payload));
  }

  std::vector<std::string> headers;
  std::vector<Landed> borrowed;
};

class Lending : public ::testing::Test {
 protected:
  std::unique_ptr<Transport> Create(Receiver& receiver) {
    UcxOptions options;
    options.keepalive = absl::Hours(1);  // UCX must not be the one that notices
    options.arena = arena_;
    return *CreateUcxTransport(options, receiver);
  }

  std::unique_ptr<Endpoint> Connect(ConnectOptions options = {}) {
    return *lender_->Connect(borrower_->address(), std::move(options));
  }

  // Returns memory of the arena with random contents.
  Slice Random(size_t bytes, uint64_t seed) {
    std::shared_ptr<std::byte> memory = arena_->Allocate(bytes);
    EXPECT_NE(memory, nullptr);
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < bytes; ++i) memory.get()[i] = static_cast<std::byte>(random());
    return Slice{memory.get(), bytes, memory};
  }

  SendDone Into(std::vector<absl::Status>& outcomes) {
    return [&outcomes](const absl::Status& status) { outcomes.push_back(status); };
  }

  bool PumpUntil(const std::function<bool()>& done) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!done()) {
      if (absl::Now() > deadline) return false;
      if (lender_->Progress() + borrower_->Progress() == 0)
        lender_->Wait(absl::Milliseconds(1));
    }
    return true;
  }

  const std::shared_ptr<SharedArena> arena_ =
      SharedArena::Create({.segment_bytes = 16 * kMiB, .max_bytes = 16 * kMiB});
  RecordingReceiver sender_;
  InPlaceReceiver receiver_;
  std::unique_ptr<Transport> lender_ = Create(sender_), borrower_ = Create(receiver_);
  std::vector<absl::Status> outcomes_;
};

TEST_F(Lending, APayloadIsReadInPlaceAndTheSendIsDoneWhenItIsLetGo) {
  const auto endpoint = Connect();
  const Slice payload = Random(4 * kMiB, 1);
  endpoint->Send(Bytes("lent"), {payload}, Into(outcomes_));
  ASSERT_TRUE(PumpUntil([&] { return !receiver_.borrowed.empty(); }));
  EXPECT_EQ(receiver_.headers[0], "lent");
  ASSERT_EQ(receiver_.borrowed[0].body.size, payload.size);
  EXPECT_EQ(std::memcmp(receiver_.borrowed[0].body.data, payload.data, payload.size), 0);
  EXPECT_NE(receiver_.borrowed[0].body.data,
            payload.data);  // the same memory, attached twice
  EXPECT_EQ(receiver_.allocated_bytes, 0u);
  for (int i = 0; i < 100; ++i) lender_->Progress();
  EXPECT_TRUE(outcomes_.empty()) << "done while the peer reads";

  receiver_.borrowed.clear();
  ASSERT_TRUE(PumpUntil([&] { return !outcomes_.empty(); }));
  EXPECT_TRUE(outcomes_[0].ok()) << outcomes_[0];
}

TEST_F(Lending, PlainMemoryIsCopiedOnceAndThenLent) {
  const auto endpoint = Connect();
  Buffer payload = Buffer::Allocate(kMiB);
  std::memset(payload.data(), 5, kMiB);
  endpoint->Send(Bytes("plain"), {Slice::Of(payload)}, Into(outcomes_));
  EXPECT_TRUE(outcomes_.empty());
  std::memset(payload.data(), 6, kMiB);
  ASSERT_TRUE(
      PumpUntil([&] { return !receiver_.borrowed.empty() && !outcomes_.empty(); }));
  EXPECT_TRUE(outcomes_[0].ok())
      << "the memory may be used again before the peer has read";
  EXPECT_EQ(receiver_.borrowed[0].body.data[kMiB - 1], std::byte{5});
}

TEST_F(Lending, AFullArenaMakesUcxCopy) {
  const auto endpoint = Connect();
  const Buffer payload = Buffer::Allocate(3 * kMiB);
  for (int i = 0; i < 6; ++i) {
    endpoint->Send(Bytes(std::to_string(i)), {Slice::Of(payload)}, Into(outcomes_));
  }
  ASSERT_TRUE(PumpUntil([&] {
    return receiver_.borrowed.size() + receiver_.messages.size() == 6 &&
           outcomes_.size() == 6;
  }));
  EXPECT_GT(receiver_.borrowed.size(), 0u);
  EXPECT_GT(receiver_.messages.size(), 0u);
}

TEST_F(Lending, NeighbouringSlicesAreLentAsOneAndLittleThatPrecedesThemTravels) {
  const auto endpoint = Connect();
  const Slice whole = Random(kMiB, 2), other = Random(kMiB, 3);
  const Slice first{whole.data, 100, whole.owner};
  const Slice rest{whole.data + 100, kMiB - 100, whole.owner};
  endpoint->Send(Bytes("neighbours"), {first, rest}, nullptr);
  endpoint->Send(Bytes("a head"), {first, other}, nullptr);
  const Slice long_head{whole.data, 1025, whole.owner};
  endpoint->Send(Bytes("strangers"), {long_head, other}, nullptr);
  ASSERT_TRUE(PumpUntil([&] { return receiver_.borrowed.size() == 3; }));
  EXPECT_EQ(std::memcmp(receiver_.borrowed[0].body.data, whole.data, kMiB), 0);
  ASSERT_EQ(receiver_.borrowed[1].head.size, 100u);
  EXPECT_EQ(std::memcmp(receiver_.borrowed[1].head.data, whole.data, 100), 0);
  EXPECT_EQ(std::memcmp(receiver_.borrowed[1].body.data, other.data, kMiB), 0);
  EXPECT_EQ(receiver_.borrowed[2].head.size, 0u);
  EXPECT_EQ(std::memcmp(receiver_.borrowed[2].body.data, whole.data, 1025), 0);
  EXPECT_EQ(std::memcmp(receiver_.borrowed[2].body.data + 1025, other.data, kMiB), 0);
}

TEST_F(Lending, ATensorOfTheProgramIsReadInPlaceBehindItsHead) {
  const auto endpoint = Connect();
  const std::string head(1024, 'h');
  const std::shared_ptr<std::byte> tensor = arena_->AllocateTensor(4 * kMiB);
  std::memset(tensor.get(), 5, 4 * kMiB);
  endpoint->Send(Bytes("tensor"),
                 {Slice::Borrowed(Bytes(head)), {tensor.get(), 4 * kMiB, tensor}},
                 Into(outcomes_));
  ASSERT_TRUE(PumpUntil([&] { return !receiver_.borrowed.empty(); }));
  const Landed& landed = receiver_.borrowed[0];
  ASSERT_EQ(landed.head.size, head.size());
  EXPECT_EQ(std::memcmp(landed.head.data, head.data(), head.size()), 0);
  ASSERT_EQ(landed.body.size, 4 * kMiB);
  tensor.get()[kMiB] = std::byte{6};  // the peer reads this memory, not a copy
  EXPECT_EQ(landed.body.data[kMiB], std::byte{6});
  EXPECT_TRUE(outcomes_.empty());
  receiver_.borrowed.clear();
  ASSERT_TRUE(PumpUntil([&] { return !outcomes_.empty(); }));
  EXPECT_TRUE(outcomes_[0].ok()) << outcomes_[0];
}

TEST_F(Lending, WhoDoesNotReadInPlaceGetsACopy) {
  RecordingReceiver copying;
  borrower_ = Create(copying);
  const auto endpoint = Connect();
  const Slice payload = Random(kMiB, 4);
  endpoint->Send(Bytes("copy"), {payload}, Into(outcomes_));
  endpoint->Send(Bytes("xrefused"), {payload}, Into(outcomes_));
  ASSERT_TRUE(PumpUntil([&] { return outcomes_.size() == 2; }));
  ASSERT_EQ(copying.messages.size(), 1u);
  EXPECT_EQ(std::memcmp(copying.messages[0].payload.data(), payload.data, kMiB), 0);
  EXPECT_EQ(copying.refused, 1);
  for (const absl::Status& status : outcomes_) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(Lending, LoansCopiesAndSmallMessagesKeepTheirOrder) {
  RecordingReceiver copying;
  borrower_ = Create(copying);
  const auto endpoint = Connect();
  const Slice lent = Random(kMiB, 5), small = Random(100, 6);
  const Buffer copied = Buffer::Allocate(kMiB);
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) {
    const Slice payloads[] = {lent, small, Slice::Of(copied)};
    endpoint->Send(Bytes(std::to_string(i)), {payloads[random() % 3]}, nullptr);
  }
  ASSERT_TRUE(PumpUntil([&] { return copying.messages.size() == 100; }));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(copying.messages[i].header, std::to_string(i));
}

TEST_F(Lending, ClosingTellsTheSenderAtOnceAndKeepsTheMemoryFromBeingUsedAgain) {
  auto endpoint = Connect();
  Slice payload = Random(8 * kMiB - 100, 7);
  const std::vector<std::byte> expected(payload.data, payload.data + kMiB);
  payload.size = kMiB;
  endpoint->Send(Bytes("lent"), {payload}, Into(outcomes_));
  payload.owner.reset();
  ASSERT_TRUE(PumpUntil([&] { return !receiver_.borrowed.empty(); }));
  endpoint.reset();
  ASSERT_TRUE(PumpUntil([&] { return !outcomes_.empty(); }));
  EXPECT_EQ(outcomes_[0].code(), absl::StatusCode::kCancelled) << outcomes_[0];

  EXPECT_EQ(arena_->Allocate(8 * kMiB - 100), nullptr) << "the peer still reads it";
  EXPECT_EQ(std::memcmp(receiver_.borrowed[0].body.data, expected.data(), kMiB), 0);
  receiver_.borrowed.clear();
  EXPECT_NE(arena_->Allocate(8 * kMiB - 100), nullptr);
}

TEST_F(Lending, SlicesMayOutliveTheTransports) {
  auto endpoint = Connect();
  const Slice payload = Random(kMiB, 8);
  endpoint->Send(Bytes("lent"), {payload}, Into(outcomes_));
  ASSERT_TRUE(PumpUntil([&] { return !receiver_.borrowed.empty(); }));
  endpoint.reset();
  lender_.reset();
  borrower_.reset();
  EXPECT_EQ(std::memcmp(receiver_.borrowed[0].body.data, payload.data, kMiB), 0);
  receiver_.borrowed.clear();
  EXPECT_EQ(outcomes_.size(), 1u);
}

TEST_F(Lending, TheEndOfAPeerIsNoticedAtOnceAndItsLoansComeBack) {
  PeerProcess peer;
  int failures = 0;
  const auto endpoint = *lender_->Connect(
      peer.address(), {.on_failure = [&](const absl::Status&) { ++failures; }});
  endpoint->Send(Bytes("hello"), {}, nullptr);
  kill(peer.process(), SIGSTOP);  // receives the loans but never returns them
  for (int i = 0; i < 3; ++i) {
    endpoint->Send(Bytes("lent"), {Random(5 * kMiB - 10000, i)}, Into(outcomes_));
  }
  EXPECT_EQ(arena_->Allocate(5 * kMiB - 10000), nullptr);
  PumpUntil(
      [start = absl::Now()] { return absl::Now() > start + absl::Milliseconds(20); });
  EXPECT_TRUE(outcomes_.empty());
  const absl::Time killed = absl::Now();
  peer.Kill();
  ASSERT_TRUE(PumpUntil([&] { return failures == 1 && outcomes_.size() == 3; }));
  EXPECT_LT(absl::Now() - killed, absl::Seconds(5));
  for (const absl::Status& status : outcomes_) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
  EXPECT_NE(arena_->Allocate(5 * kMiB - 10000), nullptr);
}

TEST_F(Lending, LoansWorkBetweenProcesses) {
  PeerProcess peer;
  peer.Tell("connect " + absl::BytesToHexString(lender_->address()));
  peer.Answer("connected");
  const auto endpoint = *lender_->Connect(peer.address(), {});
  const Slice payload = Random(kMaxMessagePayloadBytes, 9);
  for (int i = 0; i < 20; ++i) endpoint->Send(Bytes("echo"), {payload}, Into(outcomes_));
  ASSERT_TRUE(
      PumpUntil([&] { return sender_.messages.size() == 20 && outcomes_.size() == 20; }));
  for (const auto& echo : sender_.messages) {
    ASSERT_EQ(echo.payload.size(), payload.size);
    ASSERT_EQ(std::memcmp(echo.payload.data(), payload.data, payload.size), 0);
  }
}

}  // namespace
}  // namespace syncline
