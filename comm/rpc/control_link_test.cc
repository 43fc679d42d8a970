// Links over real streams, with a coordinator that implements only the protocol.
#include "comm/rpc/control_link.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/base/eventually.h"
#include "comm/base/failure.h"
#include "comm/rpc/address.h"
#include "comm/rpc/certificates_test_util.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/relay_test_util.h"
#include "comm/rpc/server.h"
#include "comm/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

// The coordinator's half of one member's link.
class FakeCoordinator final : public v1::Coordinator::Service {
 public:
  using Wire = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::MemberMessage>;

  explicit FakeCoordinator(const std::string& listen = "127.0.0.1:0") {
    running_ = *StartServer({.listen = listen, .tls = {}, .services = {this}});
  }
  ~FakeCoordinator() override { Stop(); }

  const std::string& address() const { return running_.address; }
  void Stop() { running_.Shutdown(absl::ZeroDuration()); }

  void Say(const std::string& reason) {
    absl::MutexLock lock(&mutex_);
    v1::CoordinatorMessage message;
    message.mutable_waiting()->set_reason(reason);
    message.set_number(queue_.next());
    message.set_term(term_);
    ASSERT_TRUE(
        queue_.Push(std::make_shared<const v1::CoordinatorMessage>(message), 1).ok());
    if (wire_ != nullptr) wire_->Write(message);
  }
  // Forgets everything.
  void StartAnew(uint64_t term) {
    absl::MutexLock lock(&mutex_);
    term_ = term;
    key_.clear();
    queue_.Clear();
    received_ = {};
    heard_.clear();
  }
  std::vector<std::string> names() {  // names in the hellos
    absl::MutexLock lock(&mutex_);
    return names_;
  }
  void RefuseWith(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    refusal_ = status;
  }
  std::vector<uint64_t> heard() {
    absl::MutexLock lock(&mutex_);
    return heard_;
  }
  int hellos() const { return hellos_; }
  int resumes() const { return resumes_; }

  grpc::Status Attach(grpc::ServerContext*, Wire* wire) override {
    v1::MemberMessage message;
    if (!wire->Read(&message)) return grpc::Status::OK;
    ++(message.has_resume() ? resumes_ : hellos_);
    {
      absl::MutexLock lock(&mutex_);
      if (!refusal_.ok()) return ToGrpcStatus(refusal_);
      v1::CoordinatorMessage ready;
      ready.set_term(term_);
      if (key_.empty() && message.has_resume()) {
        ready.mutable_link_unknown();
        wire->Write(ready);
        return ToGrpcStatus(absl::UnavailableError("restarted"));
      }
      if (message.has_server_hello()) names_.push_back(message.server_hello().name());
      if (key_.empty()) key_ = message.link_key();
      EXPECT_EQ(message.link_key(), key_);
      ready.mutable_link_ready();
      ready.set_seen(received_.last());
      wire->Write(ready);
      EXPECT_TRUE(queue_.CanReplayAfter(message.seen()));
      for (const auto& [number, missed] : queue_.After(message.seen())) {
        wire->Write(*missed);
      }
      wire_ = wire;
    }
    while (wire->Read(&message)) Hear(*wire, message);
    absl::MutexLock lock(&mutex_);
    if (wire_ == wire) wire_ = nullptr;
    return ToGrpcStatus(absl::UnavailableError("the stream broke"));
  }

 private:
  void Hear(Wire& wire, const v1::MemberMessage& message) {
    absl::MutexLock lock(&mutex_);
    queue_.Acknowledge(message.seen());
    if (message.beat() > 0) {
      v1::CoordinatorMessage answer;
      answer.set_beat(message.beat());
      answer.set_seen(received_.last());
      answer.set_term(term_);
      wire.Write(answer);
    }
    if (message.number() == 0) return;
    const ReceivedNumbers::Verdict verdict = received_.Take(message.number());
    EXPECT_NE(verdict, ReceivedNumbers::Verdict::kGap);
    if (verdict == ReceivedNumbers::Verdict::kNew) {
      heard_.push_back(message.barrier_entered().barrier());
    }
  }

  std::atomic<int> hellos_ = 0;
  std::atomic<int> resumes_ = 0;
  absl::Mutex mutex_;
  uint64_t term_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  std::string key_ ABSL_GUARDED_BY(mutex_);
  Wire* wire_ ABSL_GUARDED_BY(mutex_) = nullptr;
  ReliableQueue<v1::CoordinatorMessage> queue_ ABSL_GUARDED_BY(mutex_){{}};
  ReceivedNumbers received_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> heard_ ABSL_GUARDED_BY(mutex_);
  RunningServer running_;
};

// A link that sends heartbeats, and records what it is told.
class Member {
 public:
  explicit Member(const std::string& address, absl::Duration patience = kPatience,
                  const TlsOptions& tls = {}, absl::Duration outage = {}) {
    v1::MemberMessage hello;
    hello.mutable_server_hello()->set_name("a member");
    const Timeouts timeouts = Timeouts::Derive(absl::Seconds(10));
    link_ = ControlLink::Open(
        {.attach = {.address = address, .tls = tls, .timeouts = timeouts},
         .hello = hello,
         .patience = patience,
         .outage = outage,
         .hello_again =
             [hello]() mutable {
               hello.mutable_server_hello()->set_name("the same member");
               return hello;
             }},
        {.on_message =
             [this](const v1::CoordinatorMessage& message) {
               absl::MutexLock lock(&mutex_);
               told_.push_back(message.waiting().reason());
             },
         .on_end =
             [this](const absl::Status& status) {
               absl::MutexLock lock(&mutex_);
               EXPECT_FALSE(end_.has_value());
               end_ = status;
             }});
    heart_ = std::thread([this, period = timeouts.heartbeat_interval] {
      absl::MutexLock lock(&mutex_);
      while (!dead_) {
        v1::MemberMessage beat;
        beat.mutable_heartbeat();
        link_->Send(beat);
        changed_.WaitFor(mutex_, period);
      }
    });
  }
  ~Member() {
    link_->Close();
    {
      absl::MutexLock lock(&mutex_);
      dead_ = true;
      changed_.SignalAll();
    }
    heart_.join();
  }

  ControlLink& link() { return *link_; }
  void Enter(uint64_t barrier) {
    v1::MemberMessage message;
    message.mutable_barrier_entered()->set_barrier(barrier);
    link_->Send(message);
  }
  std::vector<std::string> told() {
    absl::MutexLock lock(&mutex_);
    return told_;
  }
  absl::Status AwaitEnd() {
    absl::MutexLock lock(&mutex_);
    const SteadyClock clock;
    while (!end_ && clock.Now() < kPatience) {
      changed_.WaitFor(mutex_, absl::Milliseconds(10));
    }
    return end_.value_or(absl::DeadlineExceededError("it goes on"));
  }

 private:
  absl::Mutex mutex_;
  SteadyCondition changed_;
  bool dead_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> told_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ControlLink> link_;
  std::thread heart_;
};

TEST(ControlLinkTest, CarriesEverythingOnceAndInOrderOverBrokenStreams) {
  FakeCoordinator coordinator;
  Relay relay(coordinator.address());
  Member member(relay.address());
  constexpr size_t kMessages = 200;
  for (size_t i = 0; i < kMessages; ++i) {
    member.Enter(i);
    coordinator.Say(absl::StrCat(i));
    if (i % 40 != 20) continue;
    const int resumes = coordinator.resumes();
    ASSERT_TRUE(Eventually([&] { return member.link().was_attached(); }));
    relay.Break();
    ASSERT_TRUE(Eventually([&] { return coordinator.resumes() > resumes; }));
  }
  ASSERT_TRUE(Eventually([&] {
    return coordinator.heard().size() >= kMessages && member.told().size() >= kMessages;
  }));
  const std::vector<uint64_t> heard = coordinator.heard();
  const std::vector<std::string> told = member.told();
  for (size_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(heard[i], i);
    EXPECT_EQ(told[i], absl::StrCat(i));
  }
  EXPECT_GE(coordinator.hellos(), 1);
}

TEST(ControlLinkTest, ReplacesAStreamOnWhichNothingComesAnyMore) {
  FakeCoordinator coordinator;
  Relay relay(coordinator.address());
  Member member(relay.address());
  ASSERT_TRUE(Eventually([&] { return member.link().was_attached(); }));
  const int resumes = coordinator.resumes();
  relay.Stall();
  member.Enter(7);
  ASSERT_TRUE(Eventually([&] { return coordinator.resumes() > resumes; }));
  ASSERT_TRUE(Eventually([&] { return coordinator.heard().size() == 1; }));
  coordinator.Say("still here");
  ASSERT_TRUE(Eventually([&] { return member.told().size() == 1; }));
}

TEST(ControlLinkTest, GivesUpACoordinatorThatIsGone) {
  FakeCoordinator coordinator;
  Relay relay(coordinator.address());
  Member member(relay.address());
  ASSERT_TRUE(Eventually([&] { return member.link().was_attached(); }));
  relay.Refuse(true);
  relay.Break();
  const absl::Status end = member.AwaitEnd();
  EXPECT_EQ(FailureOf(end), Failure::kRetryable) << end;
  EXPECT_THAT(std::string(end.message()), HasSubstr("lost the coordinator at 127.0.0.1"));
  EXPECT_FALSE(member.link().Send({}));
}

TEST(ControlLinkTest, SaysHelloAnewToACoordinatorThatWasStartedAnew) {
  FakeCoordinator coordinator;
  Relay relay(coordinator.address());
  Member member(relay.address());
  coordinator.Say("before");
  ASSERT_TRUE(Eventually([&] { return member.told().size() == 1; }));
  member.Enter(1);
  ASSERT_TRUE(Eventually([&] { return coordinator.heard().size() == 1; }));
  coordinator.StartAnew(2);
  relay.Break();
  ASSERT_TRUE(Eventually([&] { return coordinator.names().size() == 2; }));
  EXPECT_THAT(coordinator.names(), ElementsAre("a member", "the same member"));
  member.Enter(2);
  ASSERT_TRUE(Eventually([&] { return !coordinator.heard().empty(); }));
  EXPECT_THAT(coordinator.heard(), ElementsAre(2));
  coordinator.Say("after");
  ASSERT_TRUE(Eventually([&] { return member.told().size() == 2; }));
}

TEST(ControlLinkTest, DoesNotListenToAnOldCoordinator) {
  FakeCoordinator coordinator;
  coordinator.StartAnew(5);
  Relay relay(coordinator.address());
  Member member(relay.address());
  ASSERT_TRUE(Eventually([&] { return member.link().was_attached(); }));
  coordinator.StartAnew(4);
  const int resumes = coordinator.resumes();
  relay.Break();
  ASSERT_TRUE(Eventually([&] { return coordinator.resumes() > resumes + 1; }));
  EXPECT_THAT(coordinator.names(), ElementsAre("a member"));
  coordinator.StartAnew(6);
  ASSERT_TRUE(Eventually([&] { return coordinator.names().size() == 2; }));
}

TEST(ControlLinkTest, EndsWithWhatTheCoordinatorSays) {
  FakeCoordinator coordinator;
  Relay relay(coordinator.address());
  Member member(relay.address());
  ASSERT_TRUE(Eventually([&] { return member.link().was_attached(); }));
  coordinator.RefuseWith(absl::AbortedError("dropped: no heartbeat"));
  relay.Break();
  EXPECT_EQ(member.AwaitEnd(), absl::AbortedError("dropped: no heartbeat"));
}

TEST(ControlLinkTest, SaysWhyACoordinatorWasNeverReached) {
  Member member(absl::StrCat("127.0.0.1:", *PickFreePort("127.0.0.1")),
                absl::Milliseconds(300));
  const absl::Status end = member.AwaitEnd();
  EXPECT_EQ(FailureOf(end), Failure::kUnreachable) << end;
  EXPECT_THAT(std::string(end.message()), HasSubstr("nothing listens there"));
}

TEST(ControlLinkTest, DoesNotWaitForACoordinatorThatSpeaksPlainText) {
  SilenceGrpcLog();
  TestCertificates files;
  files.MakeCa("ca");
  files.MakeLeaf("client", "ca");
  FakeCoordinator coordinator;
  Member member(coordinator.address(), kPatience, files.Identity("client"));
  const absl::Status end = member.AwaitEnd();
  EXPECT_EQ(FailureOf(end), Failure::kUnreachable) << end;
  EXPECT_TRUE(absl::IsUnauthenticated(end));
  EXPECT_THAT(std::string(end.message()),
              HasSubstr("it speaks plain text; drop --tls-*"));
}

TEST(ControlLinkTest, WaitsForACoordinatorThatStartsLater) {
  const std::string address = absl::StrCat("127.0.0.1:", *PickFreePort("127.0.0.1"));
  Member member(address);
  member.Enter(3);
  FakeCoordinator coordinator(address);
  ASSERT_TRUE(Eventually([&] { return coordinator.heard().size() == 1; }));
  EXPECT_EQ(coordinator.resumes(), 0);
}

TEST(ControlLinkTest, IsUnreachableAfterItsPatience) {
  const std::string address = absl::StrCat("127.0.0.1:", *PickFreePort("127.0.0.1"));
  Member member(address, absl::Milliseconds(300));
  EXPECT_EQ(FailureOf(member.AwaitEnd()), Failure::kUnreachable);
  EXPECT_FALSE(member.link().was_attached());
}

TEST(ControlLinkTest, OfSeveralCoordinatorsFindsWhicheverLeads) {
  const absl::Status standby = absl::UnavailableError("a standby; ask the other one");
  FakeCoordinator first;
  auto second = std::make_unique<FakeCoordinator>();
  first.RefuseWith(standby);
  Member member(absl::StrCat(first.address(), ",", second->address()), kPatience, {},
                kPatience);
  ASSERT_TRUE(Eventually([&] { return member.link().was_attached(); }));
  member.Enter(1);
  ASSERT_TRUE(Eventually([&] { return second->heard().size() == 1; }));
  first.StartAnew(2);
  first.RefuseWith(absl::OkStatus());
  second->Stop();
  ASSERT_TRUE(Eventually([&] { return first.names().size() == 1; }));
  EXPECT_THAT(first.names(), ElementsAre("the same member"));
  member.Enter(2);
  ASSERT_TRUE(Eventually([&] { return first.heard().size() == 1; }));
}

// One address of the list is wrong permanently, and no coordinator leads yet.
TEST(ControlLinkTest, WaitsForALeaderAlthoughAnotherAddressIsWrong) {
  SilenceGrpcLog();
  TestCertificates files;
  files.MakeCa("ca");
  files.MakeLeaf("server", "ca");
  FakeCoordinator standby;
  standby.RefuseWith(absl::UnavailableError("a standby; nobody leads"));
  RunningServer sealed = *StartServer(
      {.listen = "127.0.0.1:0", .tls = files.Identity("server"), .services = {}});
  Member member(absl::StrCat(sealed.address, ",", standby.address()), absl::Seconds(9));
  const absl::Status end = member.AwaitEnd();
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  EXPECT_EQ(FailureOf(end), Failure::kUnreachable);
  sealed.Shutdown(absl::ZeroDuration());
}

TEST(ControlLinkTest, OfStandbysAloneSaysWhatTheySay) {
  FakeCoordinator standby;
  standby.RefuseWith(absl::UnavailableError("a standby; nobody leads"));
  FakeCoordinator other;
  other.RefuseWith(absl::UnavailableError("a standby; nobody leads"));
  // On a very slow machine no coordinator answers in time.
  std::string said;
  for (int i = 0; i < 10 && !absl::StrContains(said, "nobody leads"); ++i) {
    Member member(absl::StrCat(standby.address(), ",", other.address()),
                  absl::Seconds(2 + i));
    const absl::Status end = member.AwaitEnd();
    ASSERT_EQ(FailureOf(end), Failure::kUnreachable);
    said = std::string(end.message());
  }
  EXPECT_THAT(said, HasSubstr("a standby; nobody leads"));
}

}  // namespace
}  // namespace syncline
