#include "server/etcd/etcd_address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string WhyNot(const std::string& text) {
  return std::string(ParseEtcdAddress(text).status().message());
}

TEST(EtcdAddress, HasMembersAndAPrefix) {
  const auto address = ParseEtcdAddress("etcd://a:2379,[::1]:2380/team/one/");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_THAT(address->members, ElementsAre("a:2379", "[::1]:2380"));
  EXPECT_EQ(address->prefix, "/team/one");
  EXPECT_EQ(address->ToString(), "etcd://a:2379,[::1]:2380/team/one");
}

TEST(EtcdAddress, HasADefaultPrefix) {
  EXPECT_EQ(ParseEtcdAddress("etcd://a:2379")->prefix, "/syncline");
  EXPECT_EQ(ParseEtcdAddress("etcd://a:2379/")->prefix, "/syncline");
}

TEST(EtcdAddress, SaysWhatIsWrong) {
  EXPECT_THAT(WhyNot("http://a:2379"), HasSubstr("write etcd://HOST:PORT"));
  EXPECT_THAT(WhyNot("etcd://a"), HasSubstr("'a' is not an address"));
  EXPECT_THAT(WhyNot("etcd://a:2379,a:2379/x"), HasSubstr("names a:2379 twice"));
  EXPECT_THAT(WhyNot("etcd://a:0"), HasSubstr("names no port"));
  EXPECT_THAT(WhyNot("etcd://a:1/x//y"), HasSubstr("single '/' only"));
  EXPECT_THAT(WhyNot("etcd://a:1/x y"), HasSubstr("may have letters"));
  EXPECT_THAT(WhyNot("etcd://a:1/" + std::string(300, 'x')), HasSubstr("at most 256"));
}

TEST(EtcdAddress, WantsTlsBeyondLoopback) {
  const EtcdAddress near = *ParseEtcdAddress("etcd://127.0.0.1:2379");
  const EtcdAddress far = *ParseEtcdAddress("etcd://127.0.0.1:2379,192.0.2.1:2379");
  EXPECT_TRUE(CheckEtcdTls(near, {}, false).ok());
  EXPECT_THAT(std::string(CheckEtcdTls(far, {}, false).message()),
              HasSubstr("refusing to speak to etcd at 192.0.2.1:2379 in plain text"));
  EXPECT_TRUE(CheckEtcdTls(far, {}, true).ok());
  EXPECT_TRUE(CheckEtcdTls(far, {.ca_file = "ca"}, false).ok());
  EXPECT_THAT(std::string(CheckEtcdTls(near, {.cert_file = "c"}, false).message()),
              HasSubstr("belong together"));
  EXPECT_THAT(
      std::string(
          CheckEtcdTls(near, {.cert_file = "c", .key_file = "k"}, false).message()),
      HasSubstr("needs --etcd-ca"));
}

}  // namespace
}  // namespace syncline
