#include "server/journal/backlog.h"

#include <algorithm>

namespace syncline {

void Backlog::Add(uint64_t job, uint64_t bytes, absl::Duration now) {
  if (held_ == 0) moved_ = now;  // the disk had nothing to do
  held_ += bytes;
  waiting_[job] += bytes;
}

void Backlog::Begin(uint64_t job, uint64_t bytes) {
  const auto waiting = waiting_.find(job);
  waiting->second -= bytes;
  if (waiting->second == 0) waiting_.erase(waiting);
}

void Backlog::Done(uint64_t bytes, absl::Duration now) {
  held_ -= bytes;
  moved_ = now;
}

void Backlog::Drop(uint64_t job) {
  const auto waiting = waiting_.find(job);
  if (waiting == waiting_.end()) return;
  held_ -= waiting->second;
  waiting_.erase(waiting);
}

std::optional<uint64_t> Backlog::largest() const {
  const auto most = std::ranges::max_element(
      waiting_, {}, [](const auto& waiting) { return waiting.second; });
  if (most == waiting_.end()) return std::nullopt;
  return most->first;
}

}  // namespace syncline
