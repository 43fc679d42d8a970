#include "comm/rpc/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/base/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST(Address, ParsesNamesNumbersAndBrackets) {
  const auto name = ParseHostPort("ps-0.syncline:7070");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->host, "ps-0.syncline");
  EXPECT_EQ(name->port, 7070);
  const auto v6 = ParseHostPort("[::1]:65535");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->ToString(), "[::1]:65535");
  EXPECT_EQ(ParseHostPort(":7071")->ToString(), "0.0.0.0:7071");
}

TEST(Address, RefusesWhatIsNoAddress) {
  for (const char* text : {"", "host", "host:", "host:65536", "host:-1", "host:x",
                           "::1:7070", "[::1:7070", "::1]:7070"}) {
    EXPECT_EQ(ParseHostPort(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(Address, KnowsLoopback) {
  EXPECT_TRUE(IsLoopback("127.0.0.1"));
  EXPECT_TRUE(IsLoopback("127.8.9.1"));
  EXPECT_TRUE(IsLoopback("::1"));
  EXPECT_TRUE(IsLoopback("localhost"));
  EXPECT_FALSE(IsLoopback("0.0.0.0"));
  EXPECT_FALSE(IsLoopback("::"));
  EXPECT_FALSE(IsLoopback("10.1.2.3"));
}

TEST(Address, NamesTheBusyPortAndTheFix) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const HostPort busy = {"127.0.0.1", ntohs(address.sin_port)};

  const absl::Status status = CheckCanListen(busy);
  EXPECT_EQ(FailureOf(status), Failure::kPortInUse);
  EXPECT_THAT(std::string(status.message()), HasSubstr(busy.ToString()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("choose another port"));

  close(fd);
  EXPECT_TRUE(CheckCanListen(busy).ok());
}

TEST(Address, RefusesToListenOnAForeignAddress) {
  EXPECT_EQ(CheckCanListen({"192.0.2.1", 7070}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Address, SeveralAreSeparatedByCommas) {
  EXPECT_EQ(*ParseAddresses("a:1"), std::vector<std::string>({"a:1"}));
  EXPECT_EQ(*ParseAddresses("a:1,[::1]:2"), std::vector<std::string>({"a:1", "[::1]:2"}));
  for (const char* wrong : {"", "a:1,", "a:1,b", "a:0", "a:1,a:1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseAddresses(wrong).status())) << wrong;
  }
}

}  // namespace
}  // namespace syncline
