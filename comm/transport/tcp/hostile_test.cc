// Unknown peers, impostors and attackers on the path: none of them is heard, and no other
// peer suffers.
#include <openssl/ssl.h>
#include <sys/resource.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/transport/tcp/frame.h"
#include "comm/transport/tcp/hostile_test_util.h"
#include "comm/transport/tcp/tcp_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ByteView Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string Noise(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::string noise(bytes, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  return noise;
}

// Returns the first message of a TLS client without our key.
std::string StrangersClientHello() {
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL* ssl = SSL_new(context);
  BIO* said = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl, BIO_new(BIO_s_mem()), said);
  SSL_connect(ssl);
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(said, &bytes);
  const std::string hello(bytes, static_cast<size_t>(size));
  SSL_free(ssl);
  SSL_CTX_free(context);
  return hello;
}

// A listener with a connected peer, which shows whether others suffer.
class HostileTest : public ::testing::TestWithParam<TcpSecurity> {
 protected:
  HostileTest() {
    friend_ = dialler_.Dial(
        Address(), {.on_failure = [this](const auto& status) { failure_ = status; }});
    EXPECT_TRUE(FriendIsHeard());
  }

  static TcpOptions Options() { return {.security = GetParam()}; }
  const std::string& Address() const { return server_.transport->address(); }

  void Pump() {
    server_.transport->Progress();
    dialler_.transport->Progress();
  }
  bool PumpUntil(const std::function<bool()>& done) {
    return RunUntil([this] { Pump(); }, done);
  }

  bool FriendIsHeard() {
    const auto& messages = server_.receiver.messages;
    const size_t before = messages.size();
    const std::string payload = Noise(50000, static_cast<uint32_t>(before));
    friend_->Send(Bytes("friend"), {Slice::Of(Buffer::CopyOf(Bytes(payload)))}, nullptr);
    return PumpUntil([&] { return messages.size() > before || !failure_.ok(); }) &&
           messages.size() == before + 1 &&
           std::ranges::equal(messages.back().payload.view(), Bytes(payload));
  }

  int Refused(Refusal refusal) { return server_.acceptor.refused[refusal]; }

  TcpNode server_{Options()}, dialler_{Options()};
  std::unique_ptr<Endpoint> friend_;
  absl::Status failure_;
};

INSTANTIATE_TEST_SUITE_P(Tcp, HostileTest,
                         ::testing::Values(TcpSecurity::kTls, TcpSecurity::kPlain),
                         [](const auto& info) { return TcpSecurityName(info.param); });

TEST_P(HostileTest, StrangersAreTurnedAwayAndNothingOfTheirsIsParsed) {
  std::vector<std::string> openings = {
      std::string(77, '\0'),  std::string(77, '\xff'),   "GET / HTTP/1.1\r\n\r\n",
      StrangersClientHello(), std::string(100000, '\0'), std::string(100000, '\x16')};
  for (uint32_t seed = 0; seed < 200; ++seed) {
    openings.push_back(Noise(9 + seed * 7 % 600, seed));
    std::string mutated = StrangersClientHello();
    mutated[seed * 7919 % mutated.size()] ^= static_cast<char>(1 << seed % 8);
    openings.push_back(mutated.substr(0, seed % 2 == 0 ? mutated.size() : 400));
  }
  for (const std::string& opening : openings) {
    RawPeer stranger(Address());
    // The server waits for the rest of a truncated ClientHello. The bytes that follow are
    // not valid.
    ASSERT_TRUE(PumpUntil([&] {
      stranger.Say(stranger.has_unsent() ? "" : opening);
      return stranger.IsClosed();
    }));
  }
  EXPECT_GE(Refused(Refusal::kHandshake) + Refused(Refusal::kIdentity),
            static_cast<int>(openings.size()) * 9 / 10);
  EXPECT_EQ(server_.acceptor.identities.size(), 1U);
  EXPECT_TRUE(FriendIsHeard());
}

TEST_P(HostileTest, AnUnknownNameIsRefused) {
  absl::Status failure;
  const auto endpoint = dialler_.Dial(
      Address(), {.on_failure = [&](const auto& status) { failure = status; },
                  .key = {"mallory", KeyOf(1)}});
  endpoint->Send(Bytes("in"), {}, nullptr);
  ASSERT_TRUE(
      PumpUntil([&] { return !failure.ok() && Refused(Refusal::kIdentity) == 1; }));
  EXPECT_EQ(server_.receiver.messages.size(), 1U);
  EXPECT_TRUE(FriendIsHeard());
}

TEST_P(HostileTest, WhoSpeaksTheOtherProtocolIsRefused) {
  TcpNode other({.security = GetParam() == TcpSecurity::kTls ? TcpSecurity::kPlain
                                                             : TcpSecurity::kTls});
  absl::Status failure;
  const auto endpoint = other.Dial(
      Address(), {.on_failure = [&](const auto& status) { failure = status; }});
  endpoint->Send(Bytes("in"), {}, nullptr);
  ASSERT_TRUE(RunUntil(
      [&] {
        Pump();
        other.transport->Progress();
      },
      [&] { return !failure.ok() && Refused(Refusal::kHandshake) == 1; }));
  EXPECT_EQ(server_.receiver.messages.size(), 1U);
  EXPECT_TRUE(FriendIsHeard());
}

TEST_P(HostileTest, ThousandIdleStrangersKeepNobodyOut) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const size_t count = std::min<size_t>(1000, limit.rlim_cur / 2);
  std::vector<std::unique_ptr<RawPeer>> strangers;
  for (size_t i = 0; i < count; ++i) {
    strangers.push_back(std::make_unique<RawPeer>(Address()));
    Pump();
  }
  // A new peer gets in while all of them wait.
  const auto late = dialler_.Dial(Address());
  ASSERT_TRUE(PumpUntil([&] { return server_.acceptor.identities.size() == 2; }));
  EXPECT_TRUE(FriendIsHeard());
  EXPECT_GE(Refused(Refusal::kCrowded), static_cast<int>(count) - 64);
}

TEST(TcpHostile, SlowHandshakesEndAfterAQuarterOfTheFailureTimeout) {
  FakeClock clock;
  TcpNode server({.failure_timeout = absl::Seconds(8), .clock = &clock});
  const std::string hello = StrangersClientHello();
  std::vector<std::unique_ptr<RawPeer>> strangers;
  for (int i = 0; i < 10; ++i) {
    strangers.push_back(std::make_unique<RawPeer>(server.transport->address()));
  }
  const auto pump = [&] { server.transport->Progress(); };
  for (size_t second = 0; second < 2; ++second) {
    for (const auto& stranger : strangers) stranger->Say(hello.substr(second, 1));
    for (int i = 0; i < 100; ++i) pump();
    for (const auto& stranger : strangers) EXPECT_FALSE(stranger->IsClosed());
    clock.Advance(absl::Seconds(1));
  }
  ASSERT_TRUE(RunUntil(pump, [&] {
    return std::ranges::all_of(strangers, [](const auto& s) { return s->IsClosed(); });
  }));
  EXPECT_EQ(server.acceptor.refused[Refusal::kTimeout], 10);
}

TEST(TcpHostile, ADiallerGivesUpOnAListenerThatSaysNothing) {
  FakeClock clock;
  const Listener silent = *ListenAt(*MakeSocketAddress("127.0.0.1", 0));
  TcpNode dialler({.failure_timeout = absl::Seconds(8), .clock = &clock});
  absl::Status failure;
  const auto endpoint =
      dialler.Dial(EncodeTcpAddress("127.0.0.1", silent.port),
                   {.on_failure = [&](const auto& status) { failure = status; }});
  for (int i = 0; i < 100; ++i) dialler.transport->Progress();
  EXPECT_TRUE(failure.ok());
  clock.Advance(absl::Seconds(2));
  dialler.transport->Progress();
  EXPECT_EQ(failure.code(), absl::StatusCode::kUnavailable) << failure;
}

TEST(Tcp, ListensAtTheFirstFreePortOfARange) {
  const uint16_t taken = ListenAt(*MakeSocketAddress("127.0.0.1", 0))->port;
  const TcpOptions options = {.first_port = taken,
                              .last_port = static_cast<uint16_t>(taken + 20)};
  TcpNode one(options), other(options);
  EXPECT_NE(one.transport->address(), other.transport->address());
  for (const TcpNode* node : {&one, &other}) {
    const uint16_t port = ParseTcpAddress(node->transport->address())->port();
    EXPECT_TRUE(port >= taken && port <= taken + 20) << port;
  }
}

TEST(Tcp, NamesThePortThatIsInUse) {
  const Listener taken = *ListenAt(*MakeSocketAddress("127.0.0.1", 0));
  RecordingReceiver receiver;
  RecordingAcceptor acceptor(receiver);
  const auto refused = CreateTcpTransport({.listen_host = "127.0.0.1",
                                           .first_port = taken.port,
                                           .last_port = taken.port,
                                           .acceptor = &acceptor},
                                          receiver);
  EXPECT_EQ(FailureOf(refused.status()), Failure::kPortInUse) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr(absl::StrCat("port ", taken.port)),
                    HasSubstr("--data-plane-ports")));
}

TEST(TcpHostile, AWrongKeyOpensNothingOnEitherSide) {
  TcpNode server({}), dialler({});
  server.acceptor.keys["alice"] = KeyOf(2);
  absl::Status failure;
  const auto endpoint =
      dialler.Dial(server.transport->address(),
                   {.on_failure = [&](const auto& status) { failure = status; }});
  endpoint->Send(Bytes("in"), {}, nullptr);
  ASSERT_TRUE(RunUntil(
      [&] {
        server.transport->Progress();
        dialler.transport->Progress();
      },
      [&] { return !failure.ok(); }));
  EXPECT_EQ(server.acceptor.refused[Refusal::kHandshake], 1);
  EXPECT_THAT(server.acceptor.identities, IsEmpty());
  EXPECT_THAT(server.receiver.messages, IsEmpty());
}

// An erased key consists of zeros.
TEST(TcpHostile, AKeyThatWasErasedOpensNothing) {
  TcpNode server({}), dialler({});
  server.acceptor.keys["alice"].Erase();
  absl::Status failure;
  const auto endpoint =
      dialler.Dial(server.transport->address(),
                   {.on_failure = [&](const auto& status) { failure = status; },
                    .key = {"alice", KeyOf(0)}});
  endpoint->Send(Bytes("in"), {}, nullptr);
  ASSERT_TRUE(RunUntil(
      [&] {
        server.transport->Progress();
        dialler.transport->Progress();
      },
      [&] { return !failure.ok() || !server.receiver.messages.empty(); }));
  EXPECT_THAT(server.acceptor.identities, IsEmpty());
  EXPECT_THAT(server.receiver.messages, IsEmpty());
}

TEST(TcpHostile, AKeyIsNeededToDial) {
  TcpNode node({});
  const auto endpoint = node.transport->Connect("tcp:127.0.0.1:1", {});
  EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kFailedPrecondition);
}

std::string StreamOf(std::initializer_list<FramePrefix> prefixes) {
  std::string bytes;
  for (const FramePrefix& prefix : prefixes) {
    bytes.append(reinterpret_cast<const char*>(&prefix), sizeof(prefix));
  }
  return bytes;
}

TEST(TcpHostile, WhatIsNoFrameEndsItsConnectionAndIsCounted) {
  constexpr FramePrefix kBegun = {.bytes = 100};
  for (
      const std::string& bytes :
      {StreamOf({{.header_bytes = kMessageHeaderBytes + 1}}),
       StreamOf({{.bytes = kMaxMessagePayloadBytes + 1, .header_bytes = 8}}),
       StreamOf({{.bytes = 0xffffffff}}), StreamOf({{.lane = kTrafficClasses}}),
       StreamOf({{.kind = static_cast<FrameKind>(2)}}),
       // Pieces without a message, of another lane's message, too long, empty, and with a
       // header; and a message that begins inside another.
       StreamOf({{.bytes = 1, .kind = FrameKind::kPiece}}),
       StreamOf({kBegun, {.bytes = 1, .lane = 1, .kind = FrameKind::kPiece}}),
       StreamOf({kBegun, {.bytes = 101, .kind = FrameKind::kPiece}}),
       StreamOf({kBegun, {.kind = FrameKind::kPiece}}),
       StreamOf({kBegun, {.bytes = 1, .header_bytes = 1, .kind = FrameKind::kPiece}}),
       StreamOf({kBegun, kBegun})}) {
    TcpNode server({.security = TcpSecurity::kPlain});
    RawPeer member(server.transport->address());
    member.Say(std::string("SLPLAIN2\5alice") + bytes + Noise(200, 1));
    ASSERT_TRUE(RunUntil(
        [&] {
          member.Say("");
          server.transport->Progress();
        },
        [&] { return member.IsClosed(); }));
    EXPECT_EQ(server.acceptor.refused[Refusal::kMalformed], 1);
    EXPECT_EQ(server.acceptor.ended.size(), 1U);
    EXPECT_LE(server.receiver.allocated_bytes, kBegun.bytes);
    EXPECT_THAT(server.receiver.messages, IsEmpty());
  }
}

TEST(TcpHostile, AMemberThatBeginsMessagesHoldsOneForEachLane) {
  TcpNode server({.security = TcpSecurity::kPlain});
  RawPeer member(server.transport->address());
  std::string bytes;
  for (uint8_t lane = 0; lane < kTrafficClasses; ++lane) {
    bytes += StreamOf({{.bytes = kMaxMessagePayloadBytes, .lane = lane}});
  }
  bytes += StreamOf({{.bytes = kMaxMessagePayloadBytes}});
  member.Say(std::string("SLPLAIN2\5alice") + bytes);
  ASSERT_TRUE(RunUntil(
      [&] {
        member.Say("");
        server.transport->Progress();
      },
      [&] { return member.IsClosed(); }));
  EXPECT_EQ(server.acceptor.refused[Refusal::kMalformed], 1);
  EXPECT_EQ(server.receiver.allocated_bytes, kTrafficClasses * kMaxMessagePayloadBytes);
}

TEST(TcpHostile, APlainGreetingMayComeByTheByte) {
  TcpNode server({.security = TcpSecurity::kPlain});
  RawPeer member(server.transport->address());
  for (const char byte : std::string("SLPLAIN2\5alice")) {
    member.Say({byte});
    ASSERT_TRUE(RunUntil(
        [&] {
          member.Say("");
          server.transport->Progress();
        },
        [&] { return !member.has_unsent(); }));
    server.transport->Progress();
  }
  EXPECT_TRUE(RunUntil([&] { server.transport->Progress(); },
                       [&] { return server.acceptor.identities.size() == 1; }));
  EXPECT_TRUE(server.acceptor.refused.empty());
}

// A relay changes something at a position that moves through the whole conversation. What
// arrives must be a prefix of what was sent.
class Tampering : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int kMessages = 20;

  // Changes `piece` if it contains byte `at` of the conversation.
  std::string Tamper(const std::string& piece, size_t at) {
    const size_t begin = std::exchange(passed_, passed_ + piece.size());
    if (at < begin || at >= passed_) return piece;
    const size_t here = at - begin;
    const std::string before = piece.substr(0, here), rest = piece.substr(here);
    std::string flipped = piece;
    flipped[here] ^= 4;
    if (GetParam() == "flip") return flipped;
    if (GetParam() == "cut") return before + rest.substr(1);
    if (GetParam() == "insert") return before + "x" + rest;
    if (GetParam() == "replay") return piece + piece.substr(0, here + 1);
    std::string swapped = piece;
    std::rotate(swapped.begin(), swapped.begin() + static_cast<ptrdiff_t>(here),
                swapped.end());
    return swapped;
  }

  size_t passed_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Tcp, Tampering,
                         ::testing::Values("flip", "cut", "insert", "replay", "swap"),
                         [](const auto& info) { return info.param; });

TEST_P(Tampering, IsNoticedAndNothingFalseIsDelivered) {
  const std::string payload = Noise(3000, 3);
  for (size_t at = 1; at < 40000; at += at < 600 ? 13 : 1999) {
    SCOPED_TRACE(at);
    passed_ = 0;
    FakeClock clock;
    const TcpOptions options = {.failure_timeout = absl::Seconds(1), .clock = &clock};
    TcpNode server(options), dialler(options);
    TamperingRelay relay(server.transport->address(),
                         [&](const std::string& piece) { return Tamper(piece, at); });
    absl::Status failure;
    const auto endpoint = dialler.Dial(
        relay.address(), {.on_failure = [&](const auto& status) { failure = status; }});
    for (int i = 0; i < kMessages; ++i) {
      endpoint->Send(Bytes(std::to_string(i)),
                     {Slice::Of(Buffer::CopyOf(Bytes(payload)))}, nullptr);
    }
    // The other side may wait for bytes that were cut; it notices when more bytes come.
    int more = 0;
    const auto pump = [&] {
      if (++more % 20 == 0 && failure.ok()) {
        endpoint->Send(Bytes("more"), {Slice::Borrowed(Bytes(payload))}, nullptr);
      }
      dialler.transport->Progress();
      relay.Pump();
      server.transport->Progress();
      // A handshake that waits for bytes that were cut ends by its deadline.
      clock.Advance(absl::Microseconds(500));
    };
    ASSERT_TRUE(RunUntil(pump, [&] { return !failure.ok(); }));
    const auto& messages = server.receiver.messages;
    for (size_t i = 0; i < messages.size() && i < kMessages; ++i) {
      ASSERT_EQ(messages[i].header, std::to_string(i));
      ASSERT_TRUE(std::ranges::equal(messages[i].payload.view(), Bytes(payload)));
    }
    // Replayed bytes come after the original ones.
    const size_t most = GetParam() == "replay" ? kMessages : kMessages - 1;
    EXPECT_LE(messages.size(), most);
  }
}

TEST(TcpHostile, AReplayedConversationOpensNothing) {
  TcpNode server({}), dialler({});
  std::string said;
  TamperingRelay relay(server.transport->address(), [&](const std::string& piece) {
    said += piece;
    return piece;
  });
  const auto endpoint = dialler.Dial(relay.address());
  endpoint->Send(Bytes("once"), {}, nullptr);
  const auto pump = [&] {
    dialler.transport->Progress();
    relay.Pump();
    server.transport->Progress();
  };
  ASSERT_TRUE(RunUntil(pump, [&] { return server.receiver.messages.size() == 1; }));
  RawPeer replay(server.transport->address());
  replay.Say(said);
  ASSERT_TRUE(RunUntil(pump, [&] {
    replay.Say("");
    return replay.IsClosed();
  }));
  EXPECT_EQ(server.acceptor.identities.size(), 1U);
  EXPECT_EQ(server.receiver.messages.size(), 1U);
}

TEST(TcpKeys, AreRenewedUnderLoadAndNoBitChanges) {
  FakeClock clock;
  TcpNode server({.clock = &clock});
  TcpNode dialler({.rekey_bytes = 1, .clock = &clock});
  const auto endpoint = dialler.Dial(server.transport->address());
  const auto& messages = server.receiver.messages;
  for (uint32_t i = 0; i < 30; ++i) {
    clock.Advance(absl::Milliseconds(1500));  // longer than any handshake
    const std::string payload = Noise(100000 + i, i);
    endpoint->Send(Bytes("renewed"), {Slice::Of(Buffer::CopyOf(Bytes(payload)))},
                   nullptr);
    ASSERT_TRUE(RunUntil(
        [&] {
          server.transport->Progress();
          dialler.transport->Progress();
          clock.Advance(absl::Milliseconds(1));
        },
        [&] { return messages.size() == i + 1 || !server.acceptor.ended.empty(); }));
    ASSERT_THAT(server.acceptor.ended, IsEmpty());
    ASSERT_TRUE(std::ranges::equal(messages.back().payload.view(), Bytes(payload)));
  }
}

TEST(TcpKeys, APeerThatRenewsTooOftenIsRefused) {
  FakeClock clock, fast_clock;
  TcpNode server({.clock = &clock});
  TcpNode dialler({.rekey_bytes = 1, .clock = &fast_clock});
  const auto endpoint = dialler.Dial(server.transport->address());
  ASSERT_TRUE(RunUntil(
      [&] {
        server.transport->Progress();
        dialler.transport->Progress();
        if (server.acceptor.identities.empty()) return;
        fast_clock.Advance(absl::Seconds(3));
        endpoint->Send(Bytes("renewed"), {}, nullptr);
      },
      [&] { return !server.acceptor.ended.empty(); }));
  EXPECT_EQ(server.acceptor.refused[Refusal::kMalformed], 1);
}

}  // namespace
}  // namespace syncline
