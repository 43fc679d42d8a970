#include "comm/transport/ucx/sleeper.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"

namespace syncline {
namespace {

void Insert(int epoll_fd, int fd, void* tag) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = tag;
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sleeper>> Sleeper::Create() {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  const int ends_fd = epoll_create1(EPOLL_CLOEXEC);
  const int wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  auto sleeper = std::unique_ptr<Sleeper>(new Sleeper(epoll_fd, ends_fd, wake_fd));
  if (epoll_fd < 0 || ends_fd < 0 || wake_fd < 0) {
    return absl::ResourceExhaustedError("no descriptor left for a transport (ulimit -n)");
  }
  sleeper->Add(wake_fd);
  sleeper->Add(ends_fd);
  return sleeper;
}

Sleeper::~Sleeper() {
  if (wake_fd_ >= 0) close(wake_fd_);
  if (ends_fd_ >= 0) close(ends_fd_);
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

void Sleeper::Add(int fd) { Insert(epoll_fd_, fd, nullptr); }

void Sleeper::Watch(int fd, void* tag) { Insert(ends_fd_, fd, tag); }

void Sleeper::Unwatch(int fd) { epoll_ctl(ends_fd_, EPOLL_CTL_DEL, fd, nullptr); }

void* Sleeper::Ended() const {
  epoll_event event;
  return epoll_wait(ends_fd_, &event, 1, 0) > 0 ? event.data.ptr : nullptr;
}

void Sleeper::Sleep(absl::Duration timeout) {
  // Uses ppoll on the epoll descriptor, because epoll_wait counts in milliseconds.
  pollfd all = {epoll_fd_, POLLIN, 0};
  const timespec limit = absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
  if (ppoll(&all, 1, timeout == absl::InfiniteDuration() ? nullptr : &limit, nullptr) >
      0) {
    uint64_t wakes;
    (void)!read(wake_fd_, &wakes, sizeof(wakes));  // does not block
  }
}

void Sleeper::Wake() {
  const uint64_t one = 1;
  // This fails only if a wake-up is already pending.
  (void)!write(wake_fd_, &one, sizeof(one));
}

}  // namespace syncline
