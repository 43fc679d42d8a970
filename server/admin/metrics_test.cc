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

TEST(Metrics, OfTheWireAreTheSumOfAllEnginesByClass) {
  prometheus::Registry registry;
  Metrics metrics(registry);
  EXPECT_THAT(Shown(registry),
              HasSubstr(R"(syncline_wire_sent_bytes_total{class="background"} 0)"));
  const TrafficCounts first = {.sent_bytes = {1, 2, 3, 4},
                               .queued_bytes = {0, 50, 600, 0},
                               .waited_seconds = {0, 0.5, 0, 0},
                               .messages = {1, 1, 1, 1}};
  TrafficCounts later = first;
  later.sent_bytes[1] += 40;
  later.queued_bytes = {};
  later.waited_seconds[1] += 1;
  later.messages[1] += 2;
  metrics.CountWire({}, first);
  metrics.CountWire({}, first);  // of another engine
  metrics.CountWire(first, later);
  for (const char* line : {R"(syncline_wire_sent_bytes_total{class="control"} 2)",
                           R"(syncline_wire_sent_bytes_total{class="urgent"} 44)",
                           R"(syncline_wire_queued_bytes{class="other"} 600)",
                           R"(syncline_wire_queued_bytes{class="urgent"} 50)",
                           R"(syncline_wire_messages_total{class="urgent"} 4)",
                           R"(syncline_wire_wait_seconds_total{class="urgent"} 2)"}) {
    EXPECT_THAT(Shown(registry), HasSubstr(line));
  }
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
  // By an engine that does not yet know of it.
  bert->CountPush(PushResult::kCounted, 100);
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

TEST(Metrics, OfShardsEndWithTheJobAndGrowWhenAShardBeginsAnew) {
  prometheus::Registry registry;
  Metrics metrics(registry);
  metrics.SetShard(1, 0, {.step_seconds = 5});
  EXPECT_THAT(Shown(registry), Not(HasSubstr("shard="))) << "the job has no name here";
  metrics.NameJob(1, "bert");
  metrics.SetShard(1, 0, {.step_seconds = 5, .window_fill = 0.25});
  metrics.SetShard(1, 3, {.step_seconds = 2, .window_fill = 1});
  metrics.SetShard(1, 3, {.step_seconds = 2.5, .window_fill = 0.5});
  metrics.SetShard(1, 0, {.step_seconds = 1});
  for (const char* line :
       {R"(syncline_shard_step_seconds_total{job_name="bert",shard="0"} 6)",
        R"(syncline_shard_step_seconds_total{job_name="bert",shard="3"} 2.5)",
        R"(syncline_shard_window_fill_ratio{job_name="bert",shard="0"} 0)",
        R"(syncline_shard_window_fill_ratio{job_name="bert",shard="3"} 0.5)"}) {
    EXPECT_THAT(Shown(registry), HasSubstr(line));
  }
  metrics.ForgetJob(1);
  EXPECT_THAT(Shown(registry), Not(HasSubstr("shard=")));
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
