#include "server/journal/shard_log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/base/status.h"
#include "server/journal/folder.h"

namespace syncline {
namespace {

absl::Status Delete(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cannot delete ", path, ": ", std::strerror(errno)));
}

}  // namespace

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
      anew_version_(tail.anew_version),
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
  path_ = absl::StrCat(folder, "/", SegmentName(head_.shard, ++number_, NextKind()));
  auto segment = SegmentWriter::Create(path_, head_);
  if (!segment.ok()) {
    // A name that was there before is somebody else's.
    if (!absl::IsAlreadyExists(segment.status())) Delete(path_).IgnoreError();
    return segment.status();
  }
  open_ = *std::move(segment);
  SYNCLINE_RETURN_IF_ERROR(SyncFolder(folder));
  for (const auto& settings : settings_) {
    SYNCLINE_RETURN_IF_ERROR(open_->Append(*settings));
  }
  return absl::OkStatus();
}

SegmentKind ShardLog::NextKind() const {
  return is_begun_ && closed_.empty() ? SegmentKind::kBegun : SegmentKind::kGoesOn;
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
  if (const auto* step = std::get_if<StepRecord>(&record->what)) {
    Count(step->block, step->step + 1);
  }
  if (const auto* state = std::get_if<BlockStateRecord>(&record->what)) {
    anew_version_ = std::max(anew_version_, state->saved->version);
    Count(state->block, state->saved->version);
  }
  return absl::OkStatus();
}

void ShardLog::Count(uint32_t id, uint64_t version) {
  version_ = std::max(version_, version);
  const auto block = versions_.find(id);
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
  if (is_begun_ || version < anew_version_) return absl::OkStatus();
  while (!closed_.empty() && closed_.front().version <= version) {
    SYNCLINE_RETURN_IF_ERROR(Delete(closed_.front().path));
    closed_.pop_front();
  }
  return absl::OkStatus();
}

void ShardLog::BeginAnew() {
  GiveUp();
  // Of an attempt that some shards had finished, and others not, the rest is here still.
  before_.bytes = bytes();
  before_.anew_version = anew_version_;
  for (Closed& one : closed_) before_.closed.push_back(std::move(one));
  if (open_ != nullptr) before_.closed.push_back({path_, version_});
  open_.reset();
  closed_.clear();
  closed_bytes_ = 0;
  is_begun_ = true;
  head_.first_sequence = 1;
  head_.began_from.reset();
  settings_.clear();
  anew_version_ = 0;
  for (auto& [block, version] : versions_) version = 0;
  blocks_at_.clear();
  CountBlocks();
  records_ = durable_records_ = 0;
  is_dirty_ = false;
}

// Its name says that it is whole.
absl::Status ShardLog::Whole() {
  if (!is_begun_) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(Sync());
  std::string& first = closed_.empty() ? path_ : closed_.front().path;
  if (open_ != nullptr) {  // otherwise it has nothing
    const std::filesystem::path begun(first);
    const auto place = ParseSegmentName(begun.filename().string());
    std::string whole = (begun.parent_path() /
                         SegmentName(place->shard, place->number, SegmentKind::kAnew))
                            .string();
    if (std::rename(first.c_str(), whole.c_str()) != 0) {
      return absl::InternalError(
          absl::StrCat("cannot rename ", first, ": ", std::strerror(errno)));
    }
    first = std::move(whole);
    SYNCLINE_RETURN_IF_ERROR(SyncFolder(begun.parent_path().string()));
  }
  is_begun_ = false;
  return absl::OkStatus();
}

// Whatever goes on with the run tries again.
void ShardLog::DeleteSuperseded() {
  for (const Closed& one : before_.closed) Delete(one.path).IgnoreError();
  before_ = {};
}

void ShardLog::GiveUp() {
  if (!is_begun_) return;
  is_begun_ = false;
  if (open_ != nullptr) closed_.push_back({path_, version_});
  open_.reset();
  is_dirty_ = false;
  for (const Closed& one : closed_) Delete(one.path).IgnoreError();
  closed_ = std::exchange(before_.closed, {});
  closed_bytes_ = before_.bytes;
  anew_version_ = before_.anew_version;
}

}  // namespace syncline
