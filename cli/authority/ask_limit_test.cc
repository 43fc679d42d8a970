#include "cli/authority/ask_limit.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace syncline::certs {
namespace {

int TakenAtOnce(AskLimit& limit, const std::string& host, absl::Duration now) {
  int taken = 0;
  while (taken < 100 && limit.Take(host, now)) ++taken;
  return taken;
}

TEST(AskLimit, SoManyAtOnceAndThenOneASecond) {
  AskLimit limit({.per_second = 1, .at_once = 3});
  EXPECT_EQ(TakenAtOnce(limit, "a", absl::Seconds(10)), 3);
  EXPECT_FALSE(limit.Take("a", absl::Seconds(10.9)));
  EXPECT_TRUE(limit.Take("a", absl::Seconds(11.1)));
  EXPECT_FALSE(limit.Take("a", absl::Seconds(11.9)));
  EXPECT_EQ(TakenAtOnce(limit, "a", absl::Seconds(1000)), 3);
}

TEST(AskLimit, OneHostTakesNothingFromAnother) {
  AskLimit limit({.at_once = 2});
  EXPECT_EQ(TakenAtOnce(limit, "a", absl::ZeroDuration()), 2);
  EXPECT_EQ(TakenAtOnce(limit, "b", absl::ZeroDuration()), 2);
}

TEST(AskLimit, HostsThatDoNotFitShareOneAllowanceUntilOthersAreForgotten) {
  AskLimit limit({.per_second = 1, .at_once = 2, .max_hosts = 8});
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(limit.Take(absl::StrCat(i), absl::Seconds(1)));
  int taken = 0;
  for (int i = 100; i < 200; ++i) {
    if (limit.Take(absl::StrCat(i), absl::Seconds(1))) ++taken;
  }
  EXPECT_EQ(taken, 2);
  EXPECT_TRUE(limit.Take("new", absl::Seconds(3)));
  EXPECT_TRUE(limit.Take("new", absl::Seconds(3)));
  EXPECT_FALSE(limit.Take("new", absl::Seconds(3)));
}

TEST(HostOfPeer, IsTheAddressAndOfIpv6TheNetwork) {
  EXPECT_EQ(HostOfPeer("ipv4:10.0.0.7:41234"), "ipv4:10.0.0.7");
  EXPECT_EQ(HostOfPeer("ipv6:[2001:db8:1:2:a:b:c:d]:41234"), "2001:db8:1:2::/64");
  EXPECT_EQ(HostOfPeer("ipv6:%5B2001:db8:1:2::9%5D:7"), "2001:db8:1:2::/64");
  EXPECT_EQ(HostOfPeer("ipv6:%5Bfe80::1%25eth0%5D:7"), "fe80::/64");
  EXPECT_EQ(HostOfPeer("ipv6:[::ffff:10.0.0.7]:41234"), "::ffff:10.0.0.7");
  EXPECT_EQ(HostOfPeer("ipv6:[::ffff:10.0.0.8]:41234"), "::ffff:10.0.0.8");
  EXPECT_EQ(HostOfPeer("ipv6:[no address]:1"), "ipv6:[no address]");
  EXPECT_EQ(HostOfPeer(""), "");
}

}  // namespace
}  // namespace syncline::certs
