// A file in memory, for functions that read files by path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <iterator>
#include <string>

#include "comm/base/buffer.h"
#include "comm/base/check.h"

namespace syncline::fuzz {

class MemoryFile {
 public:
  explicit MemoryFile(ByteView bytes) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    SYNCLINE_CHECK(descriptor_ >= 0);
    SYNCLINE_CHECK(write(descriptor_, bytes.data(), bytes.size()) == std::ssize(bytes));
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  const int descriptor_;
};

}  // namespace syncline::fuzz
