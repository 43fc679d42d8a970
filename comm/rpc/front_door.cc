#include "comm/rpc/front_door.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr int kEventsAtOnce = 64;
constexpr int kPauseMs = 50;  // after no descriptor was left
constexpr uint64_t kLeastWaiting = 16, kMaxWaiting = 1024;
// At most an eighth as many connections as descriptors may wait; each takes two of them.
constexpr uint64_t kPartWaiting = 8;

// epoll's tags: 0 is a wake-up, listeners have their descriptor, and waiting connections
// have numbers from kFirstNumber on.
constexpr uint64_t kWakeTag = 0;
constexpr uint64_t kFirstNumber = uint64_t{1} << 32;

void Set(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

std::string KeyOf(const SocketName& name) {
  std::string key(reinterpret_cast<const char*>(&name.host), sizeof(name.host));
  return absl::StrCat(key, ":", name.port);
}

}  // namespace

size_t MostWaiting(uint64_t descriptors) {
  return std::clamp(descriptors / kPartWaiting, kLeastWaiting, kMaxWaiting);
}

size_t MostWaiting() { return MostWaiting(MostDescriptors()); }

absl::StatusOr<std::unique_ptr<FrontDoor>> FrontDoor::Open(HostPort& address,
                                                           FrontDoorOptions options) {
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<UniqueFd> listeners, ListenAtAll(address));
  Events events = {.epoll = UniqueFd(epoll_create1(EPOLL_CLOEXEC)),
                   .wake = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC))};
  if (!events.epoll.valid() || !events.wake.valid()) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve on ", address.ToString(),
                     ": no descriptor is left; raise ulimit -n"));
  }
  return std::unique_ptr<FrontDoor>(
      new FrontDoor(std::move(listeners), std::move(events), std::move(options)));
}

FrontDoor::FrontDoor(std::vector<UniqueFd> listeners, Events events,
                     FrontDoorOptions options)
    : listeners_(std::move(listeners)),
      options_(std::move(options)),
      events_(std::move(events)),
      next_(kFirstNumber) {
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = kWakeTag}};
  epoll_ctl(events_.epoll.get(), EPOLL_CTL_ADD, events_.wake.get(), &event);
  for (const UniqueFd& listener : listeners_) {
    Watch(listener.get(), EPOLL_CTL_ADD, EPOLLIN);
  }
}

void FrontDoor::Start() {
  SYNCLINE_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void FrontDoor::Close() {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(is_closing_, true)) return;
  }
  const uint64_t one = 1;
  SYNCLINE_CHECK(write(events_.wake.get(), &one, sizeof(one)) == sizeof(one));
  if (thread_.joinable()) thread_.join();
  for (const UniqueFd& listener : listeners_) shutdown(listener.get(), SHUT_RDWR);
  absl::MutexLock lock(&mutex_);
  while (!waiting_.empty()) Forget(waiting_.begin()->first);
}

void FrontDoor::Watch(int listener, int operation, uint32_t events) {
  epoll_event event = {.events = events,
                       .data = {.u64 = static_cast<uint64_t>(listener)}};
  epoll_ctl(events_.epoll.get(), operation, listener, &event);
}

bool FrontDoor::IsClosing() const {
  absl::MutexLock lock(&mutex_);
  return is_closing_;
}

void FrontDoor::Run() {
  std::array<epoll_event, kEventsAtOnce> events;
  while (!IsClosing()) {
    const int count = epoll_wait(events_.epoll.get(), events.data(), kEventsAtOnce, -1);
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[i].data.u64;
      if (tag == kWakeTag) return;
      if (tag < kFirstNumber) {
        AcceptFrom(static_cast<int>(tag));
      } else {  // the peer has left, or gRPC has closed it
        absl::MutexLock lock(&mutex_);
        Forget(tag);
      }
    }
  }
}

void FrontDoor::AcceptFrom(int listener) {
  sockaddr_storage from = {};
  socklen_t size = sizeof(from);
  const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&from), &size,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    if (IsShortOfDescriptors(errno)) MakeRoom();
    return;
  }
  if (fd >= options_.first_of_the_last) {
    close(fd);
    return Pause();
  }
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<int>(absl::ToInt64Milliseconds(options_.failure_timeout)));
  const auto& peer = reinterpret_cast<const sockaddr&>(from);
  Waiting waiting = {.copy = UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)),
                     .peer = NameOf(peer)};
  if (!waiting.copy.valid()) {
    close(fd);
    return MakeRoom();
  }
  // Must come before gRPC can call LetIn for this connection.
  const std::string gone = Add(std::move(waiting), SourceOf(peer));
  if (!gone.empty()) options_.on_crowded(gone);
  options_.take(fd, listener);
}

// Closes waiting connections after no descriptor was left.
void FrontDoor::MakeRoom() {
  std::vector<std::string> gone;
  {
    absl::MutexLock lock(&mutex_);
    for (const Number number : crowd_.ToMakeMuchRoom()) gone.push_back(End(number));
  }
  for (const std::string& source : gone) options_.on_crowded(source);
  Pause();
}

// Stops accepting for a moment, in which ended connections are closed.
void FrontDoor::Pause() {
  if (std::has_single_bit(++shortages_)) {
    options_.log.Warning("few descriptors are left: connections wait; raise ulimit -n",
                         {{"times", shortages_}});
  }
  for (const UniqueFd& listener : listeners_) {
    Watch(listener.get(), EPOLL_CTL_MOD, 0);
  }
  // There is nothing else to do meanwhile, except to close the door.
  epoll_event event;
  (void)epoll_wait(events_.epoll.get(), &event, 1, kPauseMs);
  for (const UniqueFd& listener : listeners_) {
    Watch(listener.get(), EPOLL_CTL_MOD, EPOLLIN);
  }
}

std::string FrontDoor::Add(Waiting waiting, std::string source) {
  absl::MutexLock lock(&mutex_);
  const std::string gone =
      crowd_.size() >= options_.most_waiting ? End(crowd_.ToMakeRoom()) : "";
  const Number number = next_++;
  epoll_event event = {.events = EPOLLRDHUP, .data = {.u64 = number}};
  epoll_ctl(events_.epoll.get(), EPOLL_CTL_ADD, waiting.copy.get(), &event);
  numbers_[KeyOf(waiting.peer)] = number;
  crowd_.Add(number, std::move(source));
  waiting_.emplace(number, std::move(waiting));
  return gone;
}

std::string FrontDoor::End(Number number) {
  std::string source = crowd_.source(number);
  shutdown(waiting_.at(number).copy.get(), SHUT_RDWR);
  Forget(number);
  return source;
}

void FrontDoor::Forget(Number number) {
  const auto found = waiting_.find(number);
  if (found == waiting_.end()) return;
  const Waiting& going = found->second;
  // Closing this descriptor would not remove it from epoll, because gRPC's descriptor
  // refers to the same socket.
  epoll_ctl(events_.epoll.get(), EPOLL_CTL_DEL, going.copy.get(), nullptr);
  if (const auto named = numbers_.find(KeyOf(going.peer));
      named != numbers_.end() && named->second == number) {
    numbers_.erase(named);
  }
  crowd_.Remove(number);
  waiting_.erase(found);
}

void FrontDoor::LetIn(const std::string& peer) {
  const std::optional<SocketName> name = ParsePeer(peer);
  if (!name) return;
  absl::MutexLock lock(&mutex_);
  const auto found = numbers_.find(KeyOf(*name));
  if (found != numbers_.end()) Forget(found->second);
}

size_t FrontDoor::waiting() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.size();
}

}  // namespace syncline
