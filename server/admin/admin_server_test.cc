#include "server/admin/admin_server.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "prometheus/registry.h"
#include "server/admin/job_metrics.h"
#include "server/admin/metrics.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

AdminOptions AnyPort() {
  AdminOptions options;
  options.listen = "127.0.0.1:0";
  options.title = "coordinator";
  return options;
}

struct Page {
  int status = 0;
  std::string type;
  std::string body;
};

Page Get(const AdminServer& server, const std::string& path) {
  httplib::Client client("127.0.0.1", server.port());
  const auto result = client.Get(path);
  if (!result) return {};
  return {result->status, result->get_header_value("Content-Type"), result->body};
}

TEST(AdminServer, ServesEveryPage) {
  prometheus::Registry registry;
  AdminPages pages;
  pages.status_json = [] { return R"({"epoch":3})"; };
  AdminServer server(AnyPort(), registry, pages);
  ASSERT_EQ(server.Start(), absl::OkStatus());
  EXPECT_EQ(server.address(), absl::StrCat("127.0.0.1:", server.port()));
  EXPECT_EQ(Get(server, "/livez").status, 200);
  EXPECT_EQ(Get(server, "/status").body, R"({"epoch":3})");
  EXPECT_EQ(Get(server, "/status").type, "application/json");
  EXPECT_THAT(Get(server, "/metrics").type, HasSubstr("text/plain; version=0.0.4"));
  const Page start = Get(server, "/");
  for (const char* path : {"/metrics", "/livez", "/readyz", "/status"}) {
    EXPECT_THAT(start.body, HasSubstr(absl::StrCat("href=\"", path, "\"")));
  }
  EXPECT_THAT(start.body, HasSubstr("coordinator"));
  EXPECT_EQ(Get(server, "/nothing").status, 404);
}

TEST(AdminServer, IsReadyOnlyWithoutReasons) {
  prometheus::Registry registry;
  std::atomic<bool> waiting = true;
  AdminPages pages;
  pages.not_ready_because = [&]() -> std::vector<std::string> {
    if (!waiting) return {};
    return {"waiting for worker 3 of 4, 12 s", "no server yet"};
  };
  AdminServer server(AnyPort(), registry, pages);
  ASSERT_TRUE(server.Start().ok());
  const Page before = Get(server, "/readyz");
  EXPECT_EQ(before.status, 503);
  EXPECT_EQ(before.body, "waiting for worker 3 of 4, 12 s\nno server yet\n");
  waiting = false;
  EXPECT_EQ(Get(server, "/readyz").status, 200);
}

TEST(AdminServer, RefusesAPortThatIsInUse) {
  prometheus::Registry registry;
  AdminServer first(AnyPort(), registry, {});
  ASSERT_TRUE(first.Start().ok());
  AdminOptions same = AnyPort();
  same.listen = first.address();
  AdminServer second(same, registry, {});
  const absl::Status status = second.Start();
  EXPECT_EQ(FailureOf(status), Failure::kPortInUse);
  EXPECT_THAT(std::string(status.message()), HasSubstr(first.address()));
}

TEST(AdminServer, StopsWithoutHavingStarted) {
  prometheus::Registry registry;
  AdminServer server(AnyPort(), registry, {});
}

class MetricsTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(server_.Start().ok()); }
  std::string Scrape() { return Get(server_, "/metrics").body; }
  AdminPages Pages() {
    AdminPages pages;
    pages.refresh_metrics = [this] { metrics_.Refresh(); };
    return pages;
  }

  prometheus::Registry registry_;
  Metrics metrics_{registry_};
  AdminServer server_{AnyPort(), registry_, Pages()};
};

TEST_F(MetricsTest, CountsWhatItIsTold) {
  metrics_.NameJob(1, "resnet");
  const std::shared_ptr<JobTraffic> traffic = metrics_.TrafficOf(1);
  traffic->CountPush(PushResult::kCounted, 100);
  traffic->CountPush(PushResult::kCounted, 20);
  traffic->CountPush(PushResult::kRepeated, 3);
  traffic->CountRefused(RefuseCode::kStaleEpoch);
  traffic->CountRefused(RefuseCode::kNotSeeded);
  traffic->CountRefused(RefuseCode::kTooLate);
  traffic->CountRefused(RefuseCode::kNone);
  traffic->CountRefused(static_cast<RefuseCode>(999));
  traffic->CountPublished(64);
  metrics_.SetStep(1, 7);
  metrics_.SetEpoch(1, 2);
  metrics_.SetMembers(1, 4);
  metrics_.SetServerMemory(1024, 512);
  metrics_.ObserveStep(1, absl::Milliseconds(15));
  const std::string text = Scrape();
  for (const char* line :
       {"syncline_pushes_total{job_name=\"resnet\",result=\"counted\"} 2\n",
        "syncline_pushes_total{job_name=\"resnet\",result=\"repeated\"} 1\n",
        "syncline_pushed_bytes_total{job_name=\"resnet\"} 123\n",
        "syncline_refused_total{job_name=\"resnet\",reason=\"stale_epoch\"} 1\n",
        "syncline_refused_total{job_name=\"resnet\",reason=\"not_seeded\"} 1\n",
        "syncline_refused_total{job_name=\"resnet\",reason=\"too_late\"} 1\n",
        "syncline_refused_total{job_name=\"resnet\",reason=\"malformed\"} 0\n",
        "syncline_published_total{job_name=\"resnet\"} 1\n",
        "syncline_published_bytes_total{job_name=\"resnet\"} 64\n",
        "syncline_step{job_name=\"resnet\"} 7\n",
        "syncline_epoch{job_name=\"resnet\"} 2\n",
        "syncline_members{job_name=\"resnet\"} 4\n",
        "syncline_server_memory_bytes{kind=\"budget\"} 1024\n",
        "syncline_server_memory_bytes{kind=\"placed\"} 512\n",
        "syncline_step_seconds_bucket{job_name=\"resnet\",le=\"0.01\"} 0\n",
        "syncline_step_seconds_bucket{job_name=\"resnet\",le=\"0.02\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, HasSubstr("syncline_build_info{"));
  EXPECT_THAT(text, Not(HasSubstr("unknown_refusal")));
}

TEST_F(MetricsTest, KeepsJobsApart) {
  metrics_.NameJob(1, "resnet");
  metrics_.NameJob(2, "bert");
  metrics_.SetMembers(1, 4);
  metrics_.SetMembers(2, 8);
  metrics_.SetWorker(1, 0, {.diverged_blocks = 1});
  metrics_.SetWorker(2, 0, {.diverged_blocks = 2});
  std::string text = Scrape();
  for (const char* line :
       {"syncline_members{job_name=\"resnet\"} 4\n",
        "syncline_members{job_name=\"bert\"} 8\n",
        "syncline_worker_diverged_blocks{job_name=\"resnet\",rank=\"0\"} 1\n",
        "syncline_worker_diverged_blocks{job_name=\"bert\",rank=\"0\"} 2\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  metrics_.ForgetJob(1);
  metrics_.SetMembers(1, 4);  // after the job was forgotten
  text = Scrape();
  EXPECT_THAT(text, Not(HasSubstr("resnet")));
  EXPECT_THAT(text, HasSubstr("syncline_members{job_name=\"bert\"} 8\n"));
  // The next job has the same name. Later calls about the old one have no effect.
  metrics_.NameJob(3, "bert");
  metrics_.SetMembers(3, 2);
  metrics_.SetMembers(2, 8);
  metrics_.ForgetJob(2);
  EXPECT_THAT(Scrape(), HasSubstr("syncline_members{job_name=\"bert\"} 2\n"));
}

TEST_F(MetricsTest, EndsTheSeriesOfAWorkerThatLeft) {
  metrics_.NameJob(1, "a");
  metrics_.SetWorker(1, 0, {.heartbeat_age = absl::Seconds(1)});
  metrics_.SetWorker(1, 3,
                     {.heartbeat_age = absl::Milliseconds(2500),
                      .compression = 31.5,
                      .encode_ns = 0.5,
                      .decode_ns = 0.25,
                      .residual_ratio = 3,
                      .diverged_blocks = 2});
  EXPECT_THAT(
      Scrape(),
      HasSubstr(
          "syncline_worker_heartbeat_age_seconds{job_name=\"a\",rank=\"3\"} 2.5\n"));
  EXPECT_THAT(
      Scrape(),
      HasSubstr("syncline_worker_compression_ratio{job_name=\"a\",rank=\"3\"} 31.5\n"));
  for (const char* line :
       {"encode_seconds_per_value{job_name=\"a\",rank=\"3\"} 5e-10\n",
        "decode_seconds_per_value{job_name=\"a\",rank=\"3\"} 2.5e-10\n",
        "residual_ratio{job_name=\"a\",rank=\"3\"} 3\n"}) {
    EXPECT_THAT(Scrape(), HasSubstr(line));
  }
  EXPECT_THAT(
      Scrape(),
      HasSubstr("syncline_worker_diverged_blocks{job_name=\"a\",rank=\"3\"} 2\n"));
  metrics_.ForgetWorker(1, 3);
  metrics_.ForgetWorker(1, 3);
  EXPECT_THAT(Scrape(), Not(HasSubstr("rank=\"3\"")));
  EXPECT_THAT(Scrape(), HasSubstr("rank=\"0\""));
}

TEST_F(MetricsTest, PhasesGrowThroughTheLivesOfAWorker) {
  metrics_.NameJob(1, "a");
  metrics_.SetWorker(1, 2, {.phases = {.steps = 4, .seconds = {1.5, 0, 0.25}}});
  metrics_.SetWorker(1, 2, {.phases = {.steps = 6, .seconds = {2, 0, 0.25}}});
  // The next process of the worker counts from 0.
  metrics_.SetWorker(1, 2, {.phases = {.steps = 1, .seconds = {0.5, 0, 0.125}}});
  metrics_.SetServerPhases(1, {.steps = 7, .seconds = {0.5, 0, 0.25, 2}});
  metrics_.SetServerPhases(9, {.steps = 7});  // an unknown job
  const std::string text = Scrape();
  for (const char* line :
       {"syncline_step_phase_steps_total{job_name=\"a\",rank=\"2\"} 7\n",
        "syncline_step_phase_seconds_total{job_name=\"a\",phase=\"compute\",rank=\"2\"} "
        "2.5\n",
        "syncline_step_phase_seconds_total{job_name=\"a\",phase=\"push\",rank=\"2\"} "
        "0.375\n",
        "syncline_server_phase_steps_total{job_name=\"a\"} 7\n",
        "syncline_server_phase_seconds_total{job_name=\"a\",phase=\"publish\"} 2\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  metrics_.ForgetWorker(1, 2);
  EXPECT_THAT(Scrape(), Not(HasSubstr("rank=\"2\"")));
  metrics_.ForgetJob(1);
  EXPECT_THAT(Scrape(), Not(HasSubstr("job_name=\"a\"")));
}

TEST_F(MetricsTest, PleasesPromtool) {
  if (std::system("promtool --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP()
        << "SKIPPED: no promtool, names and types of the metrics are not checked";
  }
  metrics_.NameJob(1, "a \"name\"");
  metrics_.SetWorker(1, 0, {.heartbeat_age = absl::Seconds(1)});
  metrics_.TrafficOf(1)->CountPublished(1);
  JobMetrics jobs(registry_);
  jobs.Show(
      {.jobs = {
           {.job = 1, .name = "a \"name\"", .phase = JobPhase::kRunning, .loss = 1}}});
  const TempDirectory directory;
  const std::string path = directory.File("metrics.txt");
  std::ofstream(path) << Scrape();
  const std::string command = absl::StrCat("promtool check metrics < ", path, " 2>&1");
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string complaints;
  for (int c = 0; (c = fgetc(pipe)) != EOF;) complaints.push_back(static_cast<char>(c));
  EXPECT_EQ(pclose(pipe), 0) << complaints;
  EXPECT_EQ(complaints, "");
}

}  // namespace
}  // namespace syncline
