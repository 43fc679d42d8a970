#include "cli/coordinator_wait.h"

#include <dlfcn.h>
#include <netdb.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cli/launcher_test_util.h"
#include "comm/base/failure.h"
#include "comm/rpc/status_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

constexpr char kHangs[] = "hangs.invalid";

// Controls look-ups of the name kHangs, which block until they are released.
class LookUps {
 public:
  void Hang() {
    absl::MutexLock lock(&mutex_);
    ++hanging_;
    ++begun_;
    const auto may_go = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return may_go_; };
    // With a limit, so that a faulty wait fails the test instead of hanging it.
    if (!mutex_.AwaitWithTimeout(absl::Condition(&may_go), absl::Seconds(30))) {
      ++given_up_;
    }
    --hanging_;
  }
  void Hold() {
    absl::MutexLock lock(&mutex_);
    may_go_ = false;
  }
  void AwaitOne() {
    absl::MutexLock lock(&mutex_);
    const auto one_hangs = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return hanging_ > 0;
    };
    mutex_.Await(absl::Condition(&one_hangs));
  }
  int given_up() {
    absl::MutexLock lock(&mutex_);
    return given_up_;
  }
  int begun() {
    absl::MutexLock lock(&mutex_);
    return begun_;
  }
  void AwaitBegun(int count) {
    absl::MutexLock lock(&mutex_);
    const auto is_there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return begun_ >= count;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&is_there), absl::Seconds(30)));
  }
  int hanging() {
    absl::MutexLock lock(&mutex_);
    return hanging_;
  }
  void LetGo() {
    absl::MutexLock lock(&mutex_);
    may_go_ = true;
    const auto none_hangs = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return hanging_ == 0;
    };
    mutex_.Await(absl::Condition(&none_hangs));
  }

 private:
  absl::Mutex mutex_;
  bool may_go_ ABSL_GUARDED_BY(mutex_) = false;
  int hanging_ ABSL_GUARDED_BY(mutex_) = 0;
  int begun_ ABSL_GUARDED_BY(mutex_) = 0;
  int given_up_ ABSL_GUARDED_BY(mutex_) = 0;
};

LookUps& look_ups() {
  static auto& all = *new LookUps;
  return all;
}

}  // namespace

// Replaces the function of libc.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints,
                           addrinfo** found) {
  if (host != nullptr && std::string_view(host) == kHangs) {
    look_ups().Hang();
    return EAI_AGAIN;
  }
  static const auto next =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return next(host, port, hints, found);
}

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

  // Returns the error with which the wait ends.
  static absl::Status EndOf(CoordinatorWait& wait) {
    for (;;) {
      const auto answers = wait.Answers(absl::Milliseconds(1));
      if (!answers.ok()) return answers.status();
    }
  }

  std::vector<std::string> said_;
};

TEST_F(CoordinatorWaitTest, SaysOnceWhereNobodyAnswersAndHowLongItWaits) {
  CoordinatorWait wait = Wait({.coordinator = "127.0.0.1:1",
                               .limit = absl::Hours(1),
                               .quiet = absl::ZeroDuration()});
  for (int after = 0; after < 3; after += static_cast<int>(said_.size())) {
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
  const absl::Status status = EndOf(wait);
  EXPECT_EQ(FailureOf(status), Failure::kUnreachable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("no coordinator answered at 127.0.0.1:1 within 0"),
                    HasSubstr("no worker was started: nothing listens there")));
}

// The launcher looks for Ctrl-C between two slices.
TEST_F(CoordinatorWaitTest, ANameThatCannotBeLookedUpHoldsUpNobody) {
  look_ups().Hold();
  {
    CoordinatorWait wait = Wait({.coordinator = absl::StrCat(kHangs, ":7070"),
                                 .limit = absl::Hours(1),
                                 .quiet = absl::ZeroDuration(),
                                 .inquiry = absl::Hours(1)});
    EXPECT_FALSE(*wait.Answers(absl::Milliseconds(1)));
    ASSERT_EQ(look_ups().given_up(), 0) << "a slice has waited for it";
    look_ups().AwaitOne();
    EXPECT_FALSE(*wait.Answers(absl::Milliseconds(1)));
  }
  EXPECT_GE(look_ups().hanging(), 1) << "neither a slice nor the end waits for it";
  look_ups().LetGo();
  EXPECT_TRUE(said_.empty());
}

TEST_F(CoordinatorWaitTest, EndsAtItsLimitThoughANameCannotBeLookedUp) {
  look_ups().Hold();
  CoordinatorWait wait = Wait({.coordinator = absl::StrCat(kHangs, ":7070"),
                               .limit = absl::ZeroDuration(),
                               .inquiry = absl::ZeroDuration()});
  const absl::Status status = EndOf(wait);
  EXPECT_EQ(FailureOf(status), Failure::kUnreachable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no worker was started: its name is still being looked up; check "
                        "the name and the name server"));
  look_ups().LetGo();
}

// Otherwise an old answer that comes late would count as the present one.
TEST_F(CoordinatorWaitTest, AsksAgainAfterALookUpThatTookTooLong) {
  look_ups().Hold();
  CoordinatorWait wait = Wait({.coordinator = absl::StrCat(kHangs, ":7070"),
                               .limit = absl::ZeroDuration(),
                               .inquiry = absl::ZeroDuration()});
  const int before = look_ups().begun();
  EXPECT_THAT(std::string(EndOf(wait).message()), HasSubstr("still being looked up"));
  look_ups().AwaitBegun(before + 1);
  EXPECT_THAT(std::string(EndOf(wait).message()), HasSubstr("still being looked up"));
  look_ups().AwaitBegun(before + 2);
  look_ups().LetGo();
}

// Launchers and commands ask for the status while they must react to Ctrl-C.
TEST(StatusJson, IsNotWaitedForWhereANameCannotBeLookedUp) {
  look_ups().Hold();
  const std::string address = absl::StrCat(kHangs, ":7070");
  EXPECT_FALSE(StatusJsonIfAnswered(address, {}, absl::Milliseconds(1)).has_value());
  const auto fetched = FetchStatusJson(address, {}, absl::Milliseconds(1));
  EXPECT_EQ(FailureOf(fetched.status()), Failure::kUnreachable);
  EXPECT_THAT(std::string(fetched.status().message()),
              HasSubstr("its name is still being looked up; check the name"));
  EXPECT_EQ(look_ups().given_up(), 0);
  look_ups().LetGo();
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
