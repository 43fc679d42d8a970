#include "comm/transport/ucx/sleeper.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"

namespace syncline {

absl::StatusOr<std::unique_ptr<Sleeper>> Sleeper::Create() {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  const int wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  auto sleeper = std::unique_ptr<Sleeper>(new Sleeper(epoll_fd, wake_fd));
  if (epoll_fd < 0 || wake_fd < 0) {
    return absl::ResourceExhaustedError("no descriptor left for a transport (ulimit -n)");
  }
  sleeper->Add(wake_fd, sleeper.get());
  return sleeper;
}

Sleeper::~Sleeper() {
  if (wake_fd_ >= 0) close(wake_fd_);
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

void Sleeper::Add(int fd, void* tag) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = tag;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
}

void Sleeper::Remove(int fd) { epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr); }

void* Sleeper::Sleep(absl::Duration timeout) {
  // ppoll around epoll: epoll alone counts in milliseconds.
  pollfd all = {epoll_fd_, POLLIN, 0};
  const timespec limit = absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
  if (ppoll(&all, 1, timeout == absl::InfiniteDuration() ? nullptr : &limit, nullptr) <=
      0) {
    return nullptr;
  }
  void* tag = nullptr;
  epoll_event events[8];
  const int count = epoll_wait(epoll_fd_, events, 8, 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr == this) {
      uint64_t wakes;
      (void)!read(wake_fd_, &wakes, sizeof(wakes));
    } else if (events[i].data.ptr != nullptr) {
      tag = events[i].data.ptr;
    }
  }
  return tag;
}

void Sleeper::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one,
               sizeof(one));  // fails only when a wake-up is pending already
}

}  // namespace syncline
