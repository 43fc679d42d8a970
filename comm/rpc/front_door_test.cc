#include "comm/rpc/front_door.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/eventually.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;

sockaddr_in At(const std::string& host, uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

// A peer that connects and sends nothing.
class Caller {
 public:
  explicit Caller(const std::string& from) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const sockaddr_in own = At(from, 0);
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
  }
  Caller(const std::string& from, uint16_t port) : Caller(from) { Dial(port); }

  void Dial(uint16_t port) {
    const sockaddr_in there = At("127.0.0.1", port);
    EXPECT_EQ(
        connect(fd_.get(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)), 0);
  }
  bool CanDial(uint16_t port) const {
    const sockaddr_in there = At("127.0.0.1", port);
    return connect(fd_.get(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)) ==
           0;
  }
  // Returns gRPC's name of this peer.
  std::string name() const {
    sockaddr_in own = {};
    socklen_t size = sizeof(own);
    EXPECT_EQ(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
    std::string host(INET_ADDRSTRLEN, '\0');
    inet_ntop(AF_INET, &own.sin_addr, host.data(), INET_ADDRSTRLEN);
    return absl::StrCat("ipv4:", host.c_str(), ":", ntohs(own.sin_port));
  }
  bool IsOver() const {
    char byte = 0;
    return recv(fd_.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

class FrontDoorTest : public ::testing::Test {
 protected:
  void Open(size_t most_waiting) {
    FrontDoorOptions options;
    options.take = [this](int fd, int) {
      absl::MutexLock lock(&mutex_);
      taken_.emplace_back(fd);
    };
    options.on_crowded = [this](const std::string& source) {
      absl::MutexLock lock(&mutex_);
      crowded_.push_back(source);
    };
    options.log = Logger::Create({.function = [this](LogLevel, const std::string& line) {
      absl::MutexLock lock(&mutex_);
      said_.push_back(line);
    }});
    options.most_waiting = most_waiting;
    options.first_of_the_last = first_of_the_last_;
    door_ = *FrontDoor::Open(address_, std::move(options));
    door_->Start();
  }
  // Returns true once `count` connections were accepted.
  bool HasTaken(size_t count) {
    return Eventually([&] {
      absl::MutexLock lock(&mutex_);
      return taken_.size() >= count;
    });
  }
  bool HasTakenFrom(const std::string& host) {
    absl::MutexLock lock(&mutex_);
    return std::ranges::any_of(taken_, [&](const UniqueFd& fd) {
      sockaddr_in peer = {};
      socklen_t size = sizeof(peer);
      getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &size);
      return peer.sin_addr.s_addr == At(host, 0).sin_addr.s_addr;
    });
  }
  std::vector<std::string> crowded() {
    absl::MutexLock lock(&mutex_);
    return crowded_;
  }

  HostPort address_ = {"127.0.0.1", 0};
  int first_of_the_last_ = FirstOfTheLast();
  absl::Mutex mutex_;
  std::vector<UniqueFd> taken_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> crowded_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> said_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<FrontDoor> door_;
};

TEST_F(FrontDoorTest, AFloodFromOneAddressCrowdsOutItself) {
  Open(8);
  const Caller other("127.0.0.3", address_.port);
  ASSERT_TRUE(HasTaken(1));
  std::vector<Caller> flood;
  for (int i = 0; i < 30; ++i) flood.emplace_back("127.0.0.2", address_.port);
  ASSERT_TRUE(HasTaken(31));
  ASSERT_THAT(crowded(), SizeIs(23));
  ASSERT_THAT(crowded(), Each("127.0.0.2"));
  EXPECT_FALSE(other.IsOver());
  for (int i = 0; i < 23; ++i) EXPECT_TRUE(Eventually([&] { return flood[i].IsOver(); }));
  for (int i = 23; i < 30; ++i) EXPECT_FALSE(flood[i].IsOver());
  EXPECT_EQ(door_->waiting(), 8u);
}

TEST_F(FrontDoorTest, WhoWasLetInMakesRoomForNobody) {
  Open(4);
  const Caller member("127.0.0.2", address_.port);
  ASSERT_TRUE(HasTaken(1));
  door_->LetIn(member.name());
  EXPECT_EQ(door_->waiting(), 0u);
  door_->LetIn(member.name());  // another call
  door_->LetIn("unix:");
  std::vector<Caller> flood;
  for (int i = 0; i < 10; ++i) flood.emplace_back("127.0.0.2", address_.port);
  ASSERT_TRUE(HasTaken(11));
  EXPECT_THAT(crowded(), SizeIs(6));
  EXPECT_FALSE(member.IsOver());
}

TEST_F(FrontDoorTest, WhoHasGoneDoesNotWait) {
  Open(4);
  for (int i = 0; i < 10; ++i) {
    { const Caller caller("127.0.0.2", address_.port); }
    ASSERT_TRUE(HasTaken(static_cast<size_t>(i) + 1));
    ASSERT_TRUE(Eventually([&] { return door_->waiting() == 0; }));
  }
  EXPECT_THAT(crowded(), IsEmpty());
}

// gRPC's own listener would never accept again.
TEST_F(FrontDoorTest, ListensOnAfterNoDescriptorWasLeft) {
  Open(1000);
  std::vector<Caller> flood;
  for (int i = 0; i < 40; ++i) flood.emplace_back("127.0.0.2");
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {static_cast<rlim_t>(flood.back().fd()) + 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  for (Caller& caller : flood) caller.Dial(address_.port);
  const bool is_short = Eventually([&] {
    absl::MutexLock lock(&mutex_);
    return !said_.empty();
  });
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(is_short);
  const Caller late("127.0.0.3", address_.port);
  EXPECT_TRUE(Eventually([&] { return HasTakenFrom("127.0.0.3"); }));
  EXPECT_FALSE(late.IsOver());
}

// gRPC closes ended connections a little later. Until then no other connection must be
// closed.
TEST_F(FrontDoorTest, WhileFewDescriptorsAreLeftOthersWaitOutside) {
  std::vector<Caller> flood;
  for (int i = 0; i < 20; ++i) flood.emplace_back("127.0.0.2");
  first_of_the_last_ = flood.back().fd() + 20;  // each takes two
  Open(1000);
  for (Caller& caller : flood) caller.Dial(address_.port);
  ASSERT_TRUE(Eventually([&] {
    absl::MutexLock lock(&mutex_);
    return !said_.empty();
  }));
  EXPECT_THAT(crowded(), IsEmpty());
  const size_t waiting = door_->waiting();
  EXPECT_GT(waiting, 0U);
  EXPECT_LT(waiting, 20U);
  EXPECT_FALSE(flood[0].IsOver());
  {
    absl::MutexLock lock(&mutex_);
    taken_.clear();
  }
  for (Caller& caller : flood) shutdown(caller.fd(), SHUT_RDWR);
  ASSERT_TRUE(Eventually([&] { return door_->waiting() == 0; }));
  const Caller late("127.0.0.3", address_.port);
  EXPECT_TRUE(Eventually([&] { return HasTakenFrom("127.0.0.3"); }));
}

TEST_F(FrontDoorTest, TakesNobodyInOnceItIsClosed) {
  Open(4);
  const Caller caller("127.0.0.2", address_.port);
  ASSERT_TRUE(HasTaken(1));
  door_->Close();
  door_->LetIn(caller.name());
  EXPECT_EQ(door_->waiting(), 0u);
  EXPECT_FALSE(caller.IsOver()) << "what was taken in stays";
  const Caller late("127.0.0.3");
  EXPECT_FALSE(late.CanDial(address_.port));
}

TEST(FrontDoor, SomeOfTheDescriptorsAreForThoseWhoWait) {
  EXPECT_EQ(MostWaiting(20), 16u);
  EXPECT_EQ(MostWaiting(1024), 128u);
  EXPECT_EQ(MostWaiting(1 << 20), 1024u);
}

TEST(FrontDoor, ListensAtAllAddressesOfAName) {
  HostPort address = {"localhost", 0};
  const auto listeners = ListenAtAll(address);
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  EXPECT_THAT(*listeners, testing::Not(IsEmpty()));
  EXPECT_NE(address.port, 0);
  HostPort again = address;
  EXPECT_FALSE(ListenAtAll(again).ok());
}

}  // namespace
}  // namespace syncline
