#include "comm/transport/network/network.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/transport/network/address.h"
#include "comm/transport/tcp/tcp_test_util.h"
#include "comm/transport/transport_contract.h"

namespace syncline {
namespace {

struct Node {
  Node(DataPlaneMode mode, std::string listen_host) : acceptor(receiver) {
    NetworkOptions options{.plan = {.mode = mode, .listen_host = std::move(listen_host)},
                           .acceptor = &acceptor};
    auto created = CreateNetworkTransport(options, receiver);
    EXPECT_TRUE(created.ok()) << created.status();
    transport = *std::move(created);
  }

  RecordingReceiver receiver;
  RecordingAcceptor acceptor;
  std::unique_ptr<Transport> transport;
};

class NetworkRig : public TransportRig {
 public:
  NetworkRig(int transports, DataPlaneMode mode) : mode_(mode) {
    for (int i = 0; i < transports; ++i) {
      nodes_.push_back(std::make_unique<Node>(mode, "127.0.0.1"));
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
    victim_ = std::make_unique<Node>(mode_, "127.0.0.1");
    return victim_->transport->address();
  }
  void KillVictim() override { victim_ = nullptr; }

 private:
  const DataPlaneMode mode_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::unique_ptr<Node> victim_;
};

RigFactory Factory(const std::string& name, DataPlaneMode mode) {
  return {name, [mode](int transports) {
            return std::make_unique<NetworkRig>(transports, mode);
          }};
}

INSTANTIATE_TEST_SUITE_P(Network, TransportContract,
                         ::testing::Values(Factory("tls", DataPlaneMode::kTls),
                                           Factory("plain", DataPlaneMode::kPlain)),
                         [](const auto& info) { return info.param.name; });

// Sends one message from `from` to `address`. Returns the lanes that it used.
std::string LanesUsed(Node& from, Node& to, const std::string& address) {
  const auto endpoint = from.transport->Connect(address, {.key = Alice()});
  if (!endpoint.ok()) return std::string(endpoint.status().message());
  (*endpoint)->Send(std::as_bytes(std::span("hello", 5)), {}, nullptr);
  const bool came = RunUntil(
      [&] {
        from.transport->Progress();
        to.transport->Progress();
        from.transport->Wait(absl::Milliseconds(1));
      },
      [&] { return !to.receiver.messages.empty(); });
  return came ? (*endpoint)->Describe() : "nothing came";
}

std::string WithPlaceOfAnotherHost(const std::string& bytes) {
  NetworkAddress address = *ParseNetworkAddress(bytes);
  address.ucx.clear();
  return EncodeNetworkAddress(address);
}

TEST(Network, NeighboursShareMemoryAndOthersUseTls) {
  Node server(DataPlaneMode::kAuto, "127.0.0.1");
  Node worker(DataPlaneMode::kAuto, "");
  const std::string& address = server.transport->address();
  EXPECT_THAT(LanesUsed(worker, server, address),
              ::testing::MatchesRegex("(sysv|posix)/memory"));
  server.receiver.messages.clear();
  EXPECT_EQ(LanesUsed(worker, server, WithPlaceOfAnotherHost(address)), "tcp/tls");
}

TEST(Network, OnlyTcpProvesWhoAnswers) {
  for (const DataPlaneMode mode :
       {DataPlaneMode::kHost, DataPlaneMode::kTls, DataPlaneMode::kPlain}) {
    Node server(mode, mode == DataPlaneMode::kHost ? "" : "127.0.0.1"), worker(mode, "");
    const auto endpoint =
        worker.transport->Connect(server.transport->address(), {.key = Alice()});
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ((*endpoint)->IsTwoWay(), mode != DataPlaneMode::kHost);
  }
}

TEST(Network, AServerOfOneHostTellsOthersWhatToDo) {
  Node server(DataPlaneMode::kHost, "");
  Node worker(DataPlaneMode::kHost, "");
  EXPECT_THAT(
      LanesUsed(worker, server, WithPlaceOfAnotherHost(server.transport->address())),
      ::testing::HasSubstr("--data-plane=tls"));
}

TEST(Network, WorkersDoAsTheServersSay) {
  Node tls(DataPlaneMode::kTls, "127.0.0.1"), plain(DataPlaneMode::kPlain, "127.0.0.1");
  const std::vector<std::string> one = {tls.transport->address()};
  EXPECT_EQ(*ModeOf(one), DataPlaneMode::kTls);
  const std::vector<std::string> two = {tls.transport->address(),
                                        plain.transport->address()};
  EXPECT_EQ(ModeOf(two).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ModeOf(std::vector<std::string>{"x"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  Node host(DataPlaneMode::kHost, ""), far(DataPlaneMode::kAuto, "127.0.0.1");
  const std::vector<std::string> three = {far.transport->address(),
                                          host.transport->address()};
  EXPECT_EQ(*ModeOf(three), DataPlaneMode::kAuto);
  // There is no fallback.
  EXPECT_FALSE(plain.transport->Connect(tls.transport->address(), {.key = Alice()}).ok());
}

TEST(NetworkAddress, IsSaidToPeople) {
  EXPECT_EQ(DescribeNetworkAddress(
                EncodeNetworkAddress({DataPlaneMode::kTls, "tcp:192.0.2.1:7", ""})),
            "192.0.2.1:7");
  Node host(DataPlaneMode::kHost, "");
  EXPECT_EQ(DescribeNetworkAddress(host.transport->address()),
            absl::StrCat("process ", getpid(), " of this host"));
  EXPECT_EQ(DescribeNetworkAddress("x"), "a damaged address");
}

TEST(NetworkAddress, SurvivesTheWireAndDamageIsNoticed) {
  const NetworkAddress address = {DataPlaneMode::kAuto, "tcp:192.0.2.1:7", "ucx"};
  const std::string bytes = EncodeNetworkAddress(address);
  const auto parsed = ParseNetworkAddress(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->mode, address.mode);
  EXPECT_EQ(parsed->tcp, address.tcp);
  EXPECT_EQ(parsed->ucx, address.ucx);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_FALSE(ParseNetworkAddress(damaged).ok()) << i;
    EXPECT_FALSE(ParseNetworkAddress(bytes.substr(0, i)).ok()) << i;
  }
}

}  // namespace
}  // namespace syncline
