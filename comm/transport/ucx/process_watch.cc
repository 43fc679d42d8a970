#include "comm/transport/ucx/process_watch.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace syncline {

std::shared_ptr<const ProcessWatch> ProcessWatch::Open(uint32_t process_id) {
  // Calls by number: glibc 2.36 declares pidfd_open in a header that other C libraries do
  // not have.
  const long fd = syscall(SYS_pidfd_open, static_cast<pid_t>(process_id), 0);
  if (fd < 0) return nullptr;
  return std::shared_ptr<const ProcessWatch>(new ProcessWatch(static_cast<int>(fd)));
}

ProcessWatch::~ProcessWatch() { close(fd_); }

bool ProcessWatch::Ended() const {
  pollfd descriptor = {fd_, POLLIN, 0};
  return poll(&descriptor, 1, 0) > 0;
}

}  // namespace syncline
