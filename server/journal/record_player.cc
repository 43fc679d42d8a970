#include "server/journal/record_player.h"

#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"

namespace syncline {

bool RecordFilter::Takes(const ShardRecord& record, const Shard& shard) {
  const std::optional<uint32_t> block = BlockOf(record);
  if (block && !shard.HasBlock(*block)) return true;  // the shard refuses it
  const bool has_values = block && shard.HasValues(*block);
  if (std::holds_alternative<SeedRecord>(record.what)) {
    return beginning_ != PlayedFrom::kCheckpoint;
  }
  if (std::holds_alternative<BlockStateRecord>(record.what)) {
    has_job_ = has_job_ || has_values;
    return !has_values;
  }
  if (std::holds_alternative<JobStateRecord>(record.what)) {
    return beginning_ != PlayedFrom::kCheckpoint && !std::exchange(has_job_, true);
  }
  if (!block || has_values || beginning_ != PlayedFrom::kSnapshot) {
    const bool steps = std::holds_alternative<StepRecord>(record.what);
    has_job_ = has_job_ || steps;
    return true;
  }
  passed_over_.insert(*block);
  return false;
}

absl::Status RecordFilter::CheckWhole(const Shard& shard,
                                      const std::string& records) const {
  for (const uint32_t block : passed_over_) {
    if (shard.HasValues(block)) continue;
    return absl::DataLossError(absl::StrCat(records,
                                            " begin with a snapshot that lacks block ",
                                            block, ": go on from a checkpoint"));
  }
  return absl::OkStatus();
}

absl::Status RecordPlayer::PlayOne(const ShardRecord& record) {
  const auto outputs = shard_.Replay(record);
  if (outputs.ok()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      options_.records, " cannot be played: ", std::string(outputs.status().message())));
}

absl::Status RecordPlayer::Flush() {
  for (const ShardRecord& record : waiting_) SYNCLINE_RETURN_IF_ERROR(PlayOne(record));
  for (const ShardRecord& record : waiting_) {
    const auto& step = std::get<StepRecord>(record.what);
    versions_[step.block] = step.step + 1;
    if (shard_.block_digest(step.block) == step.digest) continue;
    return absl::DataLossError(absl::StrCat("block ", step.block, " differs after step ",
                                            step.step, " from ", options_.whose,
                                            "; check the memory of both machines"));
  }
  waiting_.clear();
  return absl::OkStatus();
}

absl::Status RecordPlayer::Take(ShardRecord record) {
  const std::optional<uint32_t> block = BlockOf(record);
  if (block && !shard_.HasBlock(*block)) {
    return absl::DataLossError(absl::StrCat(options_.records, " contain block ", *block,
                                            ", which does not belong to this shard"));
  }
  if (!filter_.Takes(record, shard_)) return absl::OkStatus();
  const auto* step = std::get_if<StepRecord>(&record.what);
  if (step == nullptr) {
    const auto* parting = std::get_if<PartingRecord>(&record.what);
    const bool is_over =
        parting != nullptr && parting->step < shard_.block_version(parting->block);
    return is_over ? absl::OkStatus() : PlayOne(record);
  }
  if (step->step < shard_.block_version(step->block)) return absl::OkStatus();
  const size_t unit = shard_.UnitOf(step->block);
  waiting_.push_back(std::move(record));
  return waiting_.size() < unit ? absl::OkStatus() : Flush();
}

}  // namespace syncline
