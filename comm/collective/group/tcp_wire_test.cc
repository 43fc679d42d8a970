// Tests what members on several hosts accept from each other, and from strangers.
#include "comm/collective/group/tcp_wire.h"

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/collective/group/members_test_util.h"
#include "comm/collective/group/tcp_lane.h"
#include "comm/collective/group/tcp_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::collective {
namespace {

using testing::HasSubstr;

Buffer Zeros(size_t bytes) {
  Buffer buffer = Buffer::Allocate(bytes);
  if (bytes > 0) std::memset(buffer.data(), 0, bytes);
  return buffer;
}

TEST(TcpLane, ASenderMayBeOneWindowAhead) {
  BufferPool pool(1 << 20);
  bool touched = false;
  TcpLane lane(pool, &touched);
  size_t committed = 0;
  while (!lane.Room().empty()) {
    const size_t bytes = lane.Room().size();
    lane.Commit(bytes);
    committed += bytes;
  }
  EXPECT_TRUE(touched);
  EXPECT_EQ(committed, kLaneWindow);
  EXPECT_EQ(PayloadBytes(lane.TakeUnsent()), kLaneWindow);
  EXPECT_TRUE(lane.TakeUnsent().empty());
  ASSERT_TRUE(lane.OnConsumed(128).ok());
  EXPECT_EQ(lane.Room().size(), 128);
  EXPECT_FALSE(lane.OnConsumed(64).ok());  // the total must not fall
  EXPECT_FALSE(lane.OnConsumed(kLaneWindow + 64).ok());
}

TEST(TcpLane, AReceiverTakesOneWindowAndSaysWhatItConsumed) {
  BufferPool pool(1 << 20);
  bool touched = false;
  TcpLane lane(pool, &touched);
  EXPECT_FALSE(lane.CheckArrival(0).ok());
  EXPECT_FALSE(lane.CheckArrival(kLaneAlignment + 1).ok());
  EXPECT_FALSE(lane.CheckArrival(kLaneWindow + kLaneAlignment).ok());
  ASSERT_TRUE(lane.CheckArrival(kLaneWindow).ok());
  lane.Land(Zeros(kLaneWindow / 2));
  lane.Land(Zeros(kLaneWindow / 2));
  EXPECT_FALSE(lane.CheckArrival(kLaneAlignment).ok());
  lane.Consume(kLaneAlignment);
  EXPECT_TRUE(lane.CheckArrival(kLaneAlignment).ok());
  EXPECT_FALSE(lane.TakeConsumed().has_value());  // too few bytes for a message
  EXPECT_FALSE(touched);
  lane.Consume(kLaneWindow / 2 - kLaneAlignment);
  EXPECT_TRUE(touched);
  EXPECT_EQ(lane.TakeConsumed(), kLaneWindow / 2);
  EXPECT_EQ(lane.Arrived().size(), kLaneWindow / 2);
}

// A store that gives rank 1 a different value.
class Liar final : public Store {
 public:
  explicit Liar(MemoryStore& store) : store_(store) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_.Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration timeout) override {
    auto value = store_.Get(key, timeout);
    if (value.ok() && key == "test/key") value->assign(value->size(), '0');
    return value;
  }

 private:
  MemoryStore& store_;
};

TEST(GroupBetweenHosts, AnotherKeyIsRefused) {
  const Members members = {.ranks = 2, .per_host = 1};
  MemoryStore store;
  Liar liar(store);
  absl::Status honest;
  std::thread other([&] {
    GroupOptions options = members.Options("test", 0, &store);
    options.start_timeout = absl::Seconds(10);
    honest = Group::Create(options).status();
  });
  const absl::Status status = Group::Create(members.Options("test", 1, &liar)).status();
  other.join();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status.message();
  EXPECT_EQ(FailedRank(status), 0);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 on 127.0.0.1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not have this group's key"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(honest)) << honest.message();
  EXPECT_EQ(FailedRank(honest), 1);
}

// A rank that is delayed after it has announced where it listens.
class Late final : public Store {
 public:
  explicit Late(MemoryStore& store) : store_(store) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_.Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration timeout) override {
    // Longer than a rank that has ended is dialled, and longer than a handshake may take.
    if (key == "test/key") std::this_thread::sleep_for(std::chrono::seconds(3));
    return store_.Get(key, timeout);
  }

 private:
  MemoryStore& store_;
};

TEST(GroupBetweenHosts, OneThatIsSlowToComeIsDialledAgain) {
  const Members members = {.ranks = 3, .per_host = 1};
  MemoryStore store;
  Late late(store);
  absl::Status statuses[3];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      GroupOptions options = members.Options("test", rank, &store);
      if (rank == 1) options.store = &late;
      options.failure_timeout = absl::Seconds(4);
      statuses[rank] = Group::Create(options).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(GroupBetweenHosts, SomebodyWhoCannotListenIsNamedByAll) {
  const Members members = {.ranks = 2, .per_host = 1};
  MemoryStore store;
  absl::Status statuses[2];
  std::thread other([&] {
    GroupOptions options = members.Options("test", 1, &store);
    options.address = "192.0.2.1";  // an address for documentation, used by no host
    statuses[1] = Group::Create(options).status();
  });
  statuses[0] = Group::Create(members.Options("test", 0, &store)).status();
  other.join();
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status.message();
    EXPECT_THAT(std::string(status.message()), HasSubstr("192.0.2.1"));
  }
  EXPECT_EQ(FailedRank(statuses[0]), 1);
}

// Uses the group's key, claims to be rank 1, and sends `message` with `bytes`.
void BeRankOne(MemoryStore& store, const TcpWireMessage& message, size_t bytes) {
  constexpr uint64_t kNonce = 7;
  ASSERT_TRUE(store.Set("test/1", "1/1/7@elsewhere").ok());
  ASSERT_TRUE(store.Set("test/tcp/1", "tcp:127.0.0.1:1@7").ok());
  const std::string card = store.Get("test/tcp/0", absl::Seconds(60)).value();
  const std::string key =
      absl::HexStringToBytes(store.Get("test/key", absl::Seconds(60)).value());
  uint64_t claim[3] = {1, kNonce, 0};
  ASSERT_TRUE(absl::SimpleAtoi(card.substr(card.find('@') + 1), &claim[2]));
  class Ears final : public Receiver {
   public:
    absl::StatusOr<Buffer> Allocate(ByteView, size_t size) override {
      return Buffer::Allocate(size);
    }
    void OnMessage(ByteView, Buffer) override {}
  } ears;
  auto transport = CreateTcpTransport({}, ears).value();
  std::string identity = "SLG1";
  identity.append(reinterpret_cast<const char*>(claim), sizeof claim);
  auto endpoint = transport->Connect(
      card.substr(0, card.find('@')),
      {.key = {identity, *SecretKey::From(std::as_bytes(std::span(key)))}});
  ASSERT_TRUE(endpoint.ok());
  const auto say = [&](const TcpWireMessage& what, size_t size) {
    (*endpoint)->Send({reinterpret_cast<const std::byte*>(&what), sizeof what},
                      {Slice::Of(Zeros(size))}, nullptr);
  };
  const SteadyClock clock;
  say({.kind = TcpWireMessage::kHello}, 0);
  say(message, bytes);
  while (!store.Get("done", absl::ZeroDuration()).ok() &&
         clock.Now() < absl::Seconds(60)) {
    transport->Progress();
    transport->Wait(absl::Milliseconds(1));
  }
}

// Rank 2 announced where it listens, but does not connect.
TEST(GroupBetweenHosts, WhatOneSaysEndsTheWaitForAnother) {
  const Members members = {.ranks = 3, .per_host = 1};
  for (const auto kind : {TcpWireMessage::kFailed, TcpWireMessage::kLeft}) {
    MemoryStore store;
    ASSERT_TRUE(store.Set("test/2", "1/1/8@third").ok());
    ASSERT_TRUE(store.Set("test/tcp/2", "tcp:127.0.0.1:1@8").ok());
    std::thread other(
        [&] { BeRankOne(store, {.kind = static_cast<uint8_t>(kind), .code = 10}, 0); });
    const absl::Status status =
        Group::Create(members.Options("test", 0, &store)).status();
    ASSERT_TRUE(store.Set("done", "").ok());
    other.join();
    EXPECT_TRUE(absl::IsAborted(status)) << status.message();
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  }
}

struct Nonsense {
  std::string name;
  TcpWireMessage message;
  size_t bytes;
};

class WhatIsNoMessage : public testing::TestWithParam<Nonsense> {};

TEST_P(WhatIsNoMessage, EndsTheGroupAndNamesItsSender) {
  const Members members = {.ranks = 2, .per_host = 1};
  MemoryStore store;
  std::thread other([&] { BeRankOne(store, GetParam().message, GetParam().bytes); });
  const absl::Status status = Group::Create(members.Options("test", 0, &store)).status();
  ASSERT_TRUE(store.Set("done", "").ok());
  other.join();
  EXPECT_TRUE(absl::IsAborted(status)) << status.message();
  EXPECT_EQ(FailedRank(status), 1);
  EXPECT_THAT(std::string(status.message()), HasSubstr("it sent"));
}

INSTANTIATE_TEST_SUITE_P(
    Group, WhatIsNoMessage,
    testing::Values(
        Nonsense{"TooMuch", {.kind = TcpWireMessage::kBytes}, kLaneWindow - 32},
        Nonsense{"UnknownLane", {.kind = TcpWireMessage::kBytes, .lane = 2}, 64},
        Nonsense{"UnknownKind", {.kind = 99}, 0},
        Nonsense{"AHeaderThatIsShort", {.kind = TcpWireMessage::kEntered}, 63},
        Nonsense{"ALongReport", {.kind = TcpWireMessage::kFailed}, kLongestReport + 1},
        Nonsense{"ABeatWithBytes", {.kind = TcpWireMessage::kBeat}, 8}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace syncline::collective
