#include "cli/tee_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

// As much as a large pipe holds, so that a short pause of the reader stops nothing.
constexpr size_t kMaxPending = size_t{1} << 20;

UniqueFd OpenAgain(int fd) {
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !(S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))) {
    return UniqueFd();
  }
  return UniqueFd(open(absl::StrCat("/proc/self/fd/", fd).c_str(),
                       O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

TeeStream::TeeStream(int fd) : fd_(fd), own_(OpenAgain(fd)) {}

void TeeStream::Write(std::string_view bytes) {
  pending_.append(bytes);
  Flush();
}

void TeeStream::Flush() {
  size_t done = 0;
  while (done < pending_.size()) {
    const ssize_t written = write(fd(), pending_.data() + done, pending_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) break;
    // A closed terminal or a full disk must not stop the job.
    done = written <= 0 ? pending_.size() : done + static_cast<size_t>(written);
  }
  pending_.erase(0, done);
}

bool TeeStream::is_full() const { return pending_.size() >= kMaxPending; }

}  // namespace syncline
