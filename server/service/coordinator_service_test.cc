// The coordinator over real streams that break, with a real server.
#include "server/service/coordinator_service.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "comm/base/failure.h"
#include "comm/rpc/relay_test_util.h"
#include "comm/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/server_node.h"
#include "server/store/memory_store.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

bool Eventually(const std::function<bool()>& condition) {
  absl::Mutex mutex;
  SteadyCondition never;
  const SteadyClock clock;
  absl::MutexLock lock(&mutex);
  while (!condition()) {
    if (clock.Now() > kPatience) return false;
    never.WaitFor(mutex, absl::Milliseconds(5));
  }
  return true;
}

class CoordinatorServiceTest : public testing::Test {
 protected:
  CoordinatorServiceTest() {
    CoordinatorServiceOptions options;
    options.coordinator.timeouts = Timeouts::Derive(absl::Seconds(10));
    options.store = &store_;
    service_ = *CoordinatorService::Create(std::move(options));
    running_ =
        *StartServer({.listen = "127.0.0.1:0", .tls = {}, .services = {service_.get()}});
  }
  ~CoordinatorServiceTest() override {
    service_->Stop();
    running_.Shutdown(absl::ZeroDuration());
  }

  static ServerNodeOptions NodeOptions(const std::string& coordinator) {
    ServerNodeOptions options;
    options.coordinator = coordinator;
    options.name = "a server";
    options.timeouts = Timeouts::Derive(absl::Seconds(10));
    return options;
  }

  MemoryStore store_;
  std::unique_ptr<CoordinatorService> service_;
  RunningServer running_;
};

TEST_F(CoordinatorServiceTest, AServerWhoseStreamBreaksOrFallsSilentIsTheSame) {
  Relay relay(running_.address);
  const auto node = ServerNode::Start(NodeOptions(relay.address()), {});
  ASSERT_TRUE(node.ok()) << node.status();
  ASSERT_TRUE(Eventually([&] { return (*node)->is_attached(); }));
  for (int i = 0; i < 4; ++i) {
    const size_t connections = relay.connections();
    if (i % 2 == 0) relay.Break();
    if (i % 2 == 1) relay.Stall();
    ASSERT_TRUE(Eventually([&] { return relay.connections() > connections; }));
    // It is heard on the new stream.
    ASSERT_TRUE(Eventually([&] {
      const CoordinatorView view = service_->View();
      return view.servers.size() == 1 &&
             view.servers[0].heartbeat_age > absl::ZeroDuration();
    }));
    const absl::Duration age = service_->View().servers.at(0).heartbeat_age;
    ASSERT_TRUE(Eventually([&] {
      const CoordinatorView view = service_->View();
      return view.servers.size() == 1 && view.servers[0].heartbeat_age < age;
    }));
  }
  const CoordinatorView view = service_->View();
  ASSERT_EQ(view.servers.size(), 1u);
  EXPECT_EQ(view.servers[0].incarnation, 1u);
  EXPECT_EQ(view.servers[0].server, 0u);
}

TEST_F(CoordinatorServiceTest, RefusesAnotherFailureTimeoutAndNamesBoth) {
  ServerNodeOptions options = NodeOptions(running_.address);
  options.timeouts = Timeouts::Derive(absl::Seconds(3));
  absl::Notification given_up;
  absl::Status reason;
  ServerNodeEvents events;
  events.on_given_up = [&](const absl::Status& status) {
    reason = status;
    given_up.Notify();
  };
  const auto node = ServerNode::Start(options, std::move(events));
  ASSERT_TRUE(node.ok()) << node.status();
  given_up.WaitForNotification();
  EXPECT_EQ(FailureOf(reason), Failure::kUsage);
  EXPECT_THAT(std::string(reason.message()), HasSubstr("3s here and 10s at the"));
}

TEST_F(CoordinatorServiceTest, ClosesAStreamThatNeverSaysHello) {
  absl::Notification ended;
  absl::Status reason;
  const auto stream = AttachStream::Open({.address = running_.address},
                                         {.on_message = [](const auto&) {},
                                          .on_end =
                                              [&](const absl::Status& status) {
                                                reason = status;
                                                ended.Notify();
                                              }});
  ASSERT_TRUE(stream.ok()) << stream.status();
  ended.WaitForNotification();
  EXPECT_TRUE(absl::IsDeadlineExceeded(reason)) << reason;
  EXPECT_THAT(std::string(reason.message()), HasSubstr("no hello"));
}

}  // namespace
}  // namespace syncline
