#include "server/admin/metrics.h"

#include <gmock/gmock.h>

#include <string>

#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Shown(const prometheus::Registry& registry) {
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

TEST(Metrics, CountRecoveriesByCauseAndForgetThemWithTheJob) {
  prometheus::Registry registry;
  Metrics metrics(registry);
  metrics.SetRecoveries(7, "backup", 1, absl::Seconds(1));
  EXPECT_THAT(Shown(registry), Not(HasSubstr("cause="))) << "the job has no name yet";
  metrics.NameJob(7, "bert");
  metrics.SetRecoveries(7, "backup", 0, absl::ZeroDuration());
  EXPECT_THAT(
      Shown(registry),
      HasSubstr(R"(syncline_recoveries_total{cause="backup",job_name="bert"} 0)"));
  metrics.SetRecoveries(7, "backup", 2, absl::Seconds(2.5));
  metrics.SetRecoveries(7, "backup", 2, absl::Seconds(2.5));
  EXPECT_THAT(
      Shown(registry),
      HasSubstr(R"(syncline_recoveries_total{cause="backup",job_name="bert"} 2)"));
  EXPECT_THAT(
      Shown(registry),
      HasSubstr(
          R"(syncline_recovery_seconds_total{cause="backup",job_name="bert"} 2.5)"));
  metrics.ForgetJob(7);
  EXPECT_THAT(Shown(registry), Not(HasSubstr("cause=")));
}

TEST(Metrics, TrafficOfTwoJobsNeverMixesAndEndsWithItsJob) {
  prometheus::Registry registry;
  Metrics metrics(registry);
  metrics.NameJob(1, "bert");
  metrics.NameJob(2, "resnet");
  const auto bert = metrics.TrafficOf(1);
  const auto resnet = metrics.TrafficOf(2);
  bert->CountPush(PushResult::kCounted, 100);
  resnet->CountPush(PushResult::kRepeated, 7);
  metrics.ObserveStep(2, absl::Milliseconds(3));
  metrics.Refresh();
  for (const char* line : {R"(pushed_bytes_total{job_name="bert"} 100)",
                           R"(pushed_bytes_total{job_name="resnet"} 7)",
                           R"(pushes_total{job_name="resnet",result="repeated"} 1)",
                           R"(step_seconds_count{job_name="bert"} 0)",
                           R"(step_seconds_count{job_name="resnet"} 1)"}) {
    EXPECT_THAT(Shown(registry), HasSubstr(line));
  }
  metrics.ForgetJob(1);
  bert->CountPush(PushResult::kCounted, 100);  // an engine that has not heard of it yet
  metrics.ObserveStep(1, absl::Milliseconds(3));
  metrics.Refresh();
  EXPECT_THAT(Shown(registry), Not(HasSubstr("bert")));
  EXPECT_THAT(Shown(registry), HasSubstr(R"(pushed_bytes_total{job_name="resnet"} 7)"));
}

TEST(Metrics, TrafficOfASuccessorOfTheSameNameBeginsAnew) {
  prometheus::Registry registry;
  Metrics metrics(registry);
  metrics.NameJob(1, "bert");
  const auto before = metrics.TrafficOf(1);
  before->CountPublished(100);
  metrics.NameJob(2, "bert");
  metrics.TrafficOf(2)->CountPublished(7);
  before->CountPublished(100);
  metrics.Refresh();
  EXPECT_THAT(Shown(registry), HasSubstr(R"(published_bytes_total{job_name="bert"} 7)"));
}

TEST(Metrics, OfACoordinatorThereIsNoTraffic) {
  prometheus::Registry registry;
  Metrics metrics(registry);
  metrics.NameJob(1, "bert");
  EXPECT_THAT(Shown(registry), Not(HasSubstr("syncline_pushes_total{")));
  EXPECT_NE(metrics.TrafficOf(7), nullptr) << "it has no name here";
}

}  // namespace
}  // namespace syncline
