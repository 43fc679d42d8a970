#include "cli/coordinator_wait.h"

#include <string>
#include <vector>

#include "cli/launcher_test_util.h"
#include "comm/base/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CoordinatorWaitTest : public testing::Test {
 protected:
  CoordinatorWait Wait(CoordinatorWait::Options options) {
    return {std::move(options),
            [this](const std::string& line) { said_.push_back(line); }};
  }

  std::vector<std::string> said_;
};

TEST_F(CoordinatorWaitTest, SaysOnceWhereNobodyAnswersAndHowLongItWaits) {
  CoordinatorWait wait = Wait({.coordinator = "127.0.0.1:1",
                               .limit = absl::Hours(1),
                               .quiet = absl::ZeroDuration()});
  for (int i = 0; i < 3; ++i) {
    const auto answers = wait.Answers(absl::Milliseconds(1));
    ASSERT_TRUE(answers.ok()) << answers.status();
    EXPECT_FALSE(*answers);
  }
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_THAT(said_[0], AllOf(HasSubstr("no coordinator answers at 127.0.0.1:1: nothing "
                                        "listens there"),
                              HasSubstr("within 1h (--patience)"),
                              HasSubstr("syncline serve --role coordinator")));
}

TEST_F(CoordinatorWaitTest, EndsAtItsLimit) {
  CoordinatorWait wait =
      Wait({.coordinator = "127.0.0.1:1", .limit = absl::ZeroDuration()});
  const absl::Status status = wait.Answers(absl::Milliseconds(1)).status();
  EXPECT_EQ(FailureOf(status), Failure::kUnreachable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("no coordinator answered at 127.0.0.1:1 within 0"),
                    HasSubstr("no worker was started: nothing listens there")));
}

TEST_F(CoordinatorWaitTest, SaysNothingWhereOneAnswers) {
  const AnsweringCoordinator coordinator;
  CoordinatorWait wait = Wait({.coordinator = coordinator.address(),
                               .limit = absl::Hours(1),
                               .quiet = absl::Hours(1)});
  while (!*wait.Answers(absl::Milliseconds(50))) {
  }
  EXPECT_TRUE(said_.empty());
}

TEST_F(CoordinatorWaitTest, RefusesAWrongAddressAtOnce) {
  CoordinatorWait wait = Wait({.coordinator = "nowhere", .limit = absl::Hours(1)});
  EXPECT_FALSE(wait.Answers(absl::Milliseconds(1)).ok());
}

}  // namespace
}  // namespace syncline
