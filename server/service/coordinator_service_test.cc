// Tests of the coordinator with a real server, over real streams that break.
#include "server/service/coordinator_service.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "comm/base/eventually.h"
#include "comm/base/failure.h"
#include "comm/rpc/announcement.h"
#include "comm/rpc/relay_test_util.h"
#include "comm/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/job_convert.h"
#include "server/service/proto_convert.h"
#include "server/service/server_node.h"
#include "server/store/memory_store.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A store whose CompareAndSet waits while the test says so. Events are stored at once:
// those of an earlier message may still be on their way when the test begins to hold.
class SlowStore final : public StateStore {
 public:
  absl::StatusOr<std::optional<Versioned>> Load(std::string_view key) override {
    return store_.Load(key);
  }
  absl::StatusOr<int64_t> CompareAndSet(std::string_view key, int64_t expected_version,
                                        std::string_view value) override {
    absl::MutexLock lock(&mutex_);
    if (!fails_on_.empty() && key.starts_with(fails_on_)) {
      return absl::ResourceExhaustedError("the disk is full");
    }
    if (!key.starts_with("events/")) {
      waits_ = true;
      mutex_.Await(absl::Condition(&lets_go_));
      waits_ = false;
    }
    return store_.CompareAndSet(key, expected_version, value);
  }
  absl::Status Erase(std::string_view key, int64_t expected_version) override {
    return store_.Erase(key, expected_version);
  }
  absl::StatusOr<std::map<std::string, Versioned>> List(
      std::string_view prefix) override {
    return store_.List(prefix);
  }

  void Hold() {
    absl::MutexLock lock(&mutex_);
    lets_go_ = false;
  }
  void FailOn(const std::string& prefix) {
    absl::MutexLock lock(&mutex_);
    fails_on_ = prefix;
  }
  void WaitUntilHeld() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&waits_));
  }
  void LetGo() {
    absl::MutexLock lock(&mutex_);
    lets_go_ = true;
  }

 private:
  MemoryStore store_;
  absl::Mutex mutex_;
  bool lets_go_ = true;
  bool waits_ = false;
  std::string fails_on_;
};

// A member that sends what a test wants, and records what it receives.
class RawMember {
 public:
  explicit RawMember(const std::string& address) {
    stream_ = *AttachStream::Open({.address = address},
                                  {.on_message =
                                       [this](const v1::CoordinatorMessage& message) {
                                         absl::MutexLock lock(&mutex_);
                                         heard_.push_back(message);
                                       },
                                   .on_end =
                                       [this](const absl::Status& status) {
                                         absl::MutexLock lock(&mutex_);
                                         end_ = status;
                                       }});
  }

  void Say(const v1::MemberMessage& message) { stream_->Send(message); }
  void SayServerHello(const std::string& name) {
    v1::MemberMessage message = ToProto(MemberBody{ServerHello{name, {"address"}, ""}});
    message.mutable_server_hello()->set_protocol_version(kProtocolVersion);
    Say(message);
  }
  // Sends heartbeat number `beat`.
  void SayBeat(uint64_t beat) {
    v1::MemberMessage message;
    message.mutable_heartbeat()->set_bytes(beat);
    message.set_beat(beat);
    Say(message);
  }

  bool Heard(const std::function<bool(const v1::CoordinatorMessage&)>& is_it) {
    absl::MutexLock lock(&mutex_);
    return std::ranges::any_of(heard_, is_it);
  }
  std::optional<absl::Status> end() {
    absl::MutexLock lock(&mutex_);
    return end_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<v1::CoordinatorMessage> heard_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<AttachStream> stream_;  // last: it calls this object
};

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

  SlowStore store_;
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
    // The server's heartbeats arrive on the new stream.
    absl::Duration age = absl::ZeroDuration();
    ASSERT_TRUE(Eventually([&] {
      const CoordinatorView view = service_->View();
      if (view.servers.size() != 1) return false;
      return view.servers[0].heartbeat_age <
             std::exchange(age, view.servers[0].heartbeat_age);
    }));
  }
  const CoordinatorView view = service_->View();
  ASSERT_EQ(view.servers.size(), 1u);
  EXPECT_EQ(view.servers[0].incarnation, 1u);
  EXPECT_EQ(view.servers[0].server, 0u);
}

// After a pause the coordinator accepts streams that their members gave up during it.
// Such a member needs one more attempt to connect, and then still has its grace period.
TEST(CoordinatorPatience, APauseLeavesTimeForAnAttemptBeforeTheGrace) {
  const Timeouts timeouts = Timeouts::Derive(absl::Seconds(1));
  const absl::Duration tick = timeouts.heartbeat_interval / 2;
  PatientClock clock(PatienceOfCoordinator(timeouts));
  absl::Duration steady = absl::ZeroDuration();
  for (int i = 0; i < 10; ++i) clock.Advance(steady += tick);
  for (int pause = 0; pause < 3; ++pause) {
    const absl::Duration before = clock.Advance(steady);
    const absl::Duration broke = clock.Advance(steady += absl::Milliseconds(700));
    EXPECT_LE(broke - before, tick);
    const absl::Duration until =
        steady + timeouts.connect_timeout + timeouts.reconnect_grace - tick;
    while (steady < until) clock.Advance(steady += tick);
    EXPECT_LT(clock.Advance(steady) - broke, timeouts.reconnect_grace);
    for (int i = 0; i < 10; ++i) clock.Advance(steady += tick);
    EXPECT_GT(clock.Advance(steady) - broke, timeouts.reconnect_grace) << "not forever";
  }
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

TEST_F(CoordinatorServiceTest, HeartbeatsAreAnsweredAndViewsShownWhileTheDiskIsSlow) {
  RawMember member(running_.address);
  member.SayServerHello("beats");
  const auto is_welcome = [](const auto& said) { return said.has_server_welcome(); };
  ASSERT_TRUE(Eventually([&] { return member.Heard(is_welcome); }));
  store_.Hold();
  RawMember newcomer(running_.address);
  newcomer.SayServerHello("newcomer");
  store_.WaitUntilHeld();
  for (uint64_t beat = 1; beat <= 3; ++beat) {
    member.SayBeat(beat);
    newcomer.SayBeat(beat);
    for (RawMember* one : {&member, &newcomer}) {
      ASSERT_TRUE(Eventually([&] {
        return one->Heard([&](const auto& said) { return said.beat() == beat; });
      }));
    }
  }
  EXPECT_EQ(service_->View().servers.size(), 2u);
  EXPECT_FALSE(newcomer.Heard(is_welcome)) << "what it follows from is not stored";
  store_.LetGo();
  ASSERT_TRUE(Eventually([&] { return newcomer.Heard(is_welcome); }));
  // The latest heartbeat that arrived in the meantime counts.
  ASSERT_TRUE(Eventually([&] { return service_->View().servers.at(0).bytes == 3; }));
}

TEST_F(CoordinatorServiceTest, ManyMessagesOfOneMemberComeInTheirOrder) {
  RawMember member(running_.address);
  member.SayServerHello("talks");
  v1::MemberMessage message;
  for (uint32_t i = 0; i < 1000; ++i) {
    message.mutable_job_configured()->set_job(i);
    member.Say(message);
  }
  message.mutable_leave();
  member.Say(message);
  ASSERT_TRUE(Eventually([&] { return member.end().has_value(); }));
  EXPECT_THAT(std::string(member.end()->message()), HasSubstr("it left"));
}

// ---- Events ----

TEST(CoordinatorEventsOfService, OutliveTheCoordinator) {
  MemoryStore store;
  CoordinatorServiceOptions options;
  options.store = &store;
  std::vector<std::string> said;
  for (int life = 0; life < 2; ++life) {
    auto service = *CoordinatorService::Create(options);
    RunningServer running =
        *StartServer({.listen = "127.0.0.1:0", .tls = {}, .services = {service.get()}});
    RawMember member(running.address);
    member.SayServerHello(absl::StrCat("server of life ", life));
    const size_t expected = 2U * static_cast<size_t>(life + 1);
    ASSERT_TRUE(Eventually([&] {
      return static_cast<size_t>(service->EventsNow().events_size()) >= expected;
    }));
    said.clear();
    const v1::EventsReply kept = service->EventsNow();
    for (const v1::Event& event : kept.events()) {
      said.push_back(event.what());
      EXPECT_EQ(event.number(), said.size());
      EXPECT_GT(event.time(), 1.7e9);
    }
    EXPECT_EQ(service->StatusNow().events_size(), static_cast<int>(said.size()));
    service->Stop();
    running.Shutdown(absl::ZeroDuration());
  }
  EXPECT_THAT(said, ElementsAre("the coordinator was started",
                                HasSubstr("(server of life 0) attached"),
                                HasSubstr("was restarted, life 2"),
                                HasSubstr("(server of life 1) attached")));
}

TEST_F(CoordinatorServiceTest, WhatCannotBeStoredOfEventsIsShownAllTheSame) {
  store_.FailOn("events/");
  RawMember member(running_.address);
  member.SayServerHello("a server");
  ASSERT_TRUE(Eventually([&] { return service_->EventsNow().events_size() == 2; }));
  EXPECT_EQ(service_->View().servers.size(), 1u);
}

// ---- Declarations ----

class DeclaringMember : public RawMember {
 public:
  DeclaringMember(const std::string& address, uint32_t rank, const std::string& tensor)
      : RawMember(address) {
    JobSpec job;
    job.name = "job";
    job.workers = 2;
    job.training.optimizer.name = "sgd";
    job.tensors = {{.name = tensor, .shape = {100}}};
    const Declaration declaration = Declare(job);
    v1::JobSpec spec;
    EXPECT_TRUE(spec.ParseFromString(*declaration.bytes));
    announced = Announce(spec, {.rank = rank, .name = "x"});
    EXPECT_EQ(announced.hello.worker_hello().job_digest(), declaration.digest);
    Say(announced.hello);
  }

  bool IsAsked() {
    return Heard([](const auto& said) { return said.has_describe_job(); });
  }
  bool IsToldToWait() {
    return Heard([](const auto& said) { return said.has_waiting(); });
  }

  Announcement announced;
};

TEST_F(CoordinatorServiceTest,
       OneWorkerSendsTheJobAndAnotherJobIsRefusedByItsDifference) {
  DeclaringMember first(running_.address, 0, "a");
  ASSERT_TRUE(Eventually([&] { return first.IsAsked(); }));
  first.Say(first.announced.declaration);
  ASSERT_TRUE(Eventually([&] { return service_->View().jobs.size() == 1; }));
  DeclaringMember other(running_.address, 1, "b");
  ASSERT_TRUE(Eventually([&] { return other.IsAsked(); }));
  other.Say(other.announced.declaration);
  ASSERT_TRUE(Eventually([&] { return other.end().has_value(); }));
  EXPECT_THAT(std::string(other.end()->message()),
              HasSubstr("job 'job' has tensor 'a' at position 0, not 'b'"));
  EXPECT_EQ(FailureOf(*other.end()), Failure::kJobRefused);
  DeclaringMember second(running_.address, 1, "a");
  ASSERT_TRUE(Eventually([&] { return second.IsToldToWait(); }));
  EXPECT_FALSE(second.IsAsked());
  EXPECT_EQ(service_->View().jobs.at(0).members.size(), 2u);
}

TEST_F(CoordinatorServiceTest, FalseBytesEndTheirSenderAndTheNextIsAsked) {
  DeclaringMember liar(running_.address, 0, "a");
  ASSERT_TRUE(Eventually([&] { return liar.IsAsked(); }));
  DeclaringMember honest(running_.address, 1, "a");
  v1::MemberMessage false_bytes = liar.announced.declaration;
  false_bytes.mutable_job_declaration()->mutable_spec()->back() ^= 1;
  liar.Say(false_bytes);
  ASSERT_TRUE(Eventually([&] { return liar.end().has_value(); }));
  EXPECT_THAT(std::string(liar.end()->message()), HasSubstr("does not have the digest"));
  ASSERT_TRUE(Eventually([&] { return honest.IsAsked(); }));
  honest.Say(honest.announced.declaration);
  ASSERT_TRUE(Eventually([&] { return honest.IsToldToWait(); }));
}

}  // namespace
}  // namespace syncline
