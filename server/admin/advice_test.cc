#include "server/admin/advice.h"

#include <array>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Makes a worker. `ms`: milliseconds of compute, encode, push, others, publish, decode.
WorkerFigures Worker(uint32_t rank, const std::array<double, 6>& ms) {
  WorkerFigures worker{.rank = rank, .phases = {.steps = 1}};
  for (size_t i = 0; i < ms.size(); ++i) worker.phases.seconds[i] = ms[i] / 1e3;
  return worker;
}
// Makes a server. `ms`: milliseconds of hold, decide, step, publish.
ServerFigures Server(uint32_t number, const std::array<double, 4>& ms) {
  ServerFigures server{.server = number, .phases = {.steps = 1}};
  for (size_t i = 0; i < ms.size(); ++i) server.phases.seconds[i] = ms[i] / 1e3;
  return server;
}
JobFigures JobOf(std::vector<WorkerFigures> workers, std::vector<ServerFigures> servers) {
  return {.push_codec = "fp32",
          .publish_codec = "fp32",
          .bytes_per_step = 1e7,
          .workers = std::move(workers),
          .servers = std::move(servers)};
}

TEST(Advice, AJobThatComputesIsLeftAlone) {
  const auto all =
      Advise(JobOf({Worker(0, {95, 1, 1, 1, 1, 1}), Worker(1, {92, 1, 1, 4, 1, 1})},
                   {Server(0, {4, 0, 2, 1})}));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].bound, JobBound::kCompute);
  EXPECT_NEAR(all[0].share, 0.92, 1e-9);
  EXPECT_NEAR(all[0].gain, 0.08, 1e-9);
}

TEST(Advice, AStragglerIsNamedWithWhatItsEndWouldSave) {
  const JobFigures job =
      JobOf({Worker(0, {20, 1, 2, 55, 2, 0}), Worker(1, {22, 1, 2, 53, 2, 0}),
             Worker(2, {76, 1, 2, 0.5, 0.5, 0})},
            {Server(0, {55, 0, 2, 1})});
  const auto all = Advise(job);
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all[0].bound, JobBound::kStraggler);
  EXPECT_EQ(all[0].sure, Advice::Sure::kVery);
  EXPECT_NEAR(all[0].gain, 54.0 / 80, 1e-9) << "until the next slowest is ready";
  EXPECT_THAT(all[0].what, HasSubstr("worker 2 computes for 76 ms"));
}

TEST(Advice, AStragglerBehindASlowCableIsToldFromOneThatComputes) {
  const auto advice = AdviseOnStraggler(
      JobOf({Worker(0, {10, 0, 5, 60, 5, 0}), Worker(1, {10, 0, 65, 1, 4, 0})}, {}));
  ASSERT_TRUE(advice.has_value());
  EXPECT_THAT(advice->what, HasSubstr("worker 1 pushes for 65 ms"));
  EXPECT_THAT(advice->change, HasSubstr("network"));
}

TEST(Advice, WorkersThatAreEquallyFastHaveNoStraggler) {
  EXPECT_FALSE(
      AdviseOnStraggler(
          JobOf({Worker(0, {50, 0, 5, 5, 0, 0}), Worker(1, {54, 0, 5, 1, 0, 0})}, {}))
          .has_value());
  EXPECT_FALSE(
      AdviseOnStraggler(JobOf({Worker(0, {50, 0, 5, 5, 0, 0})}, {})).has_value());
}

// ---- Measured links ----

// Workers that wait for 60 of 100 ms until the servers have their gradients of 66 kB.
JobFigures BehindLinks(double typical, double slowest) {
  JobFigures job =
      JobOf({Worker(0, {40, 0, 60, 0, 0, 0}), Worker(1, {40, 0, 60, 0, 0, 0}),
             Worker(2, {40, 0, 60, 0, 0, 0})},
            {Server(0, {60, 0, 0, 0})});
  job.bytes_per_step = 100e3;
  job.pushed_bytes_per_step = 66e3;
  for (WorkerFigures& worker : job.workers) worker.sent_bytes_per_second = typical;
  job.workers[1].sent_bytes_per_second = slowest;
  return job;
}

TEST(Advice, OnASlowLinkNamesItsSpeedAndTheTimeThatTheBytesNeed) {
  const auto advice = AdviseOnUplink(BehindLinks(1.25e6, 1.2e6));
  ASSERT_TRUE(advice.has_value());
  EXPECT_EQ(advice->sure, Advice::Sure::kVery);
  EXPECT_NEAR(advice->gain, 0.74 * 0.0528 / 0.1, 1e-9) << "not of all 60 ms";
  EXPECT_THAT(advice->what,
              HasSubstr("its 0.066 MB need 53 ms at 10 Mbit/s, as measured"));
  EXPECT_THAT(advice->what, Not(HasSubstr("is slower")));
  EXPECT_THAT(advice->change, HasSubstr("push=int8"));
}

TEST(Advice, OnALinkThatIsBusyWhileWorkersComputePromisesNoMoreThanTheWait) {
  const auto advice = AdviseOnUplink(BehindLinks(0.5e6, 0.5e6));
  ASSERT_TRUE(advice.has_value());
  EXPECT_NEAR(advice->gain, 0.74 * 0.6, 1e-9);
}

TEST(Advice, NamesTheOneLinkThatIsSlower) {
  const auto advice = AdviseOnUplink(BehindLinks(1.25e6, 0.25e6));
  ASSERT_TRUE(advice.has_value());
  EXPECT_THAT(advice->what, HasSubstr("the link of worker 1 is slower: 2 Mbit/s"));
  EXPECT_THAT(advice->change, HasSubstr("or mend the link of worker 1"));
}

TEST(Advice, OnWaitsThatAFastLinkDoesNotExplainIsUnsureAndPromisesLittle) {
  const auto advice = AdviseOnUplink(BehindLinks(125e6, 125e6));
  ASSERT_TRUE(advice.has_value());
  EXPECT_EQ(advice->sure, Advice::Sure::kLittle);
  EXPECT_NEAR(advice->gain, 0.74 * 0.000528 / 0.1, 1e-9);
  EXPECT_THAT(advice->what, HasSubstr("1e+03 Mbit/s"));
  EXPECT_THAT(advice->change, HasSubstr("find what holds these bytes up"));
}

TEST(Advice, TheWayDownHasItsOwnBytesAndSpeed) {
  JobFigures job = JobOf({Worker(0, {40, 0, 1, 0, 60, 0})}, {Server(0, {0, 0, 0, 0})});
  job.bytes_per_step = 100e3;
  job.pushed_bytes_per_step = 66e3;
  job.workers[0].sent_bytes_per_second = 125e6;
  job.workers[0].received_bytes_per_second = 0.625e6;
  const auto advice = AdviseOnDownlink(job);
  ASSERT_TRUE(advice.has_value());
  EXPECT_NEAR(advice->gain, 0.74 * 0.0544 / 0.101, 1e-9);
  EXPECT_THAT(advice->what, HasSubstr("its 0.034 MB need 54 ms at 5 Mbit/s"));
}

TEST(Advice, AStragglerBehindASlowCableIsNamedWithItsSpeed) {
  JobFigures job =
      JobOf({Worker(0, {10, 0, 5, 60, 5, 0}), Worker(1, {10, 0, 65, 1, 4, 0})}, {});
  job.workers[1].sent_bytes_per_second = 1.25e6;
  EXPECT_THAT(AdviseOnStraggler(job)->what,
              HasSubstr("worker 1 pushes for 65 ms of a step at 10 Mbit/s"));
}

// A worker that nobody waits for, as in mode ssp, delays nobody.
TEST(Advice, NobodyWaitsForASlowWorkerThatIsNoStraggler) {
  EXPECT_FALSE(
      AdviseOnStraggler(
          JobOf({Worker(0, {20, 0, 1, 2, 0, 0}), Worker(1, {80, 0, 1, 1, 0, 0})}, {}))
          .has_value());
}

TEST(Advice, AWayUpIsTheUplinkUnlessTheServersWorkMeanwhile) {
  JobFigures job =
      JobOf({Worker(0, {10, 0, 80, 2, 8, 0}), Worker(1, {10, 0, 78, 4, 8, 0})},
            {Server(0, {70, 0, 3, 5}), Server(1, {70, 0, 3, 5})});
  auto all = Advise(job);
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all[0].bound, JobBound::kUplink);
  EXPECT_NEAR(all[0].share, 0.77, 1e-9);
  EXPECT_NEAR(all[0].gain, 0.77 * 0.74, 1e-9) << "int8 is about a quarter of FP32";
  EXPECT_THAT(all[0].change, HasSubstr("push=int8"));
  for (ServerFigures& server : job.servers) server.phases[ServerPhase::kStep] = 0.085;
  all = Advise(job);
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all[0].bound, JobBound::kServerCpu);
  EXPECT_EQ(all[0].sure, Advice::Sure::kVery);
  EXPECT_FALSE(AdviseOnUplink(job).has_value());
}

TEST(Advice, TheDownlinkIsWhatEvenTheSlowestWorkerWaitsFor) {
  const auto waits = AdviseOnDownlink(
      JobOf({Worker(0, {10, 0, 5, 5, 60, 0}), Worker(1, {10, 0, 5, 5, 60, 0})}, {}));
  ASSERT_TRUE(waits.has_value());
  EXPECT_NEAR(waits->share, 0.75, 1e-9);
  // The other workers wait for the last tensors of the slow worker, not for the network.
  EXPECT_FALSE(
      AdviseOnDownlink(
          JobOf({Worker(0, {10, 0, 5, 5, 60, 0}), Worker(1, {70, 0, 5, 1, 4, 0})}, {}))
          .has_value());
}

TEST(Advice, WithinAHostThereIsNoWire) {
  JobFigures job =
      JobOf({Worker(0, {10, 0, 60, 5, 10, 0}), Worker(1, {10, 0, 60, 5, 10, 0})},
            {Server(0, {0, 0, 20, 1})});
  EXPECT_EQ(Advise(job).front().bound, JobBound::kUplink);
  job.is_one_host = true;
  const auto all = Advise(job);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].bound, JobBound::kServerCpu);
  EXPECT_EQ(all[0].sure, Advice::Sure::kFairly);
  EXPECT_NEAR(all[0].share, 75.0 / 85, 1e-9);
}

TEST(Advice, WaitingForADecisionIsNoWorkOfAServerOfThisHost) {
  JobFigures job =
      JobOf({Worker(0, {20, 1, 2, 85, 1, 0}), Worker(1, {20, 1, 2, 85, 1, 0})},
            {Server(0, {1, 81, 0.6, 1})});
  job.is_one_host = true;
  const auto all = Advise(job);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].bound, JobBound::kDecision);
}

TEST(Advice, DecisionsAndFewServersHaveTheirRules) {
  const auto decision = AdviseOnDecision(
      JobOf({Worker(0, {50, 0, 5, 40, 5, 0})}, {Server(0, {0, 30, 2, 1})}));
  ASSERT_TRUE(decision.has_value());
  EXPECT_NEAR(decision->gain, 0.3, 1e-9);
  std::vector<WorkerFigures> workers;
  for (uint32_t rank = 0; rank < 8; ++rank) {
    workers.push_back(Worker(rank, {10, 0, 40, 5, 45, 0}));
  }
  const JobFigures few =
      JobOf(workers, {Server(0, {0, 0, 1, 1}), Server(1, {0, 0, 1, 1})});
  const auto servers = AdviseOnFewServers(few);
  ASSERT_TRUE(servers.has_value());
  EXPECT_NEAR(servers->gain, 0.83 * 0.75, 1e-9);
  EXPECT_EQ(Advise(few).front().bound, JobBound::kFewServers);
  EXPECT_FALSE(AdviseOnFewServers(
                   JobOf({Worker(0, {10, 0, 40, 5, 45, 0})}, {Server(0, {0, 0, 1, 1})}))
                   .has_value());
}

TEST(Advice, ACodecThatTakesMoreThanItSavesDoesNotPay) {
  JobFigures job = JobOf({Worker(0, {20, 60, 2, 4, 2, 12})}, {Server(0, {0, 0, 1, 1})});
  job.push_codec = "topk:ratio=0.01";
  job.publish_codec = "int8";
  job.compression = 4;
  const auto wasted = AdviseOnCodec(job);
  ASSERT_TRUE(wasted.has_value());
  EXPECT_EQ(wasted->bound, JobBound::kCodec);
  EXPECT_THAT(wasted->change, HasSubstr("does not pay"));
  EXPECT_NEAR(wasted->gain, 0.64, 1e-9) << "2 ms of wire would become 8";
  job.compression = 80;
  const auto slow = AdviseOnCodec(job);
  ASSERT_TRUE(slow.has_value());
  EXPECT_THAT(slow->change, HasSubstr("cheaper codec"));
  job.workers[0] = Worker(0, {90, 5, 1, 2, 1, 1});
  EXPECT_FALSE(AdviseOnCodec(job).has_value());
}

TEST(Advice, SmallStepsAreSmallInBytesAndTime) {
  JobFigures job = JobOf({Worker(0, {0.1, 0.05, 0.1, 0.3, 0.05, 0})}, {});
  job.bytes_per_step = 2000;
  EXPECT_TRUE(AdviseOnSmallSteps(job).has_value());
  job.bytes_per_step = 2e6;
  EXPECT_FALSE(AdviseOnSmallSteps(job).has_value());
}

TEST(Advice, WithoutWorkersOrStepsThereIsNone) {
  EXPECT_TRUE(Advise({}).empty());
  EXPECT_TRUE(
      Advise(JobOf({Worker(0, {0, 0, 0, 0, 0, 0})}, {Server(0, {0, 0, 0, 0})})).empty());
}

}  // namespace
}  // namespace syncline
