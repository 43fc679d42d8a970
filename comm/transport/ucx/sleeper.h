// What a transport sleeps on: UCX's descriptor, wake-ups from other threads, and the ends
// of peer processes.
//
// Thread safety: Wake() any thread, the rest one thread.
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

  // Ends the sleep whenever `fd` is readable.
  void Add(int fd);

  // Ends the sleep as well, and Ended() returns `tag` from then on until Unwatch.
  void Watch(int fd, void* tag);
  void Unwatch(int fd);

  // The tag of one watched descriptor that is readable, or null. Does not wait.
  void* Ended() const;

  // Until something is readable, Wake() was called, or `timeout` passed.
  void Sleep(absl::Duration timeout);

  void Wake();

 private:
  Sleeper(int epoll_fd, int ends_fd, int wake_fd)
      : epoll_fd_(epoll_fd), ends_fd_(ends_fd), wake_fd_(wake_fd) {}

  const int epoll_fd_;
  const int ends_fd_;  // the watched ones; lies in epoll_fd_
  const int wake_fd_;
};

}  // namespace syncline
