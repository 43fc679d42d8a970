#include "cli/update.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
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

// Records the request that it got.
class FakeCoordinator final : public v1::Coordinator::Service {
 public:
  grpc::Status UpdateJob(grpc::ServerContext*, const v1::UpdateJobRequest* request,
                         v1::UpdateJobReply* reply) override {
    absl::MutexLock lock(&mutex_);
    request_ = *request;
    reply->set_epoch(7);
    for (const std::string& change : changes_) reply->add_changes(change);
    return ToGrpcStatus(answer_);
  }

  void Answer(absl::Status answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  void Change(std::vector<std::string> changes) {
    absl::MutexLock lock(&mutex_);
    changes_ = std::move(changes);
  }
  v1::UpdateJobRequest request() {
    absl::MutexLock lock(&mutex_);
    return request_;
  }

 private:
  absl::Mutex mutex_;
  absl::Status answer_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> changes_ ABSL_GUARDED_BY(mutex_);
  v1::UpdateJobRequest request_ ABSL_GUARDED_BY(mutex_);
};

class UpdateCommand : public testing::Test {
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
                     {"syncline", "update", "--coordinator", running_.address.c_str()});
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const AddCommand commands[] = {AddUpdate};
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

TEST_F(UpdateCommand, SaysThatNothingChanged) {
  ASSERT_EQ(Run({"--option", "lr=1e-4", "resnet"}), 0) << err_;
  EXPECT_EQ(out_, "job resnet: nothing changed: all options have these values already\n");
}

TEST_F(UpdateCommand, SendsNewValuesAndSaysWhatChangedAndFromWhenTheyHold) {
  coordinator_.Change({"beta1 from 0.9 to 0.8", "lr from 0.001 to 0.0001"});
  ASSERT_EQ(Run({"--option", "lr=1e-4", "resnet", "--option", "beta1=0.8"}), 0) << err_;
  EXPECT_EQ(out_,
            "job resnet: the new options hold from epoch 7 on\n"
            "  beta1 from 0.9 to 0.8\n"
            "  lr from 0.001 to 0.0001\n");
  const v1::UpdateJobRequest request = coordinator_.request();
  EXPECT_EQ(request.job(), "resnet");
  ASSERT_EQ(request.optimizer_size(), 2);
  EXPECT_EQ(request.optimizer(0).name(), "beta1");
  EXPECT_EQ(request.optimizer(0).value(), 0.8);
  EXPECT_EQ(request.optimizer(1).name(), "lr");
  EXPECT_EQ(request.optimizer(1).value(), 1e-4);
  EXPECT_FALSE(request.has_schedule());
  EXPECT_FALSE(request.has_mode());
}

TEST_F(UpdateCommand, SendsASchedule) {
  ASSERT_EQ(Run({"resnet", "--schedule", "cosine", "--schedule-option",
                 "total_steps=1000", "--schedule-option", "warmup_steps=5"}),
            0)
      << err_;
  const v1::UpdateJobRequest request = coordinator_.request();
  EXPECT_EQ(request.optimizer_size(), 0);
  EXPECT_EQ(request.schedule().name(), "cosine");
  ASSERT_EQ(request.schedule().options_size(), 2);
  EXPECT_EQ(request.schedule().options(0).name(), "total_steps");
  EXPECT_EQ(request.schedule().options(0).value(), 1000);
}

TEST_F(UpdateCommand, SendsAMode) {
  ASSERT_EQ(Run({"resnet", "--mode", "ssp:4"}), 0) << err_;
  const v1::UpdateJobRequest request = coordinator_.request();
  EXPECT_EQ(request.optimizer_size(), 0);
  EXPECT_FALSE(request.has_schedule());
  EXPECT_EQ(request.mode().name(), "ssp");
  ASSERT_EQ(request.mode().options_size(), 1);
  EXPECT_EQ(request.mode().options(0).name(), "staleness");
  EXPECT_EQ(request.mode().options(0).value(), 4);
}

TEST_F(UpdateCommand, SendsGoalsWhichHoldFromNowOn) {
  coordinator_.Change({"goals from none to step_p95_ms<=150"});
  ASSERT_EQ(Run({"resnet", "--goals", "step_p95_ms<=150"}), 0) << err_;
  EXPECT_EQ(coordinator_.request().goals(), "step_p95_ms<=150");
  EXPECT_EQ(out_,
            "job resnet: the new goals hold from now on\n"
            "  goals from none to step_p95_ms<=150\n");
  ASSERT_EQ(Run({"resnet", "--goals", "none"}), 0) << err_;
  EXPECT_EQ(coordinator_.request().goals(), "none");
  ASSERT_EQ(Run({"resnet", "--option", "lr=1"}), 0) << err_;
  EXPECT_FALSE(coordinator_.request().has_goals());
}

TEST_F(UpdateCommand, SendsAnswers) {
  coordinator_.Change({"answers from none to staleness<=8"});
  ASSERT_EQ(Run({"resnet", "--answers", "staleness<=8"}), 0) << err_;
  EXPECT_EQ(coordinator_.request().answers(), "staleness<=8");
  EXPECT_FALSE(coordinator_.request().has_goals());
  EXPECT_THAT(out_, HasSubstr("the new answers hold from now on\n"));
}

TEST_F(UpdateCommand, AsksNobodyForGoalsThatMakeNoSense) {
  coordinator_.Answer(absl::InternalError("was asked"));
  EXPECT_EQ(Run({"resnet", "--answers", ""}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("write none for no answers"));
  EXPECT_EQ(Run({"resnet", "--answers", "codec"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("'codec' is not an answer"));
  EXPECT_EQ(Run({"resnet", "--goals", ""}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("write none for no goals"));
  EXPECT_EQ(Run({"resnet", "--goals", "step_p95<=150"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("did you mean 'step_p95_ms'"));
}

TEST_F(UpdateCommand, AsksNobodyForAModeThatThereIsNot) {
  coordinator_.Answer(absl::InternalError("was asked"));
  EXPECT_EQ(Run({"resnet", "--mode", "spp"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("did you mean 'ssp'"));
  EXPECT_EQ(Run({"resnet", "--mode", "ssp:65"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("64"));
}

TEST_F(UpdateCommand, LeavesItToTheCoordinatorToRefuseNan) {
  coordinator_.Answer(absl::InvalidArgumentError("lr is nan"));
  EXPECT_EQ(Run({"resnet", "--option", "lr=nan"}), kExitUsage);
  EXPECT_EQ(err_, "syncline: error: lr is nan\n");
  EXPECT_TRUE(std::isnan(coordinator_.request().optimizer(0).value()));
}

TEST_F(UpdateCommand, EndsWithTheCodeOfTheAnswer) {
  coordinator_.Answer(absl::NotFoundError("no job 'resnet' is running"));
  EXPECT_EQ(Run({"resnet", "--option", "lr=1"}), kExitFatal);
  EXPECT_THAT(err_, HasSubstr("no job 'resnet'"));
  EXPECT_EQ(out_, "");
}

// As fast as status, because a wrong address should show soon.
TEST_F(UpdateCommand, SaysSoonThatNobodyIsThere) {
  running_.Shutdown(absl::ZeroDuration());
  const absl::Time before = absl::Now();
  EXPECT_EQ(Run({"resnet", "--option", "lr=1"}), kExitUnreachable);
  EXPECT_LT(absl::Now() - before, absl::Seconds(9));
  EXPECT_THAT(err_, HasSubstr(running_.address));
}

TEST_F(UpdateCommand, AsksNobodyWhenItIsAskedWrong) {
  coordinator_.Answer(absl::InternalError("was asked"));
  EXPECT_EQ(Run({"--option", "lr=1"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("name of a running job"));
  EXPECT_EQ(Run({"resnet"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("nothing to change"));
  EXPECT_EQ(Run({"resnet", "--option", "lr"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("'lr' is not an option"));
  EXPECT_EQ(Run({"resnet", "--option", "lr=1", "--schedule-option", "gamma=1"}),
            kExitUsage);
  EXPECT_THAT(err_, HasSubstr("needs --schedule"));
}

}  // namespace
}  // namespace syncline
