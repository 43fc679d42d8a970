// Connects the members of `bench control` to a coordinator in this process. Messages are
// counted, not timed.
#include "cli/bench/control.h"

#include <memory>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/bench/bench.h"
#include "cli/bench/control_load.h"
#include "cli/bench/pace.h"
#include "comm/base/exit_codes.h"
#include "comm/base/limits.h"
#include "comm/rpc/server.h"
#include "gtest/gtest.h"
#include "server/service/coordinator_service.h"
#include "server/store/memory_store.h"

namespace syncline {
namespace {

class BenchControlTest : public ::testing::Test {
 protected:
  BenchControlTest() {
    CoordinatorServiceOptions options;
    options.store = &store_;
    options.coordinator.expected_servers = 2;
    service_ = *CoordinatorService::Create(std::move(options));
    ServerOptions server;
    server.listen = "127.0.0.1:0";
    server.services = {service_.get()};
    running_ = *StartServer(server);
  }
  ~BenchControlTest() override {
    service_->Stop();
    running_.Shutdown(absl::Seconds(5));
  }

  nlohmann::json Play(const std::string& scenario) {
    ControlLoadOptions load;
    load.coordinator = running_.address;
    load.scenario = scenario;
    load.workers = 20;
    load.servers = 2;
    load.tensors = 3;
    load.channels = 4;
    load.seconds = 2;
    load.on_mark = [this](std::string_view what) { marks_.emplace_back(what); };
    const auto report = RunControlLoad(load);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : nlohmann::json::object();
  }

  std::vector<std::string> marks_;
  MemoryStore store_;
  std::unique_ptr<CoordinatorService> service_;
  RunningServer running_;
};

TEST_F(BenchControlTest, AllWorkersOfAStartAreWelcomedAndFewHearOfWaiting) {
  const nlohmann::json report = Play("start");
  EXPECT_EQ(report["lost"], 0);
  const nlohmann::json& heard = report["received"]["kinds"];
  EXPECT_EQ(heard["worker_welcome"]["messages"], 20);
  EXPECT_EQ(heard["commit_epoch"]["messages"], 2);
  EXPECT_LE(heard["waiting"]["messages"], 20 * 3) << "a hello tells the newcomer alone";
  EXPECT_GE(report["sent"]["kinds"]["worker_hello"]["messages"], 20);
  EXPECT_GT(report["answer_seconds"]["max"], 0);
}

TEST_F(BenchControlTest, AllThatLiveHearOfATenthThatDies) {
  const nlohmann::json report = Play("death");
  EXPECT_EQ(report["lost"], 0) << "the dead are not counted as lost";
  EXPECT_GE(report["received"]["kinds"]["epoch_changed"]["messages"], 18);
}

TEST_F(BenchControlTest, SteadyMembersBeat) {
  const nlohmann::json report = Play("steady");
  EXPECT_EQ(report["lost"], 0);
  EXPECT_GE(report["sent"]["kinds"]["heartbeat"]["messages"], 1);
  EXPECT_EQ(report["promised_beats_per_second"], 22)
      << "20 workers and 2 servers, each s";
  EXPECT_GT(report["beats_per_second"], 0);
  EXPECT_EQ(marks_, (std::vector<std::string>{std::string(kScenarioBegins),
                                              std::string(kScenarioEnds)}));
  EXPECT_FALSE(report["received"]["kinds"].contains("epoch_changed"));
}

TEST(Pace, WorkTakesNothingFromTheRate) {
  absl::Duration now = absl::Seconds(7);
  Pace pace(now, absl::Milliseconds(10));
  for (int i = 0; i < 100; ++i) {
    now += absl::Milliseconds(i == 50 ? 95 : 5);  // late once
    now += pace.Rest(now);
  }
  EXPECT_EQ(now, absl::Seconds(8)) << "100 times each 10 ms";
}

TEST(Pace, OfALongPauseASecondIsMadeUpFor) {
  Pace pace(absl::ZeroDuration(), absl::Milliseconds(10));
  absl::Duration now = absl::Minutes(5);
  int at_once = 0;
  while (pace.Rest(now) == absl::ZeroDuration()) ++at_once;
  EXPECT_GE(at_once, 99);
  EXPECT_LE(at_once, 101);
}

TEST(BenchControlFlags, NonsenseIsRefused) {
  constexpr AddCommand kCommands[] = {AddBench};
  for (const char* flag : {"--scenario=party", "--workers=1", "--servers=0",
                           "--shards=1000", "--failure-timeout=0.1"}) {
    const std::vector<const char*> arguments = {"syncline", "bench", "control", flag};
    EXPECT_EQ(RunApp(arguments, kCommands), kExitUsage) << flag;
  }
}

}  // namespace
}  // namespace syncline
