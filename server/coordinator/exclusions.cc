#include "server/coordinator/exclusions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/base/printable.h"
#include "server/coordinator/member_names.h"

namespace syncline {
namespace {

constexpr absl::Duration kFirstWait = absl::Minutes(10);
constexpr absl::Duration kLongestWait = absl::Hours(1);
constexpr uint32_t kMaxDoublings = 3;
constexpr size_t kMaxRecords = 256;

}  // namespace

void Exclusions::Add(uint32_t rank, const std::string& name, absl::Duration now) {
  Record& record = records_[{rank, HostOfMember(name)}];
  ++record.times;
  record.at = now;
  ++count_;
  if (records_.size() > kMaxRecords) ForgetOldest();
}

void Exclusions::ForgetOldest() {
  // Records without a time are from before a restart, so they are the oldest.
  const auto oldest = std::ranges::min_element(records_, {}, [](const auto& entry) {
    return entry.second.at.value_or(-absl::InfiniteDuration());
  });
  records_.erase(oldest);
}

absl::Duration Exclusions::Wait(uint32_t rank, const std::string& name) const {
  const auto record = records_.find({rank, HostOfMember(name)});
  if (record == records_.end()) return absl::ZeroDuration();
  const uint32_t doublings = std::min(record->second.times - 1, kMaxDoublings);
  return std::min(kFirstWait * (1 << doublings), kLongestWait);
}

bool Exclusions::MayJoin(uint32_t rank, const std::string& name,
                         absl::Duration now) const {
  const auto record = records_.find({rank, HostOfMember(name)});
  if (record == records_.end()) return true;
  return record->second.at && now - *record->second.at >= Wait(rank, name);
}

std::string Exclusions::Why(uint32_t rank, const std::string& name,
                            absl::Duration now) const {
  if (MayJoin(rank, name, now)) return "";
  const Record& record = records_.at({rank, HostOfMember(name)});
  const absl::Duration left = Wait(rank, name) - (now - record.at.value_or(now));
  return absl::StrFormat(
      "rank %u was excluded on host %s, where it held up all others; it may join again "
      "in %.0f s, or at once on another host",
      rank, Printable(HostOfMember(name)), absl::ToDoubleSeconds(left));
}

std::vector<RecordedExclusion> Exclusions::ToRecord() const {
  std::vector<RecordedExclusion> recorded;
  for (const auto& [key, record] : records_) {
    recorded.push_back({key.first, key.second, record.times});
  }
  return recorded;
}

void Exclusions::Restore(const std::vector<RecordedExclusion>& recorded, uint32_t count) {
  for (const RecordedExclusion& one : recorded) {
    records_[{one.rank, one.host}] = {.times = std::max(one.times, 1U)};
  }
  count_ = count;
}

void Exclusions::Tick(absl::Duration now) {
  for (auto& [key, record] : records_) {
    if (!record.at) record.at = now;
  }
}

}  // namespace syncline
