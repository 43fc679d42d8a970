#include "worker/examples/fashion_mnist/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

namespace syncline::fashion_mnist {
namespace {

TEST(StopSignal, IsZeroUntilASignalComes) {
  const StopSignal stop;
  EXPECT_EQ(stop.signal(), 0);
}

TEST(StopSignal, TellsWhichSignalCame) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const StopSignal stop;
    kill(getpid(), signal);
    while (stop.signal() == 0) std::this_thread::yield();
    EXPECT_EQ(stop.signal(), signal);
  }
}

TEST(StopSignalDeathTest, EndsAProcessThatHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopSignal stop;
        kill(getpid(), SIGTERM);
        while (true) pause();
      },
      ::testing::ExitedWithCode(128 + SIGTERM), "");
}

TEST(StopSignalDeathTest, EndsAtOnceOnASecondSignal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopSignal stop;
        kill(getpid(), SIGINT);
        while (stop.signal() == 0) std::this_thread::yield();
        kill(getpid(), SIGINT);
        while (true) pause();
      },
      ::testing::ExitedWithCode(128 + SIGINT), "");
}

}  // namespace
}  // namespace syncline::fashion_mnist
