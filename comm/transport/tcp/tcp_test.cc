#include "comm/transport/tcp/tcp.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/tcp/socket.h"
#include "comm/transport/tcp/tcp_test_util.h"
#include "comm/transport/transport_contract.h"

namespace syncline {
namespace {

class TcpRig : public TransportRig {
 public:
  TcpRig(int transports, const TcpOptions& options) : options_(options) {
    for (int i = 0; i < transports; ++i) {
      nodes_.push_back(std::make_unique<TcpNode>(options));
    }
  }

  Transport& transport(int i) override { return *nodes_[i]->transport; }
  RecordingReceiver& receiver(int i) override { return nodes_[i]->receiver; }
  void Pump() override {
    for (const auto& node : nodes_) node->transport->Progress();
    if (victim_ != nullptr) victim_->transport->Progress();
  }
  PeerKey key() const override { return Alice(); }

  std::string StartVictim() override {
    victim_ = std::make_unique<TcpNode>(options_);
    return victim_->transport->address();
  }
  void KillVictim() override { victim_ = nullptr; }

 private:
  const TcpOptions options_;
  std::vector<std::unique_ptr<TcpNode>> nodes_;
  std::unique_ptr<TcpNode> victim_;
};

RigFactory Factory(const std::string& name, const TcpOptions& options) {
  return {name, [options](int transports) {
            return std::make_unique<TcpRig>(transports, options);
          }};
}

INSTANTIATE_TEST_SUITE_P(
    Tcp, TransportContract,
    ::testing::Values(Factory("tls", {}),
                      Factory("plain", {.security = TcpSecurity::kPlain}),
                      // Every write is cut off somewhere.
                      Factory("tls_by_little", {.gather_bytes = 1000}),
                      Factory("plain_by_little",
                              {.security = TcpSecurity::kPlain, .gather_bytes = 1000})),
    [](const auto& info) { return info.param.name; });

class TcpClasses : public ::testing::TestWithParam<TcpSecurity> {};

INSTANTIATE_TEST_SUITE_P(Tcp, TcpClasses,
                         ::testing::Values(TcpSecurity::kTls, TcpSecurity::kPlain),
                         [](const auto& info) { return TcpSecurityName(info.param); });

// The peer does not read at first, so the connection is full; then it reads.
TEST_P(TcpClasses, WhatIsUrgentOvertakesBlocksThatAreOnTheirWay) {
  TcpNode server({.security = GetParam()}), dialler({.security = GetParam()});
  const auto endpoint = dialler.Dial(server.transport->address());
  const auto pump_both = [&] {
    server.transport->Progress();
    dialler.transport->Progress();
  };
  ASSERT_TRUE(
      RunUntil(pump_both, [&] { return server.acceptor.identities.size() == 1; }));
  const auto send = [&](const std::string& name, const Traffic& traffic, size_t bytes) {
    endpoint->SendAs(traffic, std::as_bytes(std::span(name)),
                     {Slice::Of(Buffer::Allocate(bytes))}, nullptr);
  };
  constexpr size_t kBlock = size_t{4} << 20;
  for (uint32_t i = 0; i < 4; ++i) {
    send("late", Traffic::OfBlock(TrafficClass::kOther, i), kBlock);
  }
  for (int i = 0; i < 200; ++i) dialler.transport->Progress();
  const SendState full = endpoint->send_state();
  const size_t other = static_cast<size_t>(TrafficClass::kOther);
  EXPECT_GT(full.queued_bytes[other], 3 * kBlock);
  // The window is 1 MiB, because no rate is known yet; one piece may exceed it.
  EXPECT_LE(full.waiting_bytes() - full.queued_bytes[other], (1u << 20) + 70'000)
      << "where nothing overtakes it";
  EXPECT_EQ(dialler.transport->traffic().queued_bytes, full.queued_bytes);

  send("front", Traffic::OfBlock(TrafficClass::kUrgent, 9), 100'000);
  send("ack", Traffic::OfBlock(TrafficClass::kControl, 8), 0);
  const auto& messages = server.receiver.messages;
  ASSERT_TRUE(RunUntil(pump_both, [&] { return messages.size() == 6; }));
  EXPECT_EQ(messages[0].header, "ack");
  EXPECT_EQ(messages[1].header, "front") << "no block is whole yet";

  ASSERT_TRUE(
      RunUntil(pump_both, [&] { return endpoint->send_state().waiting_bytes() == 0; }));
  const TrafficCounts counts = dialler.transport->traffic();
  EXPECT_EQ(counts.queued_bytes, BytesByClass());
  EXPECT_EQ(counts.sent_bytes, (BytesByClass{3, 100'005, 4 * (kBlock + 4), 0}));
  EXPECT_EQ(counts.messages, (BytesByClass{1, 1, 4, 0}));
  EXPECT_GT(counts.waited_seconds[other], counts.waited_seconds[0]);
}

// The peer's last message has arrived but has not been read when the next write fails.
TEST_P(TcpClasses, WhatAPeerSaidBeforeItWentIsHeardThoughAWriteFails) {
  auto leaver = std::make_unique<TcpNode>(TcpOptions{.security = GetParam()});
  TcpNode other({.security = GetParam()}), dialler({.security = GetParam()});
  absl::Status failure;
  const auto endpoint =
      dialler.Dial(leaver->transport->address(),
                   {.on_failure = [&](const absl::Status& status) { failure = status; }});
  const auto bystander = dialler.Dial(other.transport->address());
  const auto pump_all = [&] {
    for (TcpNode* node : {leaver.get(), &other, &dialler}) {
      if (node != nullptr) node->transport->Progress();
    }
  };
  const auto send = [](Endpoint& to, const std::string& name, size_t bytes) {
    to.Send(std::as_bytes(std::span(name)), {Slice::Of(Buffer::Allocate(bytes))},
            nullptr);
  };
  ASSERT_TRUE(RunUntil(pump_all, [&] {
    return leaver->acceptor.endpoints.size() + other.acceptor.endpoints.size() == 2;
  }));
  std::vector<std::string> heard;
  dialler.receiver.on_message = [&](const RecordingReceiver::Message& message) {
    heard.push_back(message.header);
    if (message.header != "now") return;
    send(*leaver->acceptor.endpoints[0], "why", 0);
    leaver->transport->Progress();
    leaver = nullptr;
    send(*endpoint, "block", size_t{4} << 20);
  };
  send(*other.acceptor.endpoints[0], "now", 0);
  ASSERT_TRUE(RunUntil(pump_all, [&] { return !failure.ok(); }));
  EXPECT_EQ(heard, (std::vector<std::string>{"now", "why"}));
}

TEST(TcpRoundTrip, IsUnknownUntilTheKernelHasMeasuredIt) {
  EXPECT_EQ(RoundTripOf(~uint32_t{0}), absl::ZeroDuration()) << "no sample yet";
  EXPECT_EQ(RoundTripOf(60'000'001), absl::ZeroDuration());
  EXPECT_EQ(RoundTripOf(60'000'000), absl::Seconds(60));
  EXPECT_EQ(RoundTripOf(850), absl::Microseconds(850));
  EXPECT_EQ(RoundTripOf(0), absl::ZeroDuration());
}

}  // namespace
}  // namespace syncline
