#include "cli/drain.h"

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cli/app.h"
#include "comm/base/exit_codes.h"
#include "comm/rpc/server.h"
#include "comm/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr double kLongUp = 1e6;  // seconds

// Returns the status of a coordinator that has been up for that time, with one server or
// none.
v1::StatusReply StatusOf(double uptime_seconds, const std::string& name = "") {
  v1::StatusReply reply;
  reply.set_uptime_seconds(uptime_seconds);
  if (name.empty()) return reply;
  reply.add_servers()->set_name(name);
  reply.mutable_servers(0)->set_server(7);
  return reply;
}

// Has server 3 until it was asked for its status a number of times after the drain.
class FakeCoordinator final : public v1::Coordinator::Service {
 public:
  grpc::Status DrainServer(grpc::ServerContext*, const v1::DrainServerRequest* request,
                           v1::DrainServerReply* reply) override {
    absl::MutexLock lock(&mutex_);
    request_ = *request;
    reply->set_server(3);
    reply->set_name("ps-3");
    reply->set_return_seconds(20);
    return ToGrpcStatus(answer_);
  }
  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*,
                      v1::StatusReply* reply) override {
    absl::MutexLock lock(&mutex_);
    if (!script_.empty()) {
      const absl::StatusOr<v1::StatusReply> next = script_.front();
      script_.pop_front();
      if (next.ok()) *reply = *next;
      return ToGrpcStatus(next.status());
    }
    reply->set_uptime_seconds(kLongUp);
    reply->add_servers()->set_server(2);
    if (asks_ == 0) return grpc::Status::OK;
    --asks_;
    reply->add_servers()->set_server(3);
    v1::JobStatus& job = *reply->add_jobs();
    job.set_name("bert");
    v1::BackupStatus& backup = *job.add_backups();
    backup.set_server(3);
    backup.set_lost("its holder is to end");
    backup.set_next("a new one is being made with server 2 (ps-2)");
    return grpc::Status::OK;
  }

  void Answer(absl::Status answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  // Sets the first answers to requests for the status.
  void AnswersFirst(std::deque<absl::StatusOr<v1::StatusReply>> script) {
    absl::MutexLock lock(&mutex_);
    script_ = std::move(script);
  }
  size_t LeftOfScript() {
    absl::MutexLock lock(&mutex_);
    return script_.size();
  }
  void StaysFor(int asks) {
    absl::MutexLock lock(&mutex_);
    asks_ = asks;
  }
  v1::DrainServerRequest request() {
    absl::MutexLock lock(&mutex_);
    return request_;
  }

 private:
  absl::Mutex mutex_;
  absl::Status answer_ ABSL_GUARDED_BY(mutex_);
  int asks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<absl::StatusOr<v1::StatusReply>> script_ ABSL_GUARDED_BY(mutex_);
  v1::DrainServerRequest request_ ABSL_GUARDED_BY(mutex_);
};

class DrainCommand : public testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.services = {&coordinator_};
    auto running = StartServer(options);
    ASSERT_TRUE(running.ok()) << running.status();
    running_ = *std::move(running);
  }

  int Run(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(),
                     {"syncline", "drain", "--coordinator", running_.address.c_str()});
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const AddCommand commands[] = {AddDrain};
    const int code = RunApp(arguments, commands);
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }

  FakeCoordinator coordinator_;
  RunningServer running_;
  std::string out_;
  std::string err_;
};

TEST_F(DrainCommand, WaitsUntilTheServerHasEndedAndSaysOnceForWhat) {
  coordinator_.StaysFor(3);
  ASSERT_EQ(Run({"ps-3"}), kExitDone) << err_;
  EXPECT_EQ(out_,
            "server 3 (ps-3) was told to stop\n"
            "waits: job 'bert': server 3 has no backup, and a new one is being made with "
            "server 2 (ps-2)\n"
            "server 3 (ps-3) has ended\n");
  EXPECT_EQ(coordinator_.request().server(), "ps-3");
  EXPECT_FALSE(coordinator_.request().force());
}

TEST_F(DrainCommand, ForceIsPassedOn) {
  ASSERT_EQ(Run({"3", "--force"}), kExitDone) << err_;
  EXPECT_TRUE(coordinator_.request().force());
}

// A restarted coordinator hears of its servers one by one. It knows servers that had no
// job only by name.
TEST_F(DrainCommand, AnotherCoordinatorsIgnoranceIsNoEnd) {
  coordinator_.AnswersFirst({StatusOf(0), StatusOf(0, "ps-3"), StatusOf(0), StatusOf(0)});
  ASSERT_EQ(Run({"ps-3"}), kExitDone) << err_;
  EXPECT_EQ(coordinator_.LeftOfScript(), 0u);
}

TEST_F(DrainCommand, AServerThatLivesIsBackAtAnotherCoordinatorInTime) {
  coordinator_.AnswersFirst({StatusOf(0), StatusOf(20), StatusOf(0, "ps-3")});
  ASSERT_EQ(Run({"ps-3"}), kExitDone) << err_;
  EXPECT_EQ(coordinator_.LeftOfScript(), 1u) << "it had been there for long enough";
}

TEST_F(DrainCommand, WaitsForACoordinatorThatGoesAwayWhileItIsAsked) {
  coordinator_.AnswersFirst(
      {absl::UnavailableError("socket closed"), absl::DeadlineExceededError("no answer"),
       absl::CancelledError("it stops"), StatusOf(kLongUp, "ps-3")});
  ASSERT_EQ(Run({"ps-3"}), kExitDone) << err_;
  EXPECT_EQ(coordinator_.LeftOfScript(), 0u);
  coordinator_.AnswersFirst({absl::PermissionDeniedError("not an operator")});
  EXPECT_EQ(Run({"ps-3"}), kExitFatal);
  EXPECT_THAT(err_, HasSubstr("not an operator"));
}

TEST_F(DrainCommand, EndsWithTheCoordinatorsRefusal) {
  coordinator_.Answer(absl::FailedPreconditionError("job 'bert' would fail"));
  EXPECT_EQ(Run({"ps-3"}), kExitFatal);
  EXPECT_THAT(err_, HasSubstr("job 'bert' would fail"));
  EXPECT_EQ(out_, "");
}

TEST_F(DrainCommand, SaysForWhatItHasWaitedTooLong) {
  coordinator_.StaysFor(1000);
  EXPECT_EQ(Run({"ps-3", "--wait", "1s"}), kExitUnreachable);
  EXPECT_THAT(err_, HasSubstr("has not ended after 1s: job 'bert'"));
}

TEST_F(DrainCommand, AsksNobodyWhenItIsAskedWrong) {
  coordinator_.Answer(absl::InternalError("was asked"));
  EXPECT_EQ(Run({}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("name or number of a server"));
  EXPECT_EQ(Run({"ps-3", "--wait", "soon"}), kExitUsage);
  EXPECT_EQ(Run({"ps-3", "--wait=-5s"}), kExitUsage);
}

}  // namespace
}  // namespace syncline
