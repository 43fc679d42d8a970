#include "comm/transport/loop.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

// A transport on which nothing ever arrives, and which counts how it is driven.
class QuietTransport : public Transport {
 public:
  struct Counts {
    std::atomic<int> progress = 0, waits = 0, wakes = 0;
    std::atomic<bool> destroyed = false;
    std::thread::id thread;
  };

  explicit QuietTransport(Counts& counts) : counts_(counts) {
    counts_.thread = std::this_thread::get_id();
  }
  ~QuietTransport() override {
    EXPECT_EQ(counts_.thread, std::this_thread::get_id());
    counts_.destroyed = true;
  }

  const std::string& address() const override { return address_; }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const std::string&,
                                                    ConnectOptions) override {
    return absl::UnimplementedError("nobody there");
  }
  int Progress() override {
    ++counts_.progress;
    return 0;
  }
  void Wait(absl::Duration timeout) override {
    ++counts_.waits;
    std::unique_lock lock(mutex_);
    const auto limit = absl::ToChronoMicroseconds(std::min(timeout, absl::Hours(1)));
    woken_or_late_.wait_for(lock, limit, [&] { return woken_; });
    woken_ = false;
  }
  void Wake() override {
    ++counts_.wakes;
    const std::lock_guard lock(mutex_);
    woken_ = true;
    woken_or_late_.notify_one();
  }

 private:
  Counts& counts_;
  const std::string address_ = "quiet";
  std::mutex mutex_;
  std::condition_variable woken_or_late_;
  bool woken_ = false;
};

std::unique_ptr<TransportLoop> StartQuiet(QuietTransport::Counts& counts,
                                          TransportLoopOptions options = {}) {
  auto loop = TransportLoop::Start(
      [&]() -> absl::StatusOr<std::unique_ptr<Transport>> {
        return std::make_unique<QuietTransport>(counts);
      },
      options);
  EXPECT_TRUE(loop.ok()) << loop.status();
  return *std::move(loop);
}

TEST(TransportLoop, TheTransportLivesAndDiesOnTheLoopThread) {
  QuietTransport::Counts counts;
  auto loop = StartQuiet(counts);
  EXPECT_EQ(loop->address(), "quiet");
  EXPECT_NE(counts.thread, std::this_thread::get_id());
  loop->Stop();
  EXPECT_TRUE(counts.destroyed);
}

TEST(TransportLoop, AFactoryThatFailsFailsTheStart) {
  const auto loop = TransportLoop::Start(
      []() -> absl::StatusOr<std::unique_ptr<Transport>> {
        return absl::UnavailableError("no device");
      },
      {});
  EXPECT_EQ(loop.status().code(), absl::StatusCode::kUnavailable);
}

TEST(TransportLoop, RunsWhatIsPostedInOrderOnItsThread) {
  QuietTransport::Counts counts;
  auto loop = StartQuiet(counts);
  std::vector<int> order;
  absl::Notification done;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(loop->Post([&, i](Transport&) {
      EXPECT_EQ(std::this_thread::get_id(), counts.thread);
      order.push_back(i);
      if (i == 999) done.Notify();
    }));
  }
  done.WaitForNotification();
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[i], i);
}

TEST(TransportLoop, ManyThreadsMayPostWhileItSleepsAndWakes) {
  QuietTransport::Counts counts;
  auto loop = StartQuiet(counts, {.spin = absl::ZeroDuration()});
  constexpr int kThreads = 4, kPosts = 5000;
  int ran = 0;  // used by the loop thread only
  absl::Notification all;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kPosts; ++i) {
        loop->Post([&](Transport&) {
          if (++ran == kThreads * kPosts) all.Notify();
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(all.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_LE(counts.wakes, kThreads * kPosts);
}

TEST(TransportLoop, IsNotWokenForWhatIsPostedQuietly) {
  QuietTransport::Counts counts;
  auto loop = StartQuiet(counts, {.spin = absl::ZeroDuration()});
  std::vector<int> order;  // used by the loop thread only
  loop->Wake();            // nothing was posted
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(loop->PostQuietly([&, i](Transport&) { order.push_back(i); }));
  }
  EXPECT_EQ(counts.wakes, 0);
  absl::Notification ran;
  loop->Post([&](Transport&) { ran.Notify(); });
  ran.WaitForNotification();
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(counts.wakes, 1);

  absl::Notification ran_again;
  loop->PostQuietly([&](Transport&) { ran_again.Notify(); });
  loop->Wake();
  EXPECT_TRUE(ran_again.WaitForNotificationWithTimeout(absl::Seconds(20)));
}

TEST(TransportLoop, RunsWhatIsPostedQuietlyWithATimer) {
  QuietTransport::Counts counts;
  auto loop = StartQuiet(counts, {.spin = absl::ZeroDuration()});
  loop->Every(absl::Milliseconds(1), [](Transport&) {});
  absl::Notification ran;
  loop->PostQuietly([&](Transport&) { ran.Notify(); });
  EXPECT_TRUE(ran.WaitForNotificationWithTimeout(absl::Seconds(20)));
}

TEST(TransportLoop, StopRunsWhatWasPostedAndRefusesWhatComesLater) {
  QuietTransport::Counts counts;
  auto loop = StartQuiet(counts);
  bool ran = false;
  EXPECT_TRUE(loop->Post([&](Transport&) {
    EXPECT_FALSE(counts.destroyed);
    ran = true;
  }));
  loop->Stop();
  EXPECT_TRUE(ran);
  EXPECT_FALSE(loop->Post([](Transport&) { FAIL(); }));
  EXPECT_FALSE(loop->Every(absl::Milliseconds(1), [](Transport&) { FAIL(); }));
  loop->Stop();
}

TEST(TransportLoop, TimersComeAgainAndAgain) {
  QuietTransport::Counts counts;
  auto loop = StartQuiet(counts);
  const absl::Time start = absl::Now();
  int fast = 0, slow = 0;
  absl::Notification done;
  loop->Every(absl::Milliseconds(2), [&](Transport&) {
    if (++fast == 20) done.Notify();
  });
  loop->Every(absl::Hours(1), [&](Transport&) { ++slow; });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(40));
  loop->Stop();
  EXPECT_EQ(slow, 0);
}

TEST(TransportLoop, SleepsWhenThereIsNothingToDo) {
  QuietTransport::Counts counts;
  auto loop = StartQuiet(counts);
  absl::Notification done;
  int ticks = 0;
  loop->Every(absl::Milliseconds(10), [&](Transport&) {
    if (++ticks == 10) done.Notify();
  });
  done.WaitForNotification();
  loop->Stop();
  // One sleep for each timer, and a few at the start and the end, each after at most one
  // spin.
  EXPECT_LE(counts.waits, 40);
}

}  // namespace
}  // namespace syncline
