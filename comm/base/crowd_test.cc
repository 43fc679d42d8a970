#include "comm/base/crowd.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Crowd, TheOldestOfTheLargestSourceMakesRoom) {
  Crowd crowd;
  crowd.Add(1, "a");
  crowd.Add(2, "b");
  crowd.Add(3, "c");
  EXPECT_EQ(crowd.ToMakeRoom(), 1u) << "all have as many";
  crowd.Add(4, "b");
  crowd.Add(7, "b");
  EXPECT_EQ(crowd.ToMakeRoom(), 2u);
  EXPECT_THAT(crowd.ToMakeMuchRoom(), ElementsAre(2, 4));
  EXPECT_EQ(crowd.source(2), "b");
  crowd.Remove(2);
  EXPECT_EQ(crowd.ToMakeRoom(), 4u);
  crowd.Remove(4);
  EXPECT_EQ(crowd.ToMakeRoom(), 1u) << "all have as many again";
  EXPECT_THAT(crowd.ToMakeMuchRoom(), ElementsAre(1));
  EXPECT_EQ(crowd.size(), 3u);
}

TEST(Crowd, ForgetsWhoHasGone) {
  Crowd crowd;
  EXPECT_THAT(crowd.ToMakeMuchRoom(), IsEmpty());
  crowd.Add(1, "a");
  crowd.Remove(1);
  crowd.Remove(1);
  EXPECT_TRUE(crowd.empty());
  EXPECT_FALSE(crowd.contains(1));
  EXPECT_THAT(crowd.ToMakeMuchRoom(), IsEmpty());
}

std::string SourceOf6(const std::string& host) {
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  EXPECT_EQ(inet_pton(AF_INET6, host.c_str(), &address.sin6_addr), 1);
  return SourceOf(reinterpret_cast<const sockaddr&>(address));
}

TEST(SourceOf, IsTheAddressAndOfIpv6TheNetwork) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(SourceOf(reinterpret_cast<const sockaddr&>(address)), "127.0.0.1");
  EXPECT_EQ(SourceOf6("::ffff:10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(SourceOf6("2001:db8::1:2:3:4"), "2001:db8::/64");
  EXPECT_EQ(SourceOf("10.0.0.7:4711"), "10.0.0.7");
  EXPECT_EQ(SourceOf("[2001:db8::1:2:3:4]:4711"), "2001:db8::/64");
  EXPECT_EQ(SourceOf("[::ffff:10.0.0.7]:4711"), "10.0.0.7");
  EXPECT_EQ(SourceOf("a/name"), "a/name");
  EXPECT_EQ(SourceOf("[half:1"), "[half");
}

}  // namespace
}  // namespace syncline
