#include "cli/link_probe.h"

#include <sys/socket.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST(DefaultAdmin, IsBesideTheDefaultControlPortOnly) {
  EXPECT_EQ(DefaultAdmin("192.0.2.7:7070"), "192.0.2.7:7071");
  EXPECT_EQ(DefaultAdmin("[2001:db8::7]:7070"), "[2001:db8::7]:7071");
  EXPECT_EQ(DefaultAdmin("192.0.2.7:7072"), "");
  EXPECT_EQ(DefaultAdmin("nonsense"), "");
}

// Accepts two connections, one after the other, and sends `reply` on each.
class SameReply {
 public:
  explicit SameReply(std::string reply)
      : listener_(*Listen(address_)), thread_([this, reply = std::move(reply)] {
          for (int i = 0; i < 2; ++i) {
            const UniqueFd peer(accept(listener_.get(), nullptr, nullptr));
            if (!peer.valid()) return;
            char request[256];
            recv(peer.get(), request, sizeof(request), 0);
            send(peer.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
          }
        }) {}
  ~SameReply() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string address() const { return address_.ToString(); }

 private:
  HostPort address_ = {"127.0.0.1", 0};
  UniqueFd listener_;
  std::thread thread_;
};

TEST(ProbeAdmin, BelievesOnlyAnAdminPortThatIsAlive) {
  const SameReply alive("HTTP/1.1 200 OK\r\n\r\nalive\n");
  EXPECT_TRUE(ProbeAdmin(alive.address()).took.ok());
  const SameReply other("HTTP/1.1 404 Not Found\r\n\r\n");
  const LinkProbe probe = ProbeAdmin(other.address());
  EXPECT_EQ(probe.address, other.address());
  EXPECT_THAT(probe.took.status().message(), HasSubstr("neither /livez nor a TLS"));
}

TEST(ProbePorts, NamesThePortThatNobodyListensAt) {
  HostPort open = {"127.0.0.1", 0};
  const auto listener = Listen(open);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::string closed = absl::StrCat("127.0.0.1:", *PickFreePort("127.0.0.1"));
  const auto probes = ProbePorts({open.ToString(), closed});
  ASSERT_EQ(probes.size(), 2u);
  EXPECT_EQ(probes[0].address, open.ToString());
  EXPECT_TRUE(probes[0].took.ok()) << probes[0].took.status();
  EXPECT_EQ(probes[1].address, closed);
  EXPECT_THAT(probes[1].took.status().message(), HasSubstr("nothing listens there"));
  EXPECT_TRUE(ProbePorts({}).empty());
}

}  // namespace
}  // namespace syncline
