// One of the launcher's own output streams, written without ever blocking: whoever reads
// it (`| less`) may stop reading, and the launcher must still hear signals and see its
// children die.
//
//   TeeStream out(STDOUT_FILENO);
//   out.Write("[worker1]: loss 0.5\n");
//   if (out.has_pending()) ... poll out.fd() for POLLOUT, then out.Flush() ...
//
// Belongs to one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "comm/base/unique_fd.h"

namespace syncline {

class TeeStream {
 public:
  explicit TeeStream(int fd);

  // Writes what can be written now and keeps the rest.
  void Write(std::string_view bytes);
  void Flush();

  bool has_pending() const { return !pending_.empty(); }
  // So much is kept that its sources should not be read for now.
  bool is_full() const;
  int fd() const { return own_.valid() ? own_.get() : fd_; }

 private:
  const int fd_;
  // The same pipe or terminal, opened once more: O_NONBLOCK on `fd_` itself would also hold
  // for the children that share it. Invalid for files, which never block.
  const UniqueFd own_;
  std::string pending_;
};

}  // namespace syncline
