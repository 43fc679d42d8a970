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

  // Ends the sleep whenever `fd` is readable; Sleep then returns `tag`, unless it is
  // null.
  void Add(int fd, void* tag);
  void Remove(int fd);

  // Until something is readable, Wake() was called, or `timeout` passed. Returns the tag
  // of one readable descriptor, or null.
  void* Sleep(absl::Duration timeout);

  void Wake();

 private:
  Sleeper(int epoll_fd, int wake_fd) : epoll_fd_(epoll_fd), wake_fd_(wake_fd) {}

  const int epoll_fd_;
  const int wake_fd_;
};

}  // namespace syncline
