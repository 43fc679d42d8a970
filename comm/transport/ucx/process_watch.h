// Tells when a process of this host has ended, at once and even after SIGKILL; UCX
// notices it late. It holds a pidfd, so it is not misled if the system reuses the number
// of an ended process.
#pragma once

#include <cstdint>
#include <memory>

namespace syncline {

class ProcessWatch {
 public:
  // Returns null if there is no such process, or the kernel has no pidfds.
  static std::shared_ptr<const ProcessWatch> Open(uint32_t process_id);
  ~ProcessWatch();

  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  bool Ended() const;

  // The descriptor is readable once the process has ended.
  int fd() const { return fd_; }

 private:
  explicit ProcessWatch(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace syncline
