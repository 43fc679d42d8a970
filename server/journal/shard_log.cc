#include "server/journal/shard_log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/base/status.h"
#include "server/journal/folder.h"

namespace syncline {

ShardLog::ShardLog(SegmentHead head, const std::vector<uint32_t>& trained,
                   uint64_t version)
    : head_(std::move(head)), durable_(version) {
  for (const uint32_t block : trained) versions_[block] = version;
  CountBlocks();
}

ShardLog::ShardLog(SegmentHead head, const ShardTail& tail)
    : head_(std::move(head)),
      lock_(tail.lock),
      number_(tail.last_number),
      settings_(tail.settings),
      versions_(tail.versions) {
  head_.first_sequence = tail.next_sequence;
  for (const ShardTail::Segment& segment : tail.segments) {
    closed_.push_back({segment.path, segment.version});
    closed_bytes_ += segment.bytes;
  }
  CountBlocks();
  if (!blocks_at_.empty()) durable_ = blocks_at_.begin()->first;
}

void ShardLog::CountBlocks() {
  for (const auto& [block, version] : versions_) ++blocks_at_[version];
}

std::string LockName(uint32_t shard) { return absl::StrFormat("shard-%05d.lock", shard); }

uint64_t ShardLog::durable() const {
  return versions_.empty() ? std::numeric_limits<uint64_t>::max() : durable_;
}

absl::Status ShardLog::Begin(const std::string& folder) {
  if (open_ != nullptr) {
    SYNCLINE_RETURN_IF_ERROR(Sync());
    head_.first_sequence = open_->next_sequence();
    closed_bytes_ += open_->bytes();
    closed_.push_back({path_, version_});
    open_.reset();
  }
  if (lock_ == nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(UniqueFd lock,
                              LockFile(absl::StrCat(folder, "/", LockName(head_.shard))));
    lock_ = std::make_shared<UniqueFd>(std::move(lock));
  }
  version_ = 0;
  path_ = absl::StrCat(folder, "/", SegmentName(head_.shard, ++number_));
  SYNCLINE_ASSIGN_OR_RETURN(open_, SegmentWriter::Create(path_, head_));
  SYNCLINE_RETURN_IF_ERROR(SyncFolder(folder));
  for (const auto& settings : settings_) {
    SYNCLINE_RETURN_IF_ERROR(open_->Append(*settings));
  }
  return absl::OkStatus();
}

absl::Status ShardLog::Append(const std::string& folder, uint64_t segment_bytes,
                              const std::shared_ptr<const ShardRecord>& record) {
  if (open_ == nullptr || open_->bytes() >= segment_bytes) {
    SYNCLINE_RETURN_IF_ERROR(Begin(folder));
  }
  is_dirty_ = true;
  SYNCLINE_RETURN_IF_ERROR(open_->Append(*record));
  ++records_;
  if (std::holds_alternative<SettingsRecord>(record->what)) settings_.push_back(record);
  if (const auto* step = std::get_if<StepRecord>(&record->what)) Count(*step);
  return absl::OkStatus();
}

void ShardLog::Count(const StepRecord& step) {
  const uint64_t version = step.step + 1;
  version_ = std::max(version_, version);
  const auto block = versions_.find(step.block);
  if (block == versions_.end()) return;
  const auto before = blocks_at_.find(block->second);
  if (--before->second == 0) blocks_at_.erase(before);
  ++blocks_at_[version];
  block->second = version;
}

absl::Status ShardLog::Sync() {
  if (!is_dirty_) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(open_->Sync());
  is_dirty_ = false;
  durable_records_ = records_;
  if (!blocks_at_.empty()) durable_ = blocks_at_.begin()->first;
  return absl::OkStatus();
}

absl::Status ShardLog::Prune(uint64_t version) {
  while (!closed_.empty() && closed_.front().version <= version) {
    const std::string& path = closed_.front().path;
    if (unlink(path.c_str()) != 0 && errno != ENOENT) {
      return absl::InternalError(
          absl::StrCat("cannot delete ", path, ": ", std::strerror(errno)));
    }
    closed_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace syncline
