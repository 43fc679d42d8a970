// Too many unproven connections at once.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "comm/transport/tcp/hostile_test_util.h"
#include "comm/transport/tcp/tcp_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using testing::IsEmpty;

TEST(TcpAccept, AFloodFromOneAddressKeepsNoOtherOut) {
  constexpr size_t kPending = 8;
  TcpNode server({.max_pending = kPending}), dialler({});
  std::deque<RawPeer> strangers;
  // Each round opens as many connections as may be in their handshake, so no handshake
  // ends within a round.
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

// Unknown peers wait in their handshake; then a member dials.
class TcpDescriptors : public testing::Test {
 protected:
  static constexpr int kMany = 6;

  void Open(int first_of_the_last) {
    // No handshake ends within a test.
    const auto failure_timeout = absl::Seconds(100);
    server_.emplace(TcpOptions{.failure_timeout = failure_timeout,
                               .first_of_the_last = first_of_the_last});
    for (int i = 0; i < kMany; ++i) Stranger("127.0.0.2");
    Stranger("127.0.0.3");
    server_->transport->Progress();
    dialler_.emplace(TcpOptions{.failure_timeout = failure_timeout});
    endpoint_ = dialler_->Dial(server_->transport->address());
  }
  void Stranger(const std::string& from) {
    strangers_.emplace_back(server_->transport->address(), from);
    ASSERT_FALSE(strangers_.back().closed());
  }
  // Returns how many of the unknown peers were closed.
  size_t Ended() {
    return static_cast<size_t>(
        std::ranges::count_if(strangers_, [](RawPeer& one) { return one.IsClosed(); }));
  }
  bool IsMemberIn() {
    return RunUntil(
        [this] {
          server_->transport->Progress();
          dialler_->transport->Progress();
        },
        [this] { return server_->acceptor.identities.size() == 1; });
  }

  std::deque<RawPeer> strangers_;
  std::optional<TcpNode> server_, dialler_;
  std::unique_ptr<Endpoint> endpoint_;
};

int NextDescriptor() {
  const UniqueFd next(dup(0));
  return next.get();
}

TEST_F(TcpDescriptors, WhereNoneIsLeftHalfOfTheLargestSourceGoes) {
#ifdef SYNCLINE_SANITIZED
  GTEST_SKIP() << "UndefinedBehaviorSanitizer opens a pipe to look at an object";
#endif
  Open(std::numeric_limits<int>::max());
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none_left = before;
  none_left.rlim_cur = static_cast<rlim_t>(NextDescriptor());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
  const bool is_in = IsMemberIn();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(is_in);
  EXPECT_EQ(server_->acceptor.refused[Refusal::kCrowded], kMany / 2);
  EXPECT_EQ(Ended(), kMany / 2);
  EXPECT_TRUE(strangers_.front().IsClosed()) << "the oldest goes";
  EXPECT_FALSE(strangers_.back().IsClosed()) << "of another source";
}

TEST_F(TcpDescriptors, WhereFewAreLeftNobodyComesInAndNobodyGoes) {
  constexpr int kRoom = 4;
  const int before = NextDescriptor();
  server_.emplace(TcpOptions{});
  const int of_server = NextDescriptor() - before;
  server_.reset();
  Open(before + of_server + kMany + 1 + kRoom);
  server_->transport->Progress();
  EXPECT_THAT(server_->acceptor.refused, IsEmpty());
  const auto outside =
      std::ranges::find_if(strangers_, [](RawPeer& one) { return one.IsClosed(); });
  EXPECT_GT(outside - strangers_.begin(), 0);
  EXPECT_EQ(Ended(), 1) << "the one who came when the room was used up";
  strangers_.erase(strangers_.begin(), outside);
  EXPECT_TRUE(IsMemberIn());
}

}  // namespace
}  // namespace syncline
