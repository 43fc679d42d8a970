// Hellos of many workers that say alike what their job is.
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/coordinator.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

// What a hello ends with, if it does.
std::optional<absl::Status> Say(Coordinator& coordinator, ConnectionId connection,
                                const WorkerHello& hello) {
  const auto outputs =
      coordinator.Apply(FromMember{connection, hello}, absl::ZeroDuration());
  for (const CoordinatorOutput& output : outputs) {
    if (const auto* close = std::get_if<CloseMember>(&output)) return close->status;
  }
  return std::nullopt;
}

// Many times slower if each hello were validated.
TEST(SameHellos, AreComparedAndAnyOtherIsValidated) {
  constexpr uint32_t kWorkers = 200;
  constexpr uint32_t kTensors = 5000;
  WorkerHello hello;
  hello.job.name = "job";
  hello.job.workers = kWorkers;
  hello.name = "x";
  for (uint32_t i = 0; i < kTensors; ++i) {
    hello.job.tensors.push_back({.name = absl::StrCat("tensor", i), .shape = {1000}});
  }
  Coordinator coordinator({});
  for (hello.rank = 0; hello.rank < kWorkers; ++hello.rank) {
    EXPECT_FALSE(Say(coordinator, 100 + hello.rank, hello).has_value());
  }
  EXPECT_EQ(coordinator.View({}).jobs.at(0).members.size(), kWorkers);

  hello.rank = 7;
  hello.job.tensors.back().shape = {1001};
  EXPECT_THAT(std::string(Say(coordinator, 5000, hello)->message()),
              HasSubstr("tensor 'tensor4999' is [1000]"));
  hello.job.tensors.back().name = "";
  EXPECT_TRUE(absl::IsInvalidArgument(*Say(coordinator, 5001, hello)));
}

}  // namespace
}  // namespace syncline
