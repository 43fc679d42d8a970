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

// A worker begins a step with one tensor only after it has begun the step before with all
// tensors (worker/client/session.h), and for that it had received every block's version.
// So no block of the job is more than this many versions behind another.
constexpr uint64_t kFurthestBehind = 2;

absl::Status Delete(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cannot delete ", path, ": ", std::strerror(errno)));
}

uint32_t NumberOf(const std::string& path) {
  return ParseSegmentName(std::filesystem::path(path).filename().string())->number;
}

}  // namespace

void AddSettings(const std::shared_ptr<const ShardRecord>& record,
                 std::vector<std::shared_ptr<const ShardRecord>>& settings) {
  const auto& added = std::get<SettingsRecord>(record->what);
  const auto is_known = [&added](const auto& one) {
    const auto& known = std::get<SettingsRecord>(one->what);
    return known.from == added.from && known.training == added.training;
  };
  if (std::ranges::any_of(settings, is_known)) return;  // every segment repeats them
  std::erase_if(settings, [&added](const auto& one) {
    return std::get<SettingsRecord>(one->what).from >= added.from;
  });
  settings.push_back(record);
}

ShardLog::ShardLog(SegmentHead head, const std::vector<uint32_t>& trained,
                   uint64_t version)
    : head_(std::move(head)), durable_(version) {
  for (const uint32_t block : trained) versions_[block] = version;
  CountBlocks();
}

ShardLog::ShardLog(SegmentHead head, const ShardTail& tail)
    : head_(std::move(head)),
      lock_(tail.lock),
      generation_(tail.generation),
      number_(tail.last_number),
      anew_version_(tail.anew_version),
      settings_(tail.settings),
      versions_(tail.versions) {
  head_.first_sequence = tail.next_sequence;
  for (const ShardTail::Segment& segment : tail.segments) {
    closed_.push_back({segment.path, segment.version, segment.bytes});
    written_ += segment.bytes;
  }
  since_ = written_;
  CountBlocks();
  if (!blocks_at_.empty()) durable_ = blocks_at_.begin()->first;
}

void ShardLog::CountBlocks() {
  for (const auto& [block, version] : versions_) ++blocks_at_[version];
}

std::string LockName(uint32_t shard, uint32_t generation) {
  const std::string of = generation == 0 ? "" : absl::StrFormat("-g%d", generation);
  return absl::StrFormat("shard-%05d%s.lock", shard, of);
}

uint64_t ShardLog::durable() const {
  return versions_.empty() ? std::numeric_limits<uint64_t>::max() : durable_;
}

absl::Status ShardLog::Begin(const std::string& folder) {
  if (open_ != nullptr) {
    SYNCLINE_RETURN_IF_ERROR(Sync());
    head_.first_sequence = open_->next_sequence();
    written_ += open_->bytes();
    closed_.push_back({path_, version_, open_->bytes()});
    open_.reset();
  }
  if (lock_ == nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(
        UniqueFd lock,
        LockFile(absl::StrCat(folder, "/", LockName(head_.shard, generation_))));
    lock_ = std::make_shared<UniqueFd>(std::move(lock));
  }
  version_ = 0;
  path_ = absl::StrCat(folder, "/",
                       SegmentName(head_.shard, ++number_, NextKind(), generation_));
  auto segment = SegmentWriter::Create(path_, head_);
  if (!segment.ok()) {
    // A file of that name that existed before belongs to another process.
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
  const uint64_t before = open_->bytes();
  SYNCLINE_RETURN_IF_ERROR(open_->Append(*record));
  ++records_;
  const auto* state = std::get_if<BlockStateRecord>(&record->what);
  const uint64_t bytes = open_->bytes() - before;
  if (state == nullptr) since_ += bytes;
  if (snapshot_) (state == nullptr ? snapshot_->records : snapshot_->states) += bytes;
  if (std::holds_alternative<SettingsRecord>(record->what)) {
    AddSettings(record, settings_);
  }
  if (const auto* step = std::get_if<StepRecord>(&record->what)) {
    Count(step->block, step->step + 1);
  }
  if (state != nullptr) Note(*state);
  return absl::OkStatus();
}

void ShardLog::Note(const BlockStateRecord& state) {
  if (!snapshot_ && !is_begun_)
    return;  // it belongs to a snapshot that a checkpoint made superfluous
  uint64_t& version = snapshot_ ? snapshot_->version : anew_version_;
  version = std::max(version, state.saved->version);
  if (is_begun_) Count(state.block, state.saved->version);
}

uint64_t ShardLog::disk_bytes() const {
  uint64_t bytes = open_ ? open_->bytes() : 0;
  for (const std::deque<Closed>* some : {&closed_, &before_.closed}) {
    for (const Closed& one : *some) bytes += one.bytes;
  }
  return bytes;
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
    // The checkpoint replaces a snapshot whose segment is gone.
    const bool is_of_snapshot =
        snapshot_ && NumberOf(closed_.front().path) >= snapshot_->number;
    if (is_of_snapshot) snapshot_.reset();
    closed_.pop_front();
  }
  since_ = std::min(since_, disk_bytes());
  return absl::OkStatus();
}

// ---- Snapshots ----

ShardLog::Due ShardLog::WhatIsDue(const SnapshotLimits& limits) {
  const bool may_ask = limits.factor > 0 && !is_begun_ && open_ != nullptr && !is_asked_;
  if (!may_ask) return Due::kNothing;
  if (!snapshot_) {
    const double enough = limits.factor * static_cast<double>(state_bytes_);
    const bool is_due = since_ > limits.least && static_cast<double>(since_) > enough;
    return is_due ? Due::kSnapshot : Due::kNothing;
  }
  const bool waits = snapshot_->has_all || snapshot_->records < snapshot_->states;
  if (waits) return Due::kNothing;
  is_asked_ = true;
  return Due::kNextBlocks;
}

// Also drops settings that hold for no step any more.
absl::Status ShardLog::BeginSnapshot(const std::string& folder) {
  const uint64_t lowest = blocks_at_.empty() ? 0 : blocks_at_.begin()->first;
  while (settings_.size() > 1 &&
         std::get<SettingsRecord>(settings_[1]->what).from <= lowest) {
    settings_.erase(settings_.begin());
  }
  head_.began_from.reset();  // it does not continue from a checkpoint
  SYNCLINE_RETURN_IF_ERROR(Begin(folder));
  snapshot_ = Snapshot{.number = number_};
  is_asked_ = true;
  since_ = 0;
  return absl::OkStatus();
}

void ShardLog::TookState() { is_asked_ = false; }

// An answer always belongs to the last request: no other snapshot begins before the shard
// has answered.
void ShardLog::TookAllStates() {
  is_asked_ = false;
  if (snapshot_) snapshot_->has_all = true;
}

absl::StatusOr<bool> ShardLog::FinishSnapshot() {
  if (!snapshot_ || !snapshot_->has_all || is_dirty_) return false;
  if (durable() < snapshot_->version + kFurthestBehind) return false;
  std::string* first = &path_;
  for (Closed& one : closed_) {
    if (NumberOf(one.path) == snapshot_->number) first = &one.path;
  }
  SYNCLINE_RETURN_IF_ERROR(BeAnew(*first));
  const Snapshot done = *std::exchange(snapshot_, std::nullopt);
  anew_version_ = done.version;
  state_bytes_ = done.states;
  snapshot_number_ = done.number;
  return true;
}

// Renames the segment to `-anew`, which makes it the beginning.
absl::Status ShardLog::BeAnew(std::string& path) {
  const std::filesystem::path begun(path);
  const auto place = ParseSegmentName(begun.filename().string());
  std::string whole =
      (begun.parent_path() /
       SegmentName(place->shard, place->number, SegmentKind::kAnew, place->generation))
          .string();
  if (std::rename(path.c_str(), whole.c_str()) != 0) {
    return absl::InternalError(
        absl::StrCat("cannot rename ", path, ": ", std::strerror(errno)));
  }
  path = std::move(whole);
  return SyncFolder(begun.parent_path().string());
}

// ---- Starting over (BeginAnew) ----

void ShardLog::BeginAnew(uint32_t generation) {
  GiveUp();
  if (generation != generation_) lock_.reset();
  generation_ = generation;
  // If only some shards had finished an earlier attempt, its segments are still here.
  before_.written = bytes();
  before_.anew_version = anew_version_;
  for (Closed& one : closed_) before_.closed.push_back(std::move(one));
  if (open_ != nullptr) before_.closed.push_back({path_, version_, open_->bytes()});
  open_.reset();
  closed_.clear();
  snapshot_.reset();
  is_asked_ = false;
  written_ = since_ = 0;
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

bool ShardLog::IsFarEnough() const {
  return !is_dirty_ &&
         (versions_.empty() || durable() >= anew_version_ + kFurthestBehind);
}

// Renames the first segment: its name says that it is whole.
absl::Status ShardLog::Whole() {
  if (!is_begun_) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(Sync());
  std::string& first = closed_.empty() ? path_ : closed_.front().path;
  // Without an open segment, nothing was appended.
  if (open_ != nullptr) SYNCLINE_RETURN_IF_ERROR(BeAnew(first));
  is_begun_ = false;
  return absl::OkStatus();
}

// Ignores errors: a process that continues the run deletes them again.
void ShardLog::DeleteSuperseded() {
  for (const Closed& one : before_.closed) Delete(one.path).IgnoreError();
  before_ = {};
  while (!closed_.empty() && NumberOf(closed_.front().path) < snapshot_number_) {
    Delete(closed_.front().path).IgnoreError();
    closed_.pop_front();
  }
}

void ShardLog::DeleteEarlier(const std::string& folder) const {
  std::error_code error;
  std::map<uint32_t, std::vector<std::string>> earlier;  // by generation
  for (std::filesystem::directory_iterator entry(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const auto place = ParseSegmentName(entry->path().filename().string());
    const bool is_earlier =
        place && place->shard == head_.shard && place->generation < generation_;
    if (is_earlier) earlier[place->generation].push_back(entry->path().string());
  }
  for (const auto& [generation, paths] : earlier) {
    const auto lock =
        LockFile(absl::StrCat(folder, "/", LockName(head_.shard, generation)));
    if (!lock.ok()) continue;
    for (const std::string& path : paths) Delete(path).IgnoreError();
  }
}

void ShardLog::GiveUp() {
  if (!is_begun_) return;
  is_begun_ = false;
  if (open_ != nullptr) closed_.push_back({path_, version_, open_->bytes()});
  open_.reset();
  is_dirty_ = false;
  for (const Closed& one : closed_) Delete(one.path).IgnoreError();
  closed_ = std::exchange(before_.closed, {});
  written_ = before_.written;
  anew_version_ = before_.anew_version;
}

}  // namespace syncline
