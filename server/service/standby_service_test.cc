// Tests of several coordinators, one of which leads: the answers of the others, and the
// end of one that led.
#include "server/service/standby_service.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/env.h"
#include "comm/base/eventually.h"
#include "comm/base/failure.h"
#include "comm/rpc/attach_stream.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/server.h"
#include "comm/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/coordinator_service.h"
#include "server/service/proto_convert.h"
#include "server/store/memory_store.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

// A stream that sends the hello of a server, and its outcome.
class HelloStream {
 public:
  explicit HelloStream(const std::string& address) {
    stream_ = *AttachStream::Open({.address = address},
                                  {.on_message =
                                       [this](const v1::CoordinatorMessage& message) {
                                         absl::MutexLock lock(&mutex_);
                                         beat_ = std::max(beat_, message.beat());
                                       },
                                   .on_end =
                                       [this](const absl::Status& status) {
                                         absl::MutexLock lock(&mutex_);
                                         end_ = status;
                                       }});
    v1::MemberMessage hello = ToProto(MemberBody{ServerHello{"a", {"address"}, ""}});
    hello.mutable_server_hello()->set_protocol_version(kProtocolVersion);
    stream_->Send(hello);
  }
  void Beat(uint64_t beat) {
    v1::MemberMessage message;
    message.mutable_heartbeat();
    message.set_beat(beat);
    stream_->Send(message);
  }
  uint64_t answered() {
    absl::MutexLock lock(&mutex_);
    return beat_;
  }
  std::optional<absl::Status> end() {
    absl::MutexLock lock(&mutex_);
    return end_;
  }

 private:
  absl::Mutex mutex_;
  uint64_t beat_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<AttachStream> stream_;  // last: it calls this object
};

absl::Status AskStatus(const std::string& address) {
  const auto channel = *CreateChannel(address, {}, RpcTimeouts::Default());
  const auto stub = v1::Coordinator::NewStub(channel);
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(60));
  context.set_wait_for_ready(true);
  v1::StatusReply reply;
  return FromGrpcStatus(stub->Status(&context, v1::StatusRequest(), &reply));
}

TEST(StandbyService, SaysWhoLeadsToMembersAndToCallers) {
  absl::Mutex mutex;
  std::string leader;
  StandbyService standby([&] {
    absl::MutexLock lock(&mutex);
    return leader;
  });
  RunningServer running =
      *StartServer({.listen = "127.0.0.1:0", .tls = {}, .services = {&standby}});
  const absl::Status nobody = AskStatus(running.address);
  EXPECT_TRUE(absl::IsUnavailable(nobody)) << nobody;
  EXPECT_THAT(std::string(nobody.message()), HasSubstr("there is no leader now"));
  {
    absl::MutexLock lock(&mutex);
    leader = "10.0.0.2:7070";
  }
  EXPECT_THAT(std::string(AskStatus(running.address).message()),
              HasSubstr("not the leader; ask 10.0.0.2:7070"));
  {
    HelloStream member(running.address);
    ASSERT_TRUE(Eventually([&] { return member.end().has_value(); }));
    EXPECT_TRUE(absl::IsUnavailable(*member.end()));
    EXPECT_EQ(FailureOf(*member.end()), Failure::kNone) << "members dial on";
    EXPECT_THAT(std::string(member.end()->message()), HasSubstr("ask 10.0.0.2:7070"));
  }
  running.Shutdown(absl::ZeroDuration());
}

TEST(LeadingCoordinator, SaysNothingAnyMoreOnceItsTimeIsOver) {
  MemoryStore store;
  std::atomic<bool> leads = true;
  std::atomic<int> ends = 0;
  absl::Mutex mutex;
  absl::Status why;
  CoordinatorServiceOptions options;
  options.store = &store;
  options.comes_back = true;
  options.leads = [&] { return leads.load(); };
  options.on_fatal = [&](const absl::Status& status) {
    absl::MutexLock lock(&mutex);
    why = status;
    ++ends;
  };
  const auto service = *CoordinatorService::Create(std::move(options));
  RunningServer running =
      *StartServer({.listen = "127.0.0.1:0", .tls = {}, .services = {service.get()}});
  {
    HelloStream member(running.address);
    member.Beat(1);
    ASSERT_TRUE(Eventually([&] { return member.answered() == 1; }));
    EXPECT_TRUE(AskStatus(running.address).ok());
    const auto before = store.List("");
    leads = false;
    member.Beat(2);
    ASSERT_TRUE(Eventually([&] { return member.end().has_value(); }));
    EXPECT_EQ(member.answered(), 1u);
    EXPECT_TRUE(absl::IsUnavailable(*member.end()));
    EXPECT_EQ(FailureOf(*member.end()), Failure::kNone) << "members dial on";
    EXPECT_THAT(std::string(member.end()->message()),
                HasSubstr("does not lead any more"));
    EXPECT_TRUE(absl::IsUnavailable(AskStatus(running.address)));
    HelloStream late(running.address);
    ASSERT_TRUE(Eventually([&] { return late.end().has_value(); }));
    service->StepDown(absl::UnavailableError("again"));
    EXPECT_EQ(ends, 1);
    EXPECT_EQ(store.List("")->size(), before->size());
    absl::MutexLock lock(&mutex);
    EXPECT_EQ(FailureOf(why), Failure::kRetryable) << "exit code 138: start it again";
  }
  running.Shutdown(absl::ZeroDuration());
}

}  // namespace
}  // namespace syncline
