// Hellos of many workers that declare the same job.
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/declaration_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

class SameHellos : public ::testing::Test {
 protected:
  SameHellos() {
    job_.name = "job";
    job_.workers = kWorkers;
    for (uint32_t i = 0; i < kTensors; ++i) {
      job_.tensors.push_back({.name = absl::StrCat("tensor", i), .shape = {1000}});
    }
  }

  // Returns the status with which a hello ends, if it does.
  std::optional<absl::Status> Say(ConnectionId connection, const WorkerHello& hello) {
    const auto outputs = specs_.Apply(coordinator_, FromMember{connection, hello}, {});
    for (const CoordinatorOutput& output : outputs) {
      if (const auto* close = std::get_if<CloseMember>(&output)) return close->status;
    }
    return std::nullopt;
  }

  static constexpr uint32_t kWorkers = 200;
  static constexpr uint32_t kTensors = 5000;

  DeclaredSpecs specs_;
  JobSpec job_;
  Coordinator coordinator_{{}};
};

// This would take many times as long if each declaration were sent or validated.
TEST_F(SameHellos, AreDigestedAndAnyOtherIsComparedOrValidated) {
  WorkerHello hello = specs_.Hello(job_, {.name = "x"});
  for (hello.rank = 0; hello.rank < kWorkers; ++hello.rank) {
    EXPECT_FALSE(Say(100 + hello.rank, hello).has_value());
  }
  EXPECT_EQ(coordinator_.View({}).jobs.at(0).members.size(), kWorkers);

  job_.tensors.back().shape = {1001};
  EXPECT_THAT(std::string(Say(5000, specs_.Hello(job_, {.rank = 7}))->message()),
              HasSubstr("tensor 'tensor4999' has shape [1000]"));
  job_.tensors.back().name = "";
  EXPECT_TRUE(absl::IsInvalidArgument(*Say(5001, specs_.Hello(job_, {.rank = 7}))));
}

// The same options, some of them given although they are the defaults.
TEST_F(SameHellos, ThatMeanTheSameInOtherWordsAreOfOneJob) {
  job_.training.optimizer = {.name = "sgd", .options = {{"lr", 0.5}}};
  EXPECT_FALSE(Say(1, specs_.Hello(job_, {.rank = 0})).has_value());
  job_.training.optimizer.options["momentum"] = 0;
  EXPECT_FALSE(Say(2, specs_.Hello(job_, {.rank = 1})).has_value());
  EXPECT_EQ(coordinator_.View({}).jobs.at(0).members.size(), 2u);
}

}  // namespace
}  // namespace syncline
