#include "cli/exit_reports.h"

#include <vector>

#include "comm/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {
namespace {

class ListeningCoordinator final : public v1::Coordinator::Service {
 public:
  grpc::Status ReportExit(grpc::ServerContext*, const v1::ReportExitRequest* request,
                          v1::ReportExitReply*) override {
    absl::MutexLock lock(&mutex_);
    heard_.push_back(*request);
    return {grpc::StatusCode::NOT_FOUND, "no such job"};
  }
  grpc::Status ReportStop(grpc::ServerContext*, const v1::ReportStopRequest* request,
                          v1::ReportStopReply*) override {
    absl::MutexLock lock(&mutex_);
    stops_.push_back(*request);
    return grpc::Status::OK;
  }
  std::vector<v1::ReportStopRequest> stops() {
    absl::MutexLock lock(&mutex_);
    return stops_;
  }
  std::vector<v1::ReportExitRequest> heard() {
    absl::MutexLock lock(&mutex_);
    return heard_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<v1::ReportStopRequest> stops_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::ReportExitRequest> heard_ ABSL_GUARDED_BY(mutex_);
};

TEST(ExitReports, AreAllSentInTheirOrderBeforeItEnds) {
  ListeningCoordinator coordinator;
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.services = {&coordinator};
  const auto running = StartServer(options);
  ASSERT_TRUE(running.ok()) << running.status();
  {
    ExitReports reports(
        {.coordinator = running->address, .job = "bert", .run_id = "run"});
    reports.Add(ExitReport{
        .rank = 2, .how = "signal 9 (Killed)", .then = "started again (1 of 3)"});
    reports.Add(
        ExitReport{.rank = 1, .how = "exit code 3", .said = "no data \xff in Z\xfcrich"});
    reports.Add(StopReport{.ranks = {1, 4}, .why = "SIGTERM", .host = "Z\xfcrich"});
  }
  const auto heard = coordinator.heard();
  ASSERT_EQ(heard.size(), 2u) << "a refusal is no reason to stop";
  EXPECT_EQ(heard[0].job(), "bert");
  EXPECT_EQ(heard[0].run_id(), "run");
  EXPECT_EQ(heard[0].rank(), 2u);
  EXPECT_EQ(heard[0].how(), "signal 9 (Killed)");
  EXPECT_EQ(heard[0].then(), "started again (1 of 3)");
  EXPECT_EQ(heard[1].rank(), 1u);
  EXPECT_EQ(heard[1].said(), "no data \\xff in Z\\xfcrich");
  const auto stops = coordinator.stops();
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].job(), "bert");
  EXPECT_EQ(stops[0].run_id(), "run");
  EXPECT_THAT(stops[0].ranks(), ::testing::ElementsAre(1u, 4u));
  EXPECT_EQ(stops[0].why(), "SIGTERM");
  EXPECT_EQ(stops[0].host(), "Z\\xfcrich");
}

TEST(ExitReports, NobodyWhoAnswersHoldsUpNobody) {
  ExitReports reports({.coordinator = "127.0.0.1:1", .job = "bert"});
  for (uint32_t rank = 0; rank < 1000; ++rank) reports.Add(ExitReport{.rank = rank});
  // The destructor would take minutes if it tried to send them all.
}

}  // namespace
}  // namespace syncline
