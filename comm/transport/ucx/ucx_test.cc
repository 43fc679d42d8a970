#include "comm/transport/ucx/ucx.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/loop.h"
#include "comm/transport/transport_contract.h"
#include "comm/transport/ucx/address.h"
#include "comm/transport/ucx/test_peer/peer_process.h"

namespace syncline {
namespace {

using ::testing::Not;

UcxOptions TestOptions(Reach reach = Reach::kHostOnly) {
  UcxOptions options;
  options.reach = reach;
  options.keepalive = absl::Milliseconds(200);
  return options;
}

class UcxRig : public TransportRig {
 public:
  UcxRig(int transports, const UcxOptions& options) {
    for (int i = 0; i < transports; ++i) {
      receivers_.push_back(std::make_unique<RecordingReceiver>());
      auto transport = CreateUcxTransport(options, *receivers_.back());
      EXPECT_TRUE(transport.ok()) << transport.status();
      transports_.push_back(*std::move(transport));
    }
  }

  Transport& transport(int i) override { return *transports_[i]; }
  RecordingReceiver& receiver(int i) override { return *receivers_[i]; }
  void Pump() override {
    for (const auto& transport : transports_) transport->Progress();
  }

  std::string StartVictim() override {
    victim_ = std::make_unique<PeerProcess>();
    return victim_->address();
  }
  void KillVictim() override { victim_->Kill(); }

 private:
  std::vector<std::unique_ptr<RecordingReceiver>> receivers_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::unique_ptr<PeerProcess> victim_;
};

RigFactory UcxFactory(const std::string& name, Reach reach) {
  return {name, [reach](int transports) {
            return std::make_unique<UcxRig>(transports, TestOptions(reach));
          }};
}

// Leaves all copying to UCX: eager, rendezvous, and other protocols.
RigFactory CopyingFactory() {
  return {"copying", [](int transports) {
            UcxOptions options = TestOptions();
            options.arena = SharedArena::Create({.segment_bytes = 0, .max_bytes = 0});
            return std::make_unique<UcxRig>(transports, options);
          }};
}

INSTANTIATE_TEST_SUITE_P(Ucx, TransportContract,
                         ::testing::Values(UcxFactory("host", Reach::kHostOnly),
                                           UcxFactory("network", Reach::kNetwork),
                                           CopyingFactory()),
                         [](const auto& info) { return info.param.name; });

ByteView Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// A transport of this process that talks to a peer process.
class UcxPair {
 public:
  explicit UcxPair(Reach reach = Reach::kHostOnly)
      : peer_(reach == Reach::kHostOnly ? "host" : "network"),
        transport_(*CreateUcxTransport(TestOptions(reach), receiver_)) {
    peer_.Tell("connect " + absl::BytesToHexString(transport_->address()));
    peer_.Answer("connected");
    endpoint_ = *transport_->Connect(
        peer_.address(),
        {.on_failure = [this](const auto& status) { failures_.push_back(status); }});
  }

  bool PumpUntil(const std::function<bool()>& done) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!done()) {
      if (absl::Now() > deadline) return false;
      if (transport_->Progress() == 0) transport_->Wait(absl::Milliseconds(5));
    }
    return true;
  }

  // Sends and waits for the echo.
  bool Echo(const std::string& header, const Buffer& payload) {
    const size_t before = receiver_.messages.size();
    endpoint_->Send(Bytes(header), {Slice::Of(payload)}, nullptr);
    if (!PumpUntil([&] { return receiver_.messages.size() > before; })) return false;
    const auto& echo = receiver_.messages.back();
    return echo.header == header &&
           std::ranges::equal(echo.payload.view(), payload.view());
  }

  PeerProcess& peer() { return peer_; }
  Transport& transport() { return *transport_; }
  Endpoint& endpoint() { return *endpoint_; }
  RecordingReceiver& receiver() { return receiver_; }
  const std::vector<absl::Status>& failures() const { return failures_; }

 private:
  PeerProcess peer_;
  RecordingReceiver receiver_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> endpoint_;
  std::vector<absl::Status> failures_;
};

TEST(Ucx, ProcessesOfOneHostTalkThroughSharedMemory) {
  for (const Reach reach : {Reach::kHostOnly, Reach::kNetwork}) {
    UcxPair pair(reach);
    ASSERT_TRUE(pair.Echo("hello", Buffer::Allocate(size_t{1} << 20)));
    EXPECT_TRUE(pair.endpoint().IsLocal());
    EXPECT_THAT(pair.endpoint().Describe(),
                ::testing::MatchesRegex("(sysv|posix)/memory"));
    pair.peer().Tell("lanes");
    EXPECT_THAT(pair.peer().Answer("lanes "),
                ::testing::MatchesRegex("LOCAL (sysv|posix)/memory"));
  }
}

// Returns the sockets on which `process` listens, written as in /proc/net/tcp.
std::vector<std::string> ListeningSockets(pid_t process) {
  std::string descriptors;
  for (int fd = 0; fd < 256; ++fd) {
    char target[64] = {};
    if (readlink(absl::StrCat("/proc/", process, "/fd/", fd).c_str(), target, 63) > 0) {
      absl::StrAppend(&descriptors, target, " ");
    }
  }
  std::vector<std::string> sockets;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp"}) {
    std::ifstream lines(table);
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, skipped, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skipped;
      words >> inode;
      if (state == "0A" && absl::StrContains(descriptors, "socket:[" + inode + "]")) {
        sockets.push_back(local);
      }
    }
  }
  return sockets;
}

TEST(Ucx, HostOnlyOpensNoSocketAndNetworkDoes) {
  RecordingReceiver receiver;
  {
    const auto transport = *CreateUcxTransport(TestOptions(Reach::kHostOnly), receiver);
    EXPECT_THAT(ListeningSockets(getpid()), ::testing::IsEmpty());
  }
  const auto transport = *CreateUcxTransport(TestOptions(Reach::kNetwork), receiver);
  EXPECT_THAT(ListeningSockets(getpid()), Not(::testing::IsEmpty()));
}

// Connects to a socket written as in /proc/net/tcp; IPv4 only. Returns -1 on failure.
int ConnectTo(const std::string& local) {
  const size_t colon = local.find(':');
  if (colon != 8) return -1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr =
      static_cast<uint32_t>(std::stoul(local.substr(0, 8), nullptr, 16));
  address.sin_port =
      htons(static_cast<uint16_t>(std::stoul(local.substr(9), nullptr, 16)));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

TEST(Ucx, StrangersOnTheTcpPortDisturbNobody) {
  UcxPair pair(Reach::kNetwork);
  const Buffer payload = Buffer::Allocate(100000);
  ASSERT_TRUE(pair.Echo("before", payload));
  std::string noise(5000, '\0');
  std::mt19937 random(5);
  for (char& c : noise) c = static_cast<char>(random());
  const std::vector<std::string> openings = {"",
                                             "\x01",
                                             noise,
                                             std::string(5000, '\0'),
                                             std::string(5000, '\xff'),
                                             "GET / HTTP/1.1\r\n\r\n"};
  int connected = 0;
  for (const std::string& socket : ListeningSockets(getpid())) {
    for (const std::string& opening : openings) {
      const int fd = ConnectTo(socket);
      if (fd < 0) continue;
      ++connected;
      (void)!send(fd, opening.data(), opening.size(), MSG_NOSIGNAL);
      EXPECT_TRUE(pair.Echo("meanwhile", payload));
      close(fd);
    }
  }
  EXPECT_GE(connected, static_cast<int>(openings.size()));
  EXPECT_TRUE(pair.Echo("after", payload));
  EXPECT_THAT(pair.failures(), ::testing::IsEmpty());
}

TEST(Ucx, IdleLoopsLeaveTheCoresToOthers) {
  constexpr int kLoops = 8;
  RecordingReceiver receivers[kLoops];
  std::vector<std::unique_ptr<TransportLoop>> loops;
  for (RecordingReceiver& receiver : receivers) {
    loops.push_back(*TransportLoop::Start(
        [&] { return CreateUcxTransport(TestOptions(), receiver); }, {}));
    loops.back()->Every(absl::Milliseconds(100), [](Transport&) {});
  }
  // The loops are connected, like idle workers.
  std::vector<std::unique_ptr<Endpoint>> endpoints(kLoops);
  for (int i = 0; i < kLoops; ++i) {
    loops[i]->Post([&, i](Transport& transport) {
      endpoints[i] = *transport.Connect(loops[(i + 1) % kLoops]->address(), {});
      endpoints[i]->Send(Bytes("hello"), {}, nullptr);
    });
  }
  const auto cpu_seconds = [] {
    timespec time = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
  };
#ifdef SYNCLINE_SANITIZED
  constexpr double kLittle = 1;  // of a core; the sanitizer's own threads cost more
#else
  constexpr double kLittle = 0.005;
#endif
  // Connecting costs more, and its duration varies, so the test waits for an idle second.
  // A loop that polls never has one.
  constexpr double kSeconds = 1;
  double share = 1;
  for (int second = 0; second < 60 && share >= kLittle; ++second) {
    const double before = cpu_seconds();
    absl::SleepFor(absl::Seconds(kSeconds));
    share = (cpu_seconds() - before) / kSeconds / kLoops;
  }
  EXPECT_LT(share, kLittle) << "of a core, for an idle loop";
  for (int i = 0; i < kLoops; ++i) {
    loops[i]->Post([&, i](Transport&) { endpoints[i] = nullptr; });
    loops[i]->Stop();
  }
}

TEST(Ucx, LeavesTheSignalsAlone) {
  RecordingReceiver receiver;
  const auto transport = *CreateUcxTransport(TestOptions(), receiver);
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
    struct sigaction action = {};
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
#ifndef SYNCLINE_SANITIZED
    EXPECT_EQ(action.sa_handler, SIG_DFL) << signal;
#endif
  }
}

TEST(Ucx, PayloadsOverTheLimitAreRefusedBeforeMemoryIsTakenAndOthersFlow) {
  for (const Reach reach : {Reach::kHostOnly, Reach::kNetwork}) {
    UcxRig rig(2, TestOptions(reach));
    const auto endpoint = *rig.transport(0).Connect(rig.transport(1).address(), {});
    const Buffer huge = Buffer::Allocate(size_t{64} << 20);
    int completed = 0;
    const auto count = [&](const absl::Status& status) { completed += status.ok(); };
    for (int i = 0; i < 4; ++i) {
      endpoint->Send(Bytes("huge"), {Slice::Of(huge)}, count);
      endpoint->Send(Bytes("just too large"),
                     {Slice::Of(huge, 0, kMaxMessagePayloadBytes + 1)}, count);
      endpoint->Send(Bytes("fits"), {Slice::Of(huge, 0, kMaxMessagePayloadBytes)}, count);
      endpoint->Send(Bytes("small"), {Slice::Of(huge, 0, 5)}, count);
    }
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (absl::Now() < deadline &&
           (rig.receiver(1).messages.size() < 8 || completed < 16)) {
      rig.Pump();
    }
    EXPECT_EQ(completed, 16);
    ASSERT_EQ(rig.receiver(1).messages.size(), 8u);
    EXPECT_EQ(rig.receiver(1).allocated_bytes, 4 * (kMaxMessagePayloadBytes + 5));
  }
}

TEST(Ucx, ASurvivorGoesOnAfterAPeerIsKilledInTheMiddleOfItsSends) {
  UcxPair pair;
  ASSERT_TRUE(pair.Echo("before", Buffer::Allocate(100)));
  for (int kill = 0; kill < 10; ++kill) {
    PeerProcess flooder;
    flooder.Tell("flood " + absl::BytesToHexString(pair.transport().address()));
    const size_t before = pair.receiver().messages.size();
    ASSERT_TRUE(
        pair.PumpUntil([&] { return pair.receiver().messages.size() > before + 20; }));
    flooder.Kill();
    pair.receiver().messages.clear();
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    bool answered = false;
    pair.endpoint().Send(Bytes("alive?"), {}, nullptr);
    while (!answered && absl::Now() < deadline) {
      pair.transport().Progress();
      for (const auto& message : pair.receiver().messages)
        answered |= message.header == "alive?";
    }
    ASSERT_TRUE(answered) << "after kill " << kill;
    pair.receiver().messages.clear();
  }
}

}  // namespace
}  // namespace syncline
