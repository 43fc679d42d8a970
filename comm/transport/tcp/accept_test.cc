// Too many at once who prove nothing.
#include <deque>
#include <memory>
#include <span>
#include <string_view>

#include "comm/transport/tcp/hostile_test_util.h"
#include "comm/transport/tcp/tcp_test_util.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(TcpAccept, AFloodFromOneAddressKeepsNoOtherOut) {
  constexpr size_t kPending = 8;
  TcpNode server({.max_pending = kPending}), dialler({});
  std::deque<RawPeer> strangers;
  // In each turn as many as are let wait: no handshake ends within one.
  const auto crowd = [&] {
    for (size_t i = 0; i < kPending; ++i) {
      strangers.emplace_back(server.transport->address(), "127.0.0.2");
      ASSERT_FALSE(strangers.back().closed());
    }
    while (strangers.size() > 5 * kPending) strangers.pop_front();
    server.transport->Progress();
  };
  crowd();
  absl::Status failure;
  const auto endpoint =
      dialler.Dial(server.transport->address(),
                   {.on_failure = [&](const auto& status) { failure = status; }});
  endpoint->Send(std::as_bytes(std::span(std::string_view("in"))), {}, nullptr);
  ASSERT_TRUE(RunUntil(
      [&] {
        crowd();
        dialler.transport->Progress();
      },
      [&] { return !server.receiver.messages.empty() || !failure.ok(); }));
  EXPECT_TRUE(failure.ok()) << failure;
  EXPECT_EQ(server.acceptor.identities.size(), 1U);
  EXPECT_GT(server.acceptor.refused[Refusal::kCrowded], 0);
}

}  // namespace
}  // namespace syncline
