// Tells when a process of this host has ended, also by SIGKILL and at once, which UCX
// notices late. Holds a pidfd: the number of an ended process that the system gives away
// again does not mislead it.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <memory>

namespace syncline {

class ProcessWatch {
 public:
  // Null when there is no such process, or the kernel has no pidfds.
  static std::shared_ptr<const ProcessWatch> Open(uint32_t process_id);
  ~ProcessWatch();

  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  bool Ended() const;

  // Readable once the process has ended.
  int fd() const { return fd_; }

 private:
  explicit ProcessWatch(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace syncline
