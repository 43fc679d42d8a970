#include "comm/rpc/local_user.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/address.h"
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
    const std::string server = peer.substr(0, 4) == "ipv6" ? "[::1]" : "127.0.0.1";
    return Users().Check({.peer = peer, .servers = NamesOf(server + ":7070")});
  }
  LocalUsers Users() const { return LocalUsers(kOwn, HostSockets(proc_.path())); }
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

// For a closed socket the kernel reports user 0.
TEST_F(LocalUsersTest, ASocketThatWasClosedBelongsToNobody) {
  Write("tcp", Line("0100007F:A112 0100007F:1B9E 04", 0));
  EXPECT_FALSE(CheckV4().ok());
  Write("tcp", Line("0100007F:A112 0100007F:1B9E 01", 0, /*inode=*/0));
  EXPECT_FALSE(CheckV4().ok());
  Write("tcp", "");
  EXPECT_THAT(std::string(CheckV4().message()), HasSubstr("does not say which user"));
}

TEST_F(LocalUsersTest, AnotherConnectionOfThePortIsNotThePeers) {
  // One connection to another port, and one to the same port of another address.
  const std::string to_others = Line("0100007F:A112 0100007F:1B9F 01", kNobody) +
                                Line("0100007F:A112 0200007F:1B9E 01", kNobody);
  const std::string own = Line("0100007F:A112 0100007F:1B9E 01", kOwn);
  Write("tcp", to_others + own);
  EXPECT_TRUE(CheckV4().ok()) << CheckV4();
  EXPECT_FALSE(Users().Check({.peer = "ipv4:127.0.0.1:41234"}).ok())
      << "to which of these servers cannot be told";
}

// A process on this host may use any of its addresses.
TEST_F(LocalUsersTest, PeersThatAreNotOnLoopbackAreAskedAboutAndGarbageIsRefused) {
  Write("tcp", "");
  EXPECT_FALSE(Check("ipv4:192.0.2.7:41234").ok());
  EXPECT_FALSE(Check("ipv6:%5B2001:db8::7%5D:41234").ok());
  Write("tcp", Line("070200C0:A112 0100007F:1B9E 01", kNobody));
  EXPECT_THAT(std::string(Check("ipv4:192.0.2.7:41234").message()),
              HasSubstr("you are user 65534"));
  Write("tcp", Line("070200C0:A112 0100007F:1B9E 01", kOwn));
  EXPECT_TRUE(Check("ipv4:192.0.2.7:41234").ok());
  for (const char* peer : {"", "unix:/tmp/x", "ipv4:", "ipv4:127.0.0.1", "ipv4:a.b:1"}) {
    EXPECT_FALSE(Check(peer).ok()) << peer;
  }
}

TEST_F(LocalUsersTest, RefusalsOfOneHostReadTheSame) {
  Write("tcp", "");
  EXPECT_THAT(std::string(CheckV4().message()), HasSubstr("calls from ipv4:127.0.0.1;"));
  EXPECT_EQ(CheckV4().message(), Check("ipv4:127.0.0.1:41235").message());
}

TEST_F(LocalUsersTest, CannotTellWhereNotEvenTheServerIsKnown) {
  const auto server = NamesOf("127.0.0.1:7070");
  EXPECT_FALSE(Users().CanTell(server));
  Write("tcp", Line("0100007F:1B9E 00000000:0000 01", kOwn) +
                   Line("0100007F:1B9F 00000000:0000 0A", kOwn));
  EXPECT_FALSE(Users().CanTell(server)) << "connected, and listening to another port";
  Write("tcp", Line("0100007F:1B9E 00000000:0000 0A", kOwn));
  EXPECT_TRUE(Users().CanTell(server));
}

// Returns the first address of this host by which others may reach it.
std::optional<in_addr> OwnAddress() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* next = list; next != nullptr; next = next->ifa_next) {
    if (next->ifa_addr == nullptr || next->ifa_addr->sa_family != AF_INET) continue;
    if ((next->ifa_flags & IFF_LOOPBACK) != 0 || (next->ifa_flags & IFF_UP) == 0)
      continue;
    return reinterpret_cast<const sockaddr_in*>(next->ifa_addr)->sin_addr;
  }
  return std::nullopt;
}

sockaddr_in SocketAddress(in_addr host, uint16_t port) {
  return {
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = host, .sin_zero = {}};
}

const in_addr kLoopback = {.s_addr = htonl(INADDR_LOOPBACK)};

// The results of both ways to ask.
struct Verdicts {
  absl::Status kernel, tables;
};

// Checks a process of `user` that connects from `host` and stays until its server closes.
Verdicts CheckRealPeerOf(uid_t user, in_addr host = kLoopback) {
  HostPort listen{"127.0.0.1", 0};
  UniqueFd listener = *Listen(listen);
  const timeval patience = {.tv_sec = 20, .tv_usec = 0};
  setsockopt(listener.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  const pid_t child = fork();
  if (child == 0) {
    listener.reset();
    if (user != getuid() && setuid(user) != 0) _exit(1);
    const int peer = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in from = SocketAddress(host, 0);
    const sockaddr_in to = SocketAddress(kLoopback, listen.port);
    char byte = 0;
    if (bind(peer, reinterpret_cast<const sockaddr*>(&from), sizeof(from)) != 0) _exit(2);
    if (connect(peer, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) _exit(3);
    _exit(read(peer, &byte, 1) == 0 ? 0 : 4);
  }
  sockaddr_in from = {};
  socklen_t size = sizeof(from);
  UniqueFd accepted(accept(listener.get(), reinterpret_cast<sockaddr*>(&from), &size));
  char written[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &from.sin_addr, written, sizeof(written));
  const LocalUsers::Connection connection = {
      .peer = absl::StrCat("ipv4:", written, ":", ntohs(from.sin_port)),
      .servers = NamesOf(listen.ToString())};
  const Verdicts verdicts = {
      LocalUsers::OfThisProcess().Check(connection),
      LocalUsers(getuid(), HostSockets("/proc/self")).Check(connection)};
  accepted.reset();
  listener.reset();
  int ended = -1;
  waitpid(child, &ended, 0);
  EXPECT_EQ(ended, 0) << "the other process failed";
  return verdicts;
}

bool CanTellHere() {
  HostPort listen{"127.0.0.1", 0};
  const UniqueFd listener = *Listen(listen);
  return LocalUsers::OfThisProcess().CanTell(NamesOf(listen.ToString()));
}

void ExpectRefused(const Verdicts& verdicts) {
  for (const absl::Status& status : {verdicts.kernel, verdicts.tables}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("you are user 65534"));
  }
}

TEST(LocalUsersOfThisHost, AProcessOfTheOwnUserMayComeIn) {
  if (!CanTellHere()) GTEST_SKIP() << "the kernel does not say who has which socket";
  const Verdicts verdicts = CheckRealPeerOf(getuid());
  EXPECT_TRUE(verdicts.kernel.ok()) << verdicts.kernel;
  EXPECT_TRUE(verdicts.tables.ok()) << verdicts.tables;
}

TEST(LocalUsersOfThisHost, AProcessOfAnotherUserMayNot) {
  if (getuid() != 0) GTEST_SKIP() << "only root can be another user";
  if (!CanTellHere()) GTEST_SKIP() << "the kernel does not say who has which socket";
  ExpectRefused(CheckRealPeerOf(kNobody));
  ExpectRefused(CheckRealPeerOf(kNobody, {.s_addr = htonl(INADDR_LOOPBACK + 6)}));
}

TEST(LocalUsersOfThisHost, NorMayItByAnotherAddressOfTheHost) {
  if (getuid() != 0) GTEST_SKIP() << "only root can be another user";
  if (!CanTellHere()) GTEST_SKIP() << "the kernel does not say who has which socket";
  const auto own = OwnAddress();
  if (!own) GTEST_SKIP() << "this host has no address but its loopback ones";
  ExpectRefused(CheckRealPeerOf(kNobody, *own));
  const Verdicts verdicts = CheckRealPeerOf(getuid(), *own);
  EXPECT_TRUE(verdicts.kernel.ok()) << verdicts.kernel;
  EXPECT_TRUE(verdicts.tables.ok()) << verdicts.tables;
}

TEST(HostSockets, ReadsPeersAsGrpcCallsThem) {
  EXPECT_EQ(ParsePeer("ipv4:10.0.0.7:41234")->port, 41234);
  const auto peer = ParsePeer("ipv6:%5Bfe80::1%252%5D:7");
  ASSERT_TRUE(peer.has_value()) << "with the zone of a link-local address";
  EXPECT_EQ(peer->port, 7);
  EXPECT_EQ(peer->host.s6_addr[0], 0xfe);
  EXPECT_EQ(peer->host.s6_addr[15], 1);
  EXPECT_FALSE(ParsePeer("unix:").has_value());
  EXPECT_FALSE(ParsePeer("ipv4:nonsense:7").has_value());
}

// gRPC listens on IPv6 sockets, and clients may use them too.
TEST(HostSockets, KnowsSocketsOfIpv6ThatSpeakIpv4) {
  if (!CanTellHere()) GTEST_SKIP() << "the kernel does not say who has which socket";
  const UniqueFd listener(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 at = {};
  at.sin6_family = AF_INET6;
  inet_pton(AF_INET6, "::ffff:127.0.0.1", &at.sin6_addr);
  socklen_t size = sizeof(at);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  if (!listener.valid() || bind(listener.get(), address, size) != 0) {
    GTEST_SKIP() << "no IPv6 here";
  }
  ASSERT_EQ(listen(listener.get(), 1), 0);
  ASSERT_EQ(getsockname(listener.get(), address, &size), 0);
  const UniqueFd client(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(client.get(), address, size), 0);
  const auto servers = NamesOf(absl::StrCat("127.0.0.1:", ntohs(at.sin6_port)));
  ASSERT_EQ(getsockname(client.get(), address, &size), 0);
  const auto peer = ParsePeer(absl::StrCat("ipv4:127.0.0.1:", ntohs(at.sin6_port)));
  ASSERT_TRUE(peer.has_value());
  for (const HostSockets& sockets :
       {HostSockets::OfThisHost(), HostSockets("/proc/self")}) {
    EXPECT_TRUE(sockets.HasListener(servers));
    EXPECT_EQ(sockets.UsersOf(*peer, servers), (std::set<uint32_t>{getuid()}));
    EXPECT_TRUE(sockets.UsersOf(servers[0], {*peer}).empty()) << "waits to be accepted";
  }
}

// The kernel's tables are as long as there are sockets, and need not be read.
TEST(HostSockets, TheKernelIsAskedForOneConnection) {
  HostPort listen{"127.0.0.1", 0};
  const UniqueFd listener = *Listen(listen);
  const auto servers = NamesOf(listen.ToString());
  const HostSockets kernel = HostSockets::OfThisHost("/nowhere");
  if (!kernel.HasListener(servers)) GTEST_SKIP() << "no NETLINK_SOCK_DIAG here";
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at = SocketAddress(kLoopback, listen.port);
  socklen_t size = sizeof(at);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  ASSERT_EQ(connect(client.get(), address, size), 0);
  ASSERT_EQ(getsockname(client.get(), address, &size), 0);
  const auto peer = ParsePeer(absl::StrCat("ipv4:127.0.0.1:", ntohs(at.sin_port)));
  EXPECT_EQ(kernel.UsersOf(*peer, servers), (std::set<uint32_t>{getuid()}));
  EXPECT_TRUE(kernel.UsersOf(servers[0], servers).empty()) << "it only listens";
  EXPECT_FALSE(kernel.HasListener({*peer}));
}

}  // namespace
}  // namespace syncline
