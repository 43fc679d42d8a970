// Tests of engines whose workers connect over TCP.
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/transport/network/address.h"
#include "comm/transport/tcp/frame.h"
#include "comm/transport/tcp/hostile_test_util.h"
#include "comm/transport/tcp/member_key.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/engine_test_util.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The parameter is the mode of the data plane.
class TcpEngineTest : public EngineTest,
                      public ::testing::WithParamInterface<DataPlaneMode> {
 protected:
  TcpEngineTest() { Restart({.mode = GetParam(), .listen_host = "127.0.0.1"}); }

  static SecretKey KeyOf(uint32_t rank) {
    std::array<std::byte, SecretKey::kBytes> bytes;
    bytes.fill(static_cast<std::byte>(rank + 1));
    return *SecretKey::From(bytes);
  }

  void Admit(const std::vector<uint32_t>& ranks) {
    std::vector<EngineMember> members;
    for (const uint32_t rank : ranks) members.push_back({rank, 10 + rank, KeyOf(rank)});
    engine_->Admit(kJob, members);
  }
};

INSTANTIATE_TEST_SUITE_P(Tcp, TcpEngineTest,
                         ::testing::Values(DataPlaneMode::kTls, DataPlaneMode::kPlain),
                         [](const auto& info) {
                           return info.param == DataPlaneMode::kTls ? "tls" : "plain";
                         });

TEST_P(TcpEngineTest, CarriesAStepOnTheConnectionsThatWorkersOpened) {
  Admit({0, 1});
  Commit(1, {0, 1});
  FakeWorker first(0, engine_->address(), KeyOf(0));
  FakeWorker second(1, engine_->address(), KeyOf(1));
  first.SayHello();
  second.SayHello();
  first.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(first.Next(), "ack s0");
  first.SendBlock(MessageKind::kPush, 1, 0, 1.0f);
  EXPECT_EQ(first.Next(), "ack s0");
  second.SendBlock(MessageKind::kPush, 1, 0, 3.0f);
  EXPECT_EQ(second.Next(), "ack s0");
  EXPECT_EQ(second.Next(), "publish v1");
  EXPECT_EQ(first.Next(), "publish v1");
}

// The number of the repeated hello does not matter: only a new connection starts again.
TEST_P(TcpEngineTest, AHelloThatIsSaidAgainForgetsNothing) {
  Admit({0});
  Commit(1, {0});
  FakeWorker worker(0, engine_->address(), KeyOf(0));
  worker.SayHello();
  worker.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(worker.Next(), "ack s0");
  worker.Send(worker.Header(MessageKind::kPull, 1, 0), {});
  EXPECT_EQ(worker.Next(), "publish v0");
  worker.SayHello();
  worker.Send(worker.Header(MessageKind::kPull, 1, 0), {});
  EXPECT_EQ(worker.Next(), "noted v0");
}

// The parameter is the message that is sent. These connections are not encrypted, so that
// a test can easily speak the protocol itself.
class UnreadEngineTest : public TcpEngineTest {
 protected:
  // Sends the same message repeatedly and reads nothing, until the connection is closed.
  // Returns false if it is never closed.
  bool SendsUntilItIsClosed(MessageHeader header) {
    RawPeer peer(ParseNetworkAddress(engine_->address())->tcp);
    const std::string identity = EncodeIdentity({kJob, 0, 10});
    const auto framed = [](MessageHeader message) {
      const FrameHead head(TrafficClass::kControl, SealHeader(message), 0, 0);
      return std::string(reinterpret_cast<const char*>(head.bytes.data()), head.size);
    };
    peer.Say(absl::StrCat("SLPLAIN2", std::string(1, static_cast<char>(identity.size())),
                          identity, framed(Hello())));
    std::string many;
    for (int i = 0; i < 1000; ++i) many += framed(header);
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      if (!peer.Say(peer.has_unsent() ? "" : many)) return true;
    }
    return false;
  }

  static MessageHeader Hello() { return Of(MessageKind::kHello); }
  static MessageHeader Of(MessageKind kind, uint64_t epoch = 1) {
    MessageHeader header;
    header.kind = static_cast<uint16_t>(kind);
    header.job = kJob;
    header.incarnation = 10;
    header.session_key = 1000;
    header.epoch = epoch;
    header.samples = 1;
    return header;
  }
};

INSTANTIATE_TEST_SUITE_P(Tcp, UnreadEngineTest, ::testing::Values(DataPlaneMode::kPlain));

TEST_P(UnreadEngineTest, AWorkerThatSendsAndDoesNotReadLosesItsConnection) {
  Restart({.mode = DataPlaneMode::kPlain, .listen_host = "127.0.0.1"}, 1 << 20);
  Admit({0, 1});
  Commit(1, {0, 1});
  FakeWorker other(1, engine_->address(), KeyOf(1));
  other.SayHello();
  other.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(other.Next(), "ack s0");
  int closed = 0;
  for (const MessageHeader& header :
       {Of(MessageKind::kPull), Of(MessageKind::kPull, 9), Of(MessageKind::kPush),
        Of(MessageKind::kSeed), Hello()}) {
    ASSERT_TRUE(SendsUntilItIsClosed(header)) << header.kind;
    AwaitExposition(absl::StrCat(
        "syncline_auth_refused_total{door=\"data\",reason=\"unread\"} ", ++closed));
  }
  other.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(other.Next(), "ack s0") << "nobody else suffers";
}

TEST_P(TcpEngineTest, WhoSpeaksInTheNameOfAnotherLosesItsConnection) {
  Admit({0, 1});
  Commit(1, {0, 1});
  FakeWorker worker(0, engine_->address(), KeyOf(0));
  worker.SayHello();
  MessageHeader header = worker.Header(MessageKind::kPull, 1, 0);
  header.rank = 1;  // also a member
  header.incarnation = 11;
  header.session_key = 1001;
  worker.Send(header, {});
  worker.AwaitLoss();
  EXPECT_THAT(
      Exposition(),
      HasSubstr("syncline_auth_refused_total{door=\"data\",reason=\"identity\"} 1"));
  EXPECT_THAT(audited_.Take().value_or(""),
              AllOf(HasSubstr("refused what=\"a data connection\""),
                    HasSubstr("a worker sent a message in the name of rank 1 of job 4"),
                    HasSubstr("rank 0 of job 4, incarnation 10")));
}

TEST_P(TcpEngineTest, StrangersAndThoseWhoWereDroppedAreNotLetIn) {
  Admit({0, 1});
  Commit(1, {0, 1});
  FakeWorker stranger(2, engine_->address(), KeyOf(2));
  stranger.SendHello(0);
  stranger.AwaitLoss();
  EXPECT_THAT(audited_.Take().value_or(""),
              AllOf(HasSubstr("refused what=\"a data connection\""),
                    HasSubstr("kind=identity"), HasSubstr("peer=127.0.0.1:")));
  FakeWorker dropped(1, engine_->address(), KeyOf(1));
  dropped.SayHello();
  dropped.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(dropped.Next(), "ack s0");
  Admit({0});
  Commit(2, {0});
  dropped.AwaitLoss();
  FakeWorker again(1, engine_->address(), KeyOf(1));
  again.SendHello(0);
  again.AwaitLoss();
}

}  // namespace
}  // namespace syncline
