// Writes one of the launcher's own output streams without ever blocking. If its reader
// (`| less`) stops reading, the launcher must still handle signals and exits of children.
//
//   TeeStream out(STDOUT_FILENO);
//   out.Write("[worker1]: loss 0.5\n");
//   if (out.has_pending()) ... poll out.fd() for POLLOUT, then out.Flush() ...
//
// Used by one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "comm/base/unique_fd.h"

namespace syncline {

class TeeStream {
 public:
  explicit TeeStream(int fd);

  // Writes what can be written now and buffers the rest.
  void Write(std::string_view bytes);
  void Flush();

  bool has_pending() const { return !pending_.empty(); }
  // Whether so much is buffered that the sources should not be read now.
  bool is_full() const;
  int fd() const { return own_.valid() ? own_.get() : fd_; }

 private:
  const int fd_;
  // The same pipe or terminal, opened once more: O_NONBLOCK on `fd_` itself would also
  // hold for the children that share it. Invalid for files, which never block.
  const UniqueFd own_;
  std::string pending_;
};

}  // namespace syncline
