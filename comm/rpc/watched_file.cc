#include "comm/rpc/watched_file.h"

#include <sys/stat.h>

namespace syncline {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);

}  // namespace

bool WatchedFile::IsDue() const {
  return Now() - absl::Nanoseconds(looked_at_ns_.load()) >= kLookEvery;
}

bool WatchedFile::HasChanged() {
  looked_at_ns_ = absl::ToInt64Nanoseconds(Now());
  const Stamp now = StampNow();
  const bool is_first = !std::exchange(has_looked_, true);
  return std::exchange(stamp_, now) != now || is_first;
}

absl::Duration WatchedFile::Now() const {
  return given_clock_ != nullptr ? given_clock_->Now() : clock_.Now();
}

WatchedFile::Stamp WatchedFile::StampNow() const {
  struct stat found = {};
  if (stat(path_.c_str(), &found) != 0) return {};
  return {found.st_ino, found.st_size, found.st_mtim.tv_sec, found.st_mtim.tv_nsec};
}

}  // namespace syncline
