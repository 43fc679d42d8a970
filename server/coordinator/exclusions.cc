#include "server/coordinator/exclusions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

constexpr absl::Duration kFirstWait = absl::Minutes(10);
constexpr absl::Duration kLongestWait = absl::Hours(1);
constexpr uint32_t kMostDoublings = 3;

std::string HostOf(const std::string& name) { return name.substr(0, name.rfind(':')); }

}  // namespace

void Exclusions::Add(uint32_t rank, const std::string& name, absl::Duration now) {
  Record& record = records_[rank];
  const std::string host = HostOf(name);
  record = {.host = host, .times = record.host == host ? record.times + 1 : 1, .at = now};
}

absl::Duration Exclusions::Wait(uint32_t rank) const {
  const auto record = records_.find(rank);
  if (record == records_.end()) return absl::ZeroDuration();
  const uint32_t doublings = std::min(record->second.times - 1, kMostDoublings);
  return std::min(kFirstWait * (1 << doublings), kLongestWait);
}

bool Exclusions::MayJoin(uint32_t rank, const std::string& name,
                         absl::Duration now) const {
  const auto record = records_.find(rank);
  if (record == records_.end() || record->second.host != HostOf(name)) return true;
  return record->second.at && now - *record->second.at >= Wait(rank);
}

std::string Exclusions::Why(uint32_t rank, absl::Duration now) const {
  const auto record = records_.find(rank);
  if (record == records_.end()) return "";
  const absl::Duration left = Wait(rank) - (now - record->second.at.value_or(now));
  return absl::StrFormat(
      "rank %u was excluded on host %s, where it held up all others; it may join again "
      "in "
      "%.0f s, and on another host at once",
      rank, Printable(record->second.host), absl::ToDoubleSeconds(left));
}

uint32_t Exclusions::count() const {
  uint32_t count = 0;
  for (const auto& [rank, record] : records_) count += record.times;
  return count;
}

std::vector<RecordedExclusion> Exclusions::ToRecord() const {
  std::vector<RecordedExclusion> recorded;
  for (const auto& [rank, record] : records_) {
    recorded.push_back({rank, record.host, record.times});
  }
  return recorded;
}

void Exclusions::Restore(const std::vector<RecordedExclusion>& recorded) {
  for (const RecordedExclusion& one : recorded) {
    records_[one.rank] = {.host = one.host, .times = std::max(one.times, 1U)};
  }
}

void Exclusions::Tick(absl::Duration now) {
  for (auto& [rank, record] : records_) {
    if (!record.at) record.at = now;
  }
}

}  // namespace syncline
