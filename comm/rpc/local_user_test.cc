#include "comm/rpc/local_user.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kOwn = 1000;
constexpr uid_t kNobody = 65534;

// A client at 127.0.0.1:41234 (A112) of a server at 127.0.0.1:7070 (1B9E).
class LocalUsersTest : public testing::Test {
 protected:
  static std::string Line(const std::string& sockets, int user, int inode = 4711) {
    return absl::StrCat("   1: ", sockets, " 00000000:00000000 00:00000000 00000000  ",
                        user, "        0 ", inode, " 1 0000 20 4 30 10 -1\n");
  }
  void Write(const std::string& name, const std::string& lines) {
    std::filesystem::create_directory(proc_.path() + "/net");
    std::ofstream(proc_.path() + "/net/" + name)
        << "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt  "
           " uid  timeout inode\n"
        << lines;
  }
  absl::Status Check(const std::string& peer) const {
    return LocalUsers(kOwn, proc_.path()).Check({.peer = peer, .server_port = 7070});
  }
  absl::Status CheckV4() const { return Check("ipv4:127.0.0.1:41234"); }

  const TempDirectory proc_;
};

TEST_F(LocalUsersTest, TheOwnUserAndRootMayComeInAndOthersMayNot) {
  for (const char* kind : {"0100007F:A112 0100007F:1B9E 01",
                           "0000000000000000FFFF00000100007F:A112 "
                           "0000000000000000FFFF00000100007F:1B9E 01"}) {
    Write(std::string(kind).size() < 40 ? "tcp" : "tcp6", Line(kind, kOwn));
    EXPECT_TRUE(CheckV4().ok()) << CheckV4();
    Write(std::string(kind).size() < 40 ? "tcp" : "tcp6", Line(kind, 0));
    EXPECT_TRUE(CheckV4().ok()) << CheckV4();
    Write(std::string(kind).size() < 40 ? "tcp" : "tcp6", Line(kind, kNobody));
    EXPECT_EQ(CheckV4().code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(FailureOf(CheckV4()), Failure::kUsage);
    EXPECT_THAT(std::string(CheckV4().message()), HasSubstr("you are user 65534"));
    EXPECT_THAT(std::string(CheckV4().message()), HasSubstr("--insecure"));
    std::filesystem::remove_all(proc_.path() + "/net");
  }
}

TEST_F(LocalUsersTest, KnowsPeersOfIpv6) {
  const std::string sockets =
      "00000000000000000000000001000000:A112 00000000000000000000000001000000:1B9E 01";
  Write("tcp6", Line(sockets, kOwn));
  EXPECT_TRUE(Check("ipv6:%5B::1%5D:41234").ok());
  EXPECT_TRUE(Check("ipv6:[::1]:41234").ok());
  EXPECT_FALSE(Check("ipv6:%5B::1%5D:41235").ok());
  Write("tcp6", Line(sockets, kNobody));
  EXPECT_FALSE(Check("ipv6:%5B::1%5D:41234").ok());
}

// The kernel says user 0 of what was closed.
TEST_F(LocalUsersTest, ASocketThatWasClosedBelongsToNobody) {
  Write("tcp", Line("0100007F:A112 0100007F:1B9E 04", 0));
  EXPECT_FALSE(CheckV4().ok());
  Write("tcp", Line("0100007F:A112 0100007F:1B9E 01", 0, /*inode=*/0));
  EXPECT_FALSE(CheckV4().ok());
  Write("tcp", "");
  EXPECT_THAT(std::string(CheckV4().message()), HasSubstr("does not say which user"));
}

TEST_F(LocalUsersTest, AnotherConnectionOfThePortIsNotThePeers) {
  const std::string to_another = Line("0100007F:A112 0100007F:1B9F 01", kNobody);
  const std::string own = Line("0100007F:A112 0100007F:1B9E 01", kOwn);
  Write("tcp", to_another + own);
  EXPECT_TRUE(CheckV4().ok());
  const LocalUsers users(kOwn, proc_.path());
  EXPECT_FALSE(users.Check({.peer = "ipv4:127.0.0.1:41234"}).ok())
      << "to which of both servers cannot be told";
}

TEST_F(LocalUsersTest, OtherHostsAreNotAskedAboutAndGarbageIsRefused) {
  Write("tcp", "");
  EXPECT_TRUE(Check("ipv4:192.0.2.7:41234").ok());
  EXPECT_TRUE(Check("ipv6:%5B2001:db8::7%5D:41234").ok());
  for (const char* peer : {"", "unix:/tmp/x", "ipv4:", "ipv4:127.0.0.1", "ipv4:a.b:1"}) {
    EXPECT_FALSE(Check(peer).ok()) << peer;
  }
}

TEST_F(LocalUsersTest, SaysWhetherItCanTell) {
  EXPECT_FALSE(LocalUsers(kOwn, proc_.path()).CanTell());
  Write("tcp", "");
  EXPECT_TRUE(LocalUsers(kOwn, proc_.path()).CanTell());
}

// Of a process of `user`, which stays connected until the test closes its end.
absl::Status CheckRealPeerOf(uid_t user) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  auto* address = reinterpret_cast<sockaddr*>(&at);
  if (bind(listener, address, size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, address, &size) != 0) {
    return absl::InternalError("cannot listen");
  }
  const uint16_t server_port = ntohs(at.sin_port);
  const timeval patience = {.tv_sec = 20, .tv_usec = 0};
  setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  const pid_t child = fork();
  if (child == 0) {
    close(listener);
    if (user != getuid() && setuid(user) != 0) _exit(1);
    const int peer = socket(AF_INET, SOCK_STREAM, 0);
    char byte = 0;
    if (connect(peer, address, size) != 0) _exit(1);
    _exit(read(peer, &byte, 1) == 0 ? 0 : 1);
  }
  sockaddr_in from = {};
  size = sizeof(from);
  const int accepted = accept(listener, reinterpret_cast<sockaddr*>(&from), &size);
  const absl::Status status = LocalUsers::OfThisProcess().Check(
      {.peer = absl::StrCat("ipv4:127.0.0.1:", ntohs(from.sin_port)),
       .server_port = server_port});
  close(accepted);
  close(listener);
  int ended = -1;
  waitpid(child, &ended, 0);
  return ended == 0 ? status : absl::InternalError("the other process failed");
}

TEST(LocalUsersOfThisHost, AProcessOfTheOwnUserMayComeIn) {
  if (!LocalUsers::OfThisProcess().CanTell()) GTEST_SKIP() << "no /proc/net/tcp here";
  const absl::Status status = CheckRealPeerOf(getuid());
  EXPECT_TRUE(status.ok()) << status;
}

TEST(LocalUsersOfThisHost, AProcessOfAnotherUserMayNot) {
  if (getuid() != 0) GTEST_SKIP() << "only root can be another user";
  if (!LocalUsers::OfThisProcess().CanTell()) GTEST_SKIP() << "no /proc/net/tcp here";
  const absl::Status status = CheckRealPeerOf(kNobody);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("you are user 65534"));
}

}  // namespace
}  // namespace syncline
