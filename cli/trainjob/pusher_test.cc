#include "cli/trainjob/pusher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "cli/trainjob/trainjob_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kPatience = absl::Minutes(1);

TEST(PushPace, SlowsDownWhilePushesFail) {
  PushPace pace(absl::Seconds(5));
  EXPECT_EQ(pace.Pause(), absl::Seconds(5));
  for (const int seconds : {10, 20, 40, 60, 60}) {
    pace.Take(/*has_failed=*/true, {});
    EXPECT_EQ(pace.Pause(), absl::Seconds(seconds));
  }
  pace.Take(/*has_failed=*/true, absl::Seconds(100));
  EXPECT_EQ(pace.Pause(), absl::Seconds(100)) << "as the peer asks";
  pace.Take(/*has_failed=*/true, absl::Hours(1));
  EXPECT_EQ(pace.Pause(), absl::Minutes(5));
  pace.Take(/*has_failed=*/false, absl::Hours(1));
  EXPECT_EQ(pace.Pause(), absl::Seconds(5));
}

// What a pusher says and reports, which tests wait for.
class TrainJobPusherTest : public testing::Test {
 protected:
  TrainJobPusher::Options Options(const TrainJobTarget& target) {
    TrainJobPusher::Options options = {.target = target,
                                       .progress = {.job = "bert"},
                                       .every = absl::Milliseconds(10),
                                       .limit = kPatience,
                                       .last_limit = kPatience};
    options.status = [this] {
      return absl::StrCat(R"({"jobs":[{"job":1,"name":"bert","mode":"bsp","step":)",
                          ++step_, R"(,"total_steps":100000000,"members":[]}]})");
    };
    options.report = [this](const std::string& job, uint64_t sent, uint64_t failed) {
      EXPECT_EQ(job, "bert");
      absl::MutexLock lock(&mutex_);
      sent_ = sent;
      failed_ = failed;
    };
    return options;
  }
  std::function<void(const std::string&)> Say() {
    return [this](const std::string& line) {
      absl::MutexLock lock(&mutex_);
      said_.push_back(line);
    };
  }
  // Waits until that many pushes have succeeded and have failed, or more.
  void Await(uint64_t sent, uint64_t failed) {
    absl::MutexLock lock(&mutex_);
    const auto are_reported = [&] {
      mutex_.AssertHeld();
      return sent_ >= sent && failed_ >= failed;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&are_reported), kPatience));
  }
  std::vector<std::string> said() {
    absl::MutexLock lock(&mutex_);
    return said_;
  }

  std::atomic<int> step_ = 0;
  absl::Mutex mutex_;
  uint64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t failed_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> said_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(TrainJobPusherTest, PushesAgainAndAgainAndTheEnd) {
  TrainJobServer server;
  {
    TrainJobPusher pusher(Options(server.target()), Say());
    Await(3, 0);
    pusher.Finish();
  }
  const std::vector<std::string> bodies = server.bodies();
  EXPECT_THAT(bodies.front(), HasSubstr("\"progressPercentage\":0"));
  EXPECT_THAT(bodies.back(), HasSubstr("\"progressPercentage\":100"));
  EXPECT_THAT(said(), IsEmpty());
}

TEST_F(TrainJobPusherTest, SaysTheFirstFailureAndCountsAll) {
  std::atomic<bool> fails = true;
  TrainJobServer server([&](const httplib::Request&, httplib::Response& out) {
    if (fails) out.status = 500;
  });
  TrainJobPusher pusher(Options(server.target()), Say());
  Await(0, 3);
  EXPECT_THAT(said(), testing::ElementsAre(HasSubstr("HTTP 500")));
  fails = false;
  Await(1, 3);
  fails = true;
  Await(1, 5);
  fails = false;
  Await(3, 5);
  EXPECT_THAT(said(), SizeIs(2));
  EXPECT_THAT(said().back(), HasSubstr("shows the job's progress now"));
}

TEST_F(TrainJobPusherTest, SaysNothingTwice) {
  TrainJobServer server;
  TrainJobPusher::Options options = Options(server.target());
  std::atomic<int> asked = 0;
  absl::Notification often;
  options.status = [&]() -> std::optional<std::string> {
    if (++asked == 20) often.Notify();
    return R"({"jobs":[{"job":1,"name":"bert","mode":"bsp","step":7}]})";
  };
  options.repeat = absl::Hours(1);
  TrainJobPusher pusher(options, Say());
  EXPECT_TRUE(often.WaitForNotificationWithTimeout(kPatience));
  EXPECT_THAT(server.bodies(), SizeIs(1));
}

TEST_F(TrainJobPusherTest, EndsAtOnceAlthoughThePeerHangs) {
  absl::Notification asked, end;
  TrainJobServer server([&](const httplib::Request&, httplib::Response&) {
    if (!asked.HasBeenNotified()) asked.Notify();
    end.WaitForNotificationWithTimeout(kPatience);
  });
  TrainJobPusher::Options options = Options(server.target());
  options.limit = 100 * kPatience;
  {
    TrainJobPusher pusher(options, Say());
    asked.WaitForNotification();
  }
  EXPECT_THAT(said(), IsEmpty());
  end.Notify();
}

TEST_F(TrainJobPusherTest, PushesNothingOfAJobThatNeverBegan) {
  TrainJobServer server;
  TrainJobPusher::Options options = Options(server.target());
  absl::Notification asked;
  options.status = [&]() -> std::optional<std::string> {
    if (!asked.HasBeenNotified()) asked.Notify();
    return std::nullopt;
  };
  TrainJobPusher pusher(options, Say());
  asked.WaitForNotification();
  pusher.Finish();
  EXPECT_THAT(server.bodies(), IsEmpty());
}

}  // namespace
}  // namespace syncline
