#include "comm/base/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <limits>

namespace syncline {
namespace {

constexpr uint64_t kLeastByPosix = 20;  // _POSIX_OPEN_MAX
constexpr uint64_t kPartOfTheLast = 8;

}  // namespace

uint64_t MostDescriptors() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : kLeastByPosix;
}

int FirstOfTheLast() {
  constexpr uint64_t kMost = std::numeric_limits<int>::max();
  const uint64_t most = std::min(MostDescriptors(), kMost);
  return static_cast<int>(most - most / kPartOfTheLast);
}

bool IsShortOfDescriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace syncline
