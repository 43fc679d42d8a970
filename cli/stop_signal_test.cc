// Each test runs in its own process. No other thread can take its signals, and they come
// from another process.
#include "cli/stop_signal.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr absl::Duration kForever = absl::Hours(1);  // longer than ctest's timeout

const auto kNothing = [] {};
const auto kNever = [] { return false; };

void SendFromOutside(int signal) {
  const pid_t child = fork();
  if (child == 0) {
    kill(getppid(), signal);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
}

// Returns true if it waited for the condition and no signal ended the wait before.
bool WaitsOn(StopSignal& stop) {
  int asked = 0;
  stop.WaitFor([&] { return ++asked == 3; }, kForever);
  return asked == 3;
}

// Expects `test` to return true in a process without other threads.
void ExpectThat(const std::function<bool()>& test) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(test() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

TEST(StopSignalDeathTest, AWishToEndEndsTheWaitAsASignalDoes) {
  ExpectThat([] {
    StopSignal stop;
    StopSignal::End();
    return stop.Wait(kNothing).value() == SIGTERM;
  });
}

TEST(StopSignalDeathTest, AWishThatCrossesWithASignalIsNoSecondOne) {
  ExpectThat([] {
    StopSignal stop;
    SendFromOutside(SIGTERM);
    const bool ends = stop.Wait(kNothing).value() == SIGTERM;
    StopSignal::End();
    return ends && WaitsOn(stop);
  });
}

TEST(StopSignalDeathTest, ASignalThatCrossesWithAWishIsNoSecondOne) {
  ExpectThat([] {
    StopSignal stop;
    StopSignal::End();
    const bool ends = stop.Wait(kNothing).value() == SIGTERM;
    SendFromOutside(SIGTERM);
    return ends && WaitsOn(stop);
  });
}

TEST(StopSignalDeathTest, ASecondSignalEndsTheProcessAsItIs) {
  ExpectThat([] {
    StopSignal stop;
    SendFromOutside(SIGTERM);
    const bool ends = stop.Wait(kNothing).value() == SIGTERM;
    SendFromOutside(SIGTERM);
    stop.WaitFor(kNever, kForever);
    return ends;
  });
}

TEST(StopSignalDeathTest, SoDoesSigintAfterAWish) {
  ExpectThat([] {
    StopSignal stop;
    StopSignal::End();
    const bool ends = stop.Wait(kNothing).value() == SIGTERM;
    SendFromOutside(SIGINT);
    stop.WaitFor(kNever, kForever);
    return ends;
  });
}

TEST(StopSignalDeathTest, SoDoesAFailure) {
  ExpectThat([] {
    StopSignal stop;
    SendFromOutside(SIGTERM);
    const bool ends = stop.Wait(kNothing).value() == SIGTERM;
    stop.Fail(absl::DataLossError("the disk"));
    stop.WaitFor(kNever, kForever);
    return ends;
  });
}

TEST(StopSignalDeathTest, TheFirstFailureIsTheWaitsError) {
  ExpectThat([] {
    StopSignal stop;
    stop.Fail(absl::DataLossError("the disk"));
    stop.Fail(absl::AbortedError("what follows from it"));
    return absl::IsDataLoss(stop.Wait(kNothing).status());
  });
}

TEST(StopSignalDeathTest, OneThatNobodyHasWaitedForIsPending) {
  ExpectThat([] {
    StopSignal stop;
    const bool before = stop.IsPending();
    SendFromOutside(SIGTERM);
    const bool then = stop.IsPending();
    const bool came = stop.Wait(kNothing).value() == SIGTERM;
    return !before && then && came && !stop.IsPending();
  });
}

TEST(StopSignalDeathTest, WhatHangsWhenItStopsIsEndedByTheNextSignal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        StopSignal stop;
        StopSignal::End();
        stop.Wait(kNothing).IgnoreError();
        SendFromOutside(SIGTERM);  // while it still drained
        stop.LeaveTheNextToTheSystem();
        stop.Fail(absl::DataLossError("the disk"));
        SendFromOutside(SIGTERM);
        for (;;) pause();
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopSignalDeathTest, AWishIsNoSuchSignal) {
  ExpectThat([] {
    StopSignal stop;
    stop.LeaveTheNextToTheSystem();
    StopSignal::End();
    stop.Fail(absl::DataLossError("the disk"));
    return true;
  });
}

TEST(StopSignalDeathTest, NobodyWaitsLongerThanTheLimit) {
  ExpectThat([] {
    StopSignal stop;
    stop.WaitFor(kNever, absl::ZeroDuration());
    return true;
  });
}

}  // namespace
}  // namespace syncline
