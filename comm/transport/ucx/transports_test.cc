#include "comm/transport/ucx/transports.h"

#include <stdlib.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "comm/base/temp_directory.h"
#include "comm/transport/recording_receiver.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TransportChoice InsideHost(const char* wanted, QueueMemory memory = QueueMemory::kPosix) {
  return ChooseTransports(Reach::kHostOnly, memory, wanted);
}

TEST(Transports, AreSharedMemoryAloneInsideAHost) {
  for (const char* silent : {static_cast<const char*>(nullptr), "", "self", "^cma,tcp"}) {
    EXPECT_EQ(InsideHost(silent).tls, "posix,self");
    EXPECT_EQ(InsideHost(silent, QueueMemory::kSysv).tls, "sysv,self");
    EXPECT_THAT(InsideHost(silent).ignored, IsEmpty());
  }
}

TEST(Transports, OfAHostAreThoseOfTheUserWhereTheyAreSharedMemory) {
  EXPECT_EQ(InsideHost("sysv,self").tls, "sysv,self");
  EXPECT_EQ(InsideHost("posix", QueueMemory::kSysv).tls, "posix,self");
  EXPECT_EQ(InsideHost("posix,sysv").tls, "posix,sysv,self");
  EXPECT_THAT(InsideHost("posix,sysv,self").ignored, IsEmpty());
}

TEST(Transports, OfAHostAreNeverAnythingElse) {
  for (const std::string wanted : {"all", "tcp", "sm", "\\tcp", "tcp:aux", "t*",
                                   "rc_mlx5", "cma", "posix:aux", "TCP"}) {
    const TransportChoice choice = InsideHost(wanted.c_str());
    EXPECT_EQ(choice.tls, "posix,self") << wanted;
    EXPECT_THAT(choice.ignored, ElementsAre(wanted));
  }
  EXPECT_EQ(InsideHost("tcp,self,sysv").tls, "sysv,self");
  EXPECT_THAT(InsideHost("tcp,self,sysv").ignored, ElementsAre("tcp"));
  EXPECT_EQ(InsideHost("^posix").tls, "posix,self");
  EXPECT_THAT(InsideHost("^posix,tcp").ignored, ElementsAre("posix"));
}

TransportChoice ForRdma(const char* wanted) {
  return ChooseTransports(Reach::kRdma, QueueMemory::kPosix, wanted);
}

TEST(Transports, BesideRdmaAreNeverTcp) {
  EXPECT_EQ(ForRdma(nullptr).tls, "^cma,tcp,sysv");
  for (const char* wanted : {"all", "tcp", "\\tcp", "tcp:aux", "t*", "tc?,all"}) {
    EXPECT_EQ(ForRdma(wanted).tls, "^cma,tcp,sysv") << wanted;
    EXPECT_THAT(ForRdma(wanted).ignored, Not(IsEmpty())) << wanted;
  }
  EXPECT_EQ(ForRdma("rc,tcp,sm,self").tls, "rc,sm,self");
  EXPECT_THAT(ForRdma("rc,tcp,sm,self").ignored, ElementsAre("tcp"));
  EXPECT_EQ(ForRdma("^ud").tls, "^ud,tcp");
  EXPECT_THAT(ForRdma("^ud").ignored, IsEmpty());
}

TEST(Transports, OfANetworkAreAsTheUserSays) {
  const auto choose = [](const char* wanted) {
    return ChooseTransports(Reach::kNetwork, QueueMemory::kPosix, wanted).tls;
  };
  EXPECT_EQ(choose(nullptr), "^cma,sysv");
  EXPECT_EQ(choose("tcp,self"), "tcp,self");
}

TEST(Resources, AreWhatTheReachPromises) {
  const auto check = [](Reach reach, const std::vector<std::string>& resources) {
    return std::string(CheckResources(reach, resources).message());
  };
  const std::vector<std::string> memory = {"self/memory0", "posix/memory"};
  EXPECT_EQ(check(Reach::kHostOnly, memory), "");
  EXPECT_THAT(check(Reach::kHostOnly, {"posix/memory", "tcp/lo"}), HasSubstr("tcp/lo"));
  EXPECT_THAT(check(Reach::kHostOnly, {"rc_verbs/mlx5_0:1"}), HasSubstr("strangers"));
  EXPECT_EQ(check(Reach::kRdma, {"posix/memory", "rc_mlx5/mlx5_0:1"}), "");
  EXPECT_THAT(check(Reach::kRdma, {"rc_mlx5/mlx5_0:1", "tcp/eth0"}),
              HasSubstr("tcp/eth0"));
  EXPECT_THAT(check(Reach::kRdma, memory),
              AllOf(HasSubstr("no RDMA device"), HasSubstr("self/memory0 posix/memory"),
                    HasSubstr("--data-plane tls")));
  EXPECT_EQ(check(Reach::kNetwork, {"tcp/lo"}), "");
  // If UCX prints its resources in another form, the list of names is relied upon.
  EXPECT_EQ(check(Reach::kHostOnly, {}), "");
}

// Returns the number of listening sockets of this process.
int Listening() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int fd = 0, listens = 0;
    socklen_t bytes = sizeof(listens);
    if (!absl::SimpleAtoi(entry.path().filename().string(), &fd)) continue;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0)
      count += listens;
  }
  return count;
}

// Sets UCX_TLS for one test.
class WithUcxTls {
 public:
  explicit WithUcxTls(const char* value) { setenv("UCX_TLS", value, 1); }
  ~WithUcxTls() { unsetenv("UCX_TLS"); }
};

TEST(Transports, ListenNowhereInsideAHostWhateverUcxTlsSays) {
  RecordingReceiver receiver;
  for (const char* wanted : {"all", "tcp,self", "tcp,self,posix", "\\tcp", "^posix"}) {
    const WithUcxTls variable(wanted);
    const auto transport = CreateUcxTransport({}, receiver);
    ASSERT_TRUE(transport.ok()) << wanted << ": " << transport.status();
    EXPECT_EQ(Listening(), 0) << wanted;
    const auto endpoint = (*transport)->Connect((*transport)->address(), {});
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_THAT((*endpoint)->Describe(), Not(HasSubstr("tcp")));
  }
  const auto network = CreateUcxTransport({.reach = Reach::kNetwork}, receiver);
  ASSERT_TRUE(network.ok()) << network.status();
  EXPECT_GT(Listening(), 0) << "the test would not see a listener";
}

TEST(Transports, ListenNowhereInsideAHostWhateverUcxConfSays) {
  const TempDirectory folder;
  std::ofstream(folder.File("ucx.conf")) << "UCX_TLS=all\nUCX_NET_DEVICES=all\n";
  setenv("UCX_CONFIG_DIR", folder.path().c_str(), 1);
  const absl::Cleanup unset = [] { unsetenv("UCX_CONFIG_DIR"); };
  RecordingReceiver receiver;
  const auto transport = CreateUcxTransport({}, receiver);
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_EQ(Listening(), 0);
}

TEST(Transports, ForRdmaAreRefusedWhereNoDeviceIs) {
  if (std::filesystem::exists("/sys/class/infiniband")) GTEST_SKIP() << "one may be here";
  RecordingReceiver receiver;
  const WithUcxTls variable("all");
  const auto transport = CreateUcxTransport({.reach = Reach::kRdma}, receiver);
  EXPECT_THAT(std::string(transport.status().message()), HasSubstr("no RDMA device"));
}

}  // namespace
}  // namespace syncline
