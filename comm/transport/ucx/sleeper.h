// The events that end a transport's sleep: UCX's descriptor, wake-ups from other threads,
// and ends of peer processes.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncline {

class Sleeper {
 public:
  static absl::StatusOr<std::unique_ptr<Sleeper>> Create();
  ~Sleeper();

  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  // Makes `fd` end the sleep whenever it is readable.
  void Add(int fd);

  // Makes `fd` end the sleep too. Once it is readable, Ended() returns `tag` until
  // Unwatch.
  void Watch(int fd, void* tag);
  void Unwatch(int fd);

  // Returns the tag of one watched descriptor that is readable, or null. Does not wait.
  void* Ended() const;

  // Sleeps until something is readable, Wake() is called, or `timeout` has passed.
  void Sleep(absl::Duration timeout);

  void Wake();

 private:
  Sleeper(int epoll_fd, int ends_fd, int wake_fd)
      : epoll_fd_(epoll_fd), ends_fd_(ends_fd), wake_fd_(wake_fd) {}

  const int epoll_fd_;
  const int ends_fd_;  // the watched descriptors; part of epoll_fd_
  const int wake_fd_;
};

}  // namespace syncline
