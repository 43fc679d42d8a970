#include "comm/transport/bell.h"

#include <poll.h>

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

bool IsReadable(const Bell& bell, int timeout_ms) {
  pollfd descriptor = {bell.fd(), POLLIN, 0};
  return poll(&descriptor, 1, timeout_ms) == 1;
}

TEST(Bell, RingsUntilItIsHushed) {
  const auto bell = *Bell::Create();
  const Ringer ringer;
  EXPECT_FALSE(IsReadable(*bell, 0));
  for (int i = 0; i < 1000; ++i) ringer.Ring(bell->name());  // more than its queue holds
  EXPECT_TRUE(IsReadable(*bell, 0));
  bell->Hush();
  EXPECT_FALSE(IsReadable(*bell, 0));
}

TEST(Bell, EndsASleepOfAnotherThread) {
  const auto bell = *Bell::Create();
  const Ringer ringer;
  std::thread other([&] { ringer.Ring(bell->name()); });
  EXPECT_TRUE(IsReadable(*bell, 20000));
  other.join();
}

TEST(Bell, HearsOnlyItsOwnName) {
  const auto bell = *Bell::Create(), other = *Bell::Create();
  const Ringer ringer;
  ringer.Ring(other->name());
  ringer.Ring(12345);
  EXPECT_FALSE(IsReadable(*bell, 0));
  EXPECT_TRUE(IsReadable(*other, 0));
}

}  // namespace
}  // namespace syncline
