#include "server/store/memory_store.h"

#include "comm/base/status.h"

namespace syncline {

absl::StatusOr<std::optional<Versioned>> MemoryStore::Load(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return std::optional<Versioned>();
  return std::optional<Versioned>(found->second);
}

absl::StatusOr<int64_t> MemoryStore::CompareAndSet(std::string_view key,
                                                   int64_t expected_version,
                                                   std::string_view value) {
  SYNCLINE_RETURN_IF_ERROR(CheckValueSize(key, value));
  absl::MutexLock lock(&mutex_);
  const auto found = values_.find(key);
  const int64_t version = found == values_.end() ? kAbsent : found->second.version;
  if (version != expected_version) return VersionConflict(key, expected_version, version);
  values_[std::string(key)] = {version + 1, std::string(value)};
  return version + 1;
}

absl::Status MemoryStore::Erase(std::string_view key, int64_t expected_version) {
  absl::MutexLock lock(&mutex_);
  const auto found = values_.find(key);
  const int64_t version = found == values_.end() ? kAbsent : found->second.version;
  if (version != expected_version) return VersionConflict(key, expected_version, version);
  if (found != values_.end()) values_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, Versioned>> MemoryStore::List(
    std::string_view prefix) {
  absl::MutexLock lock(&mutex_);
  std::map<std::string, Versioned> found;
  for (const auto& [key, value] : values_) {
    if (key.starts_with(prefix)) found[key] = value;
  }
  return found;
}

}  // namespace syncline
