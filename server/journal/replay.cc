#include "server/journal/replay.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "server/checkpoint/catalog.h"
#include "server/checkpoint/load.h"
#include "server/checkpoint/reader.h"
#include "server/checkpoint/shared_name.h"
#include "server/journal/record_player.h"
#include "server/journal/rule.h"
#include "server/journal/shard_log.h"
#include "server/optimizer/loss_scaler.h"

namespace syncline {
namespace {

constexpr size_t kPoolBytes = size_t{64} << 20;

class Player {
 public:
  Player(const ReplayOptions& options, BlobStore& out)
      : options_(options), out_(out), began_from_(options.run.head.began_from) {}

  absl::StatusOr<ReplaySummary> Play();

 private:
  bool IsAsync() const { return options_.shard.training.sync().is_async(); }
  bool IsTrained(uint32_t block) const {
    return !options_.shard.tensors[options_.blocks[block].tensor].group.frozen;
  }
  absl::Status Scan();
  absl::Status Scan(const std::vector<std::string>& segments);
  void NoteBeginning(const SegmentHead& head, const ShardRecord& record);
  absl::Status ChooseStep();
  absl::Status ChooseBase();
  absl::Status CheckCheckpoints() const;
  absl::Status CheckName() const;
  absl::Status TryBase(const CheckpointName& name);
  absl::Status CheckSeeds() const;
  absl::Status PlayShard(uint32_t number, const std::vector<std::string>& segments);
  absl::StatusOr<std::unique_ptr<Shard>> MakeShard(const SegmentHead& head);
  absl::Status PlayRecords(ShardRecords& records, Shard& shard);
  absl::Status Compare(const ShardOutputs& outputs, const Shard& shard, uint32_t number);
  absl::Status SavePart(const SegmentHead& head, const Shard& shard);
  void NoteDecision(const StepRecord& step);
  std::vector<ShardBlock> BlocksOf(const SegmentHead& head) const;
  bool HasBase(uint32_t shard) const {
    return base_ != nullptr && !anew_.contains(shard);
  }
  void StartLossScaler();

  const ReplayOptions& options_;
  BlobStore& out_;
  BufferPool pool_{kPoolBytes};
  ReplaySummary summary_;
  Manifest manifest_;
  std::unique_ptr<CheckpointReader> base_;  // null: begins with the first values
  bool is_whole_ = true;                    // no segment was deleted
  // The checkpoint that the run began with, if any.
  std::optional<CheckpointName> began_from_;
  // By shard whose journal begins with block states (a new start, or a snapshot): the
  // first of its trained blocks' versions. `first_`: the step from which on all shards
  // have everything.
  std::map<uint32_t, uint64_t> anew_;
  uint64_t first_ = 0;
  std::set<uint32_t> has_blocks_;  // shards that have blocks
  std::set<uint32_t> has_job_;     // shards whose state of the job has been read
  struct LossScale {
    uint64_t version = 0;
    float loss_scale = 1;
  };
  std::optional<LossScale> scaled_from_;  // from the shard that began earliest
  // By block: the version that its records lead to.
  std::map<uint32_t, uint64_t> reached_;
  std::set<uint32_t> seeded_;  // blocks whose first values or states are there
  uint64_t to_ = 0;
  std::map<std::pair<uint32_t, uint64_t>, uint32_t>
      digests_;                                          // of the shard that is played
  std::map<uint64_t, ShardDecision::Verdict> verdicts_;  // by step
};

// Notes where a shard's journal begins, if it begins with block states. Later states of a
// block belong to later snapshots and are ignored.
void Player::NoteBeginning(const SegmentHead& head, const ShardRecord& record) {
  if (const auto* state = std::get_if<BlockStateRecord>(&record.what)) {
    const uint64_t version = state->saved->version;
    if (!seeded_.insert(state->block).second) return;
    reached_[state->block] = version;
    if (!IsTrained(state->block)) return;
    first_ = std::max(first_, version);
    anew_.emplace(head.shard, version);
  }
  const auto* job = std::get_if<JobStateRecord>(&record.what);
  if (job != nullptr && has_job_.insert(head.shard).second) {
    const uint64_t version = anew_.emplace(head.shard, 0).first->second;
    if (!scaled_from_ || version < scaled_from_->version) {
      scaled_from_ = {.version = version, .loss_scale = job->loss_scale};
    }
  }
}

absl::Status Player::Scan(const std::vector<std::string>& segments) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto records, ShardRecords::Open(segments));
  const SegmentHead& head = records->head();
  const bool is_anew = records->begins_anew();
  is_whole_ = is_whole_ && (is_anew || head.first_sequence <= 1);
  if (head.began_from && !is_anew) began_from_ = head.began_from;
  if (!head.blocks.empty()) has_blocks_.insert(head.shard);
  const uint64_t first = head.began_from ? head.began_from->step : 0;
  for (const uint32_t block : head.blocks) {
    if (block >= options_.blocks.size() || !reached_.emplace(block, first).second) {
      return absl::DataLossError(
          absl::StrCat(segments.front(), " contains blocks that do not belong to it"));
    }
  }
  SYNCLINE_RETURN_IF_ERROR(
      CheckRule(head, segments.front(), *options_.layout, BlocksOf(head)));
  for (;;) {
    SYNCLINE_ASSIGN_OR_RETURN(const auto record, records->Next());
    if (!record) break;
    if (const auto* seed = std::get_if<SeedRecord>(&record->what)) {
      seeded_.insert(seed->block);
    }
    if (is_anew && !head.blocks.empty()) NoteBeginning(head, *record);
    const auto* step = std::get_if<StepRecord>(&record->what);
    if (step == nullptr) continue;
    if (std::ranges::count(head.blocks, step->block) == 0) {
      return absl::DataLossError(absl::StrCat(segments.front(), " has records of block ",
                                              step->block,
                                              ", which does not belong to it"));
    }
    if (is_anew && !seeded_.contains(step->block))
      continue;  // its state is still to come
    reached_[step->block] = step->step + 1;
  }
  if (!records->torn().empty()) summary_.torn.push_back(records->torn());
  return absl::OkStatus();
}

absl::Status Player::Scan() {
  for (const auto& [shard, segments] : options_.run.shards) {
    SYNCLINE_RETURN_IF_ERROR(Scan(segments));
  }
  for (uint32_t block = 0; block < options_.blocks.size(); ++block) {
    if (reached_.contains(block)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("no journal has block ", block, " of ", options_.blocks.size(),
                     ": name the --journal-dir of every server that the job had"));
  }
  return absl::OkStatus();
}

absl::Status Player::ChooseStep() {
  uint64_t last = std::numeric_limits<uint64_t>::max();
  uint64_t furthest = 0;
  for (const auto& [block, version] : reached_) {
    if (!IsTrained(block)) continue;
    last = std::min(last, version);
    furthest = std::max(furthest, version);
  }
  summary_.last = last;
  // No worker runs further ahead of a block (see ShardLog).
  constexpr uint64_t kFurthestBehind = 2;
  if (!IsAsync() && last < furthest && furthest - last > kFurthestBehind) {
    summary_.torn.push_back(absl::StrCat("some blocks reach only step ", last,
                                         ", and others step ", furthest,
                                         ": a journal had ended, or the directory of a "
                                         "server that replaced another one is missing"));
  }
  // Blocks have no step in common: each is played as far as its records go.
  if (IsAsync()) {
    if (options_.to) {
      return absl::InvalidArgumentError(
          "in mode asp blocks have no step in common: leave out --to");
    }
    to_ = std::numeric_limits<uint64_t>::max();
    return absl::OkStatus();
  }
  const uint64_t update = options_.shard.training.accumulate_steps;
  to_ = options_.to.value_or(last - last % update);
  if (to_ < first_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the journal has all blocks from step ", first_,
                     " on, where a server's last snapshot begins, but not at step ", to_,
                     last < first_ ? "; it ended before that step" : ""));
  }
  if (to_ <= last && to_ % update == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      to_ > last
          ? absl::StrCat("the journal ends at step ", last, ", before step ", to_)
          : absl::StrCat("step ", to_, " is in the middle of an update, which has ",
                         update, " pushes"));
}

absl::Status Player::TryBase(const CheckpointName& name) {
  SYNCLINE_ASSIGN_OR_RETURN(
      auto base, CheckpointReader::Open(*options_.checkpoints, options_.about.job, name));
  SYNCLINE_RETURN_IF_ERROR(base->CheckTensors(options_.layout->tensors));
  base_ = std::move(base);
  manifest_.loss_scaler = base_->manifest().loss_scaler;
  manifest_.skipped_steps = base_->manifest().skipped_steps;
  summary_.began = absl::StrCat("checkpoint ", name.ToString());
  return absl::OkStatus();
}

// Fails if a checkpoint is further than the journal: a job that continues from the replay
// would lose the steps between.
absl::Status Player::CheckCheckpoints() const {
  if (options_.checkpoints == nullptr || options_.to || IsAsync()) {
    return absl::OkStatus();
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto all,
      ListCheckpoints(*options_.checkpoints, FolderOf(options_.about.job)));
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    if (!one->is_complete || one->name.run != options_.run.head.checkpoint_run) continue;
    if (one->name.step <= summary_.last) break;
    return absl::AlreadyExistsError(absl::StrCat(
        "the journal ends at step ", summary_.last, ", but checkpoint ",
        one->name.ToString(), " is further; resume from that, or name a step with --to"));
  }
  return absl::OkStatus();
}

absl::Status Player::CheckName() const {
  SYNCLINE_ASSIGN_OR_RETURN(const auto all,
                            ListCheckpoints(out_, FolderOf(options_.about.job)));
  // Parts that are shared have the name of the checkpoint that they were written with,
  // which may be gone.
  const std::string shared =
      absl::StrCat(FolderOf(options_.about.job), "/", kSharedFolder, "/frozen-",
                   manifest_.name.ToString(), "-");
  for (const CheckpointInfo& one : all) {
    if (!one.is_complete) continue;
    bool is_taken = one.name == manifest_.name;
    if (!is_taken) {
      SYNCLINE_ASSIGN_OR_RETURN(const Manifest manifest,
                                ReadManifest(out_, options_.about.job, one.name));
      is_taken = std::ranges::any_of(manifest.files, [&](const CheckpointFile& file) {
        return absl::StartsWith(BlobOf(manifest, file), shared);
      });
    }
    if (!is_taken) continue;
    return absl::AlreadyExistsError(
        absl::StrCat("checkpoint ", one.name.ToString(), " in ", out_.Describe(),
                     " is or has a part of ", manifest_.name.ToString(),
                     " already; name another directory, or another step"));
  }
  return absl::OkStatus();
}

// Chooses the first values if they are there, so that the whole journal is played.
// Otherwise chooses the latest checkpoint that is not after the step.
absl::Status Player::ChooseBase() {
  const SegmentHead& head = options_.run.head;
  const bool has_checkpoints = options_.checkpoints != nullptr;
  if (began_from_ && to_ < began_from_->step) {
    return absl::FailedPreconditionError(
        absl::StrCat("this run began with checkpoint ", began_from_->ToString(),
                     ", and step ", to_, " is earlier; replay the run before it"));
  }
  if (is_whole_ && !began_from_) {
    summary_.began = anew_.empty() ? "the first values"
                                   : absl::StrCat("step ", first_, ", with snapshots");
    return absl::OkStatus();
  }
  if (is_whole_ && has_checkpoints && TryBase(*began_from_).ok()) {
    return absl::OkStatus();
  }
  std::vector<CheckpointInfo> all;
  if (has_checkpoints) {
    SYNCLINE_ASSIGN_OR_RETURN(
        all, ListCheckpoints(*options_.checkpoints, FolderOf(options_.about.job)));
  }
  const auto fits = [&](const CheckpointInfo& one) {
    return one.is_complete && one.name.run == head.checkpoint_run && one.name.step <= to_;
  };
  absl::Status unfit;  // why the latest one does not fit
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    if (!fits(*one)) continue;
    const absl::Status tried = TryBase(one->name);
    if (tried.ok()) return tried;
    unfit.Update(tried);
  }
  SYNCLINE_RETURN_IF_ERROR(unfit);
  return absl::FailedPreconditionError(absl::StrCat(
      "the journal begins after ",
      began_from_ ? absl::StrCat("checkpoint ", began_from_->ToString())
                  : absl::StrCat("a checkpoint of run ", head.checkpoint_run),
      ", and none up to step ", to_,
      " was found; name the directory of the job's checkpoints with --checkpoint-dir"));
}

absl::Status Player::CheckSeeds() const {
  // The checkpoint serves the shards that did not start over.
  if (base_ != nullptr) return absl::OkStatus();
  for (uint32_t block = 0; block < options_.blocks.size(); ++block) {
    if (seeded_.contains(block)) continue;
    const uint32_t tensor = options_.blocks[block].tensor;
    return absl::FailedPreconditionError(absl::StrCat(
        "block ", block, " of tensor '", Printable(options_.layout->tensors[tensor].name),
        "' has no first values in the journal: they were not on the disk yet when it "
        "ended; start the job over, or go on from a checkpoint"));
  }
  return absl::OkStatus();
}

std::vector<ShardBlock> Player::BlocksOf(const SegmentHead& head) const {
  std::vector<ShardBlock> blocks;
  for (const uint32_t block : head.blocks) {
    blocks.push_back({block, options_.blocks[block]});
  }
  return blocks;
}

absl::StatusOr<std::unique_ptr<Shard>> Player::MakeShard(const SegmentHead& head) {
  ShardOptions options = options_.shard;
  options.shard = head.shard;
  const std::vector<ShardBlock> blocks = BlocksOf(head);
  SYNCLINE_ASSIGN_OR_RETURN(auto shard, Shard::Create(options, blocks, pool_));
  if (HasBase(head.shard)) {
    SYNCLINE_RETURN_IF_ERROR(LoadBlocks(*base_, *options_.layout, blocks, *shard));
  }
  return shard;
}

void Player::NoteDecision(const StepRecord& step) {
  if (!options_.shard.training.Updates(step.step)) return;
  if (base_ != nullptr && step.step < base_->manifest().name.step) return;
  if (verdicts_.contains(step.step)) return;
  verdicts_[step.step] = step.decision.verdict;
}

absl::Status Player::Compare(const ShardOutputs& outputs, const Shard& shard,
                             uint32_t number) {
  if (options_.digests == Digests::kIgnored) return absl::OkStatus();
  for (const ShardOutput& output : outputs) {
    const auto* applied = std::get_if<ShardApplied>(&output);
    if (applied == nullptr) continue;
    const auto digest = digests_.extract({applied->block, applied->step});
    if (digest.empty()) continue;
    ++summary_.compared;
    if (shard.block_digest(applied->block) == digest.mapped()) continue;
    return absl::DataLossError(absl::StrCat("block ", applied->block,
                                            " differs after step ", applied->step,
                                            " of shard ", number,
                                            ": its server had different bits from this "
                                            "replay; check the memory of both machines"));
  }
  return absl::OkStatus();
}

absl::Status Player::PlayRecords(ShardRecords& records, Shard& shard) {
  const uint32_t number = records.head().shard;
  RecordFilter filter(records.begins_anew() ? PlayedFrom::kSnapshot
                      : HasBase(number)     ? PlayedFrom::kCheckpoint
                                            : PlayedFrom::kNothing);
  std::vector<std::shared_ptr<const ShardRecord>> changes;  // of settings
  for (;;) {
    SYNCLINE_ASSIGN_OR_RETURN(const auto record, records.Next());
    if (!record) {
      return filter.CheckWhole(shard, absl::StrCat("the records of shard ", number));
    }
    if (!filter.Takes(*record, shard)) continue;
    // If the step was made, its record contains the contribution.
    if (std::holds_alternative<PartingRecord>(record->what)) continue;
    if (std::holds_alternative<SettingsRecord>(record->what)) {
      AddSettings(std::make_shared<const ShardRecord>(*record), changes);
      for (const auto& change : changes) {
        const auto& one = std::get<SettingsRecord>(change->what);
        if (one.from <= to_) manifest_.training = one.training;
      }
    }
    if (const auto* step = std::get_if<StepRecord>(&record->what)) {
      const bool is_before = step->step < shard.block_version(step->block);
      if (is_before || step->step >= to_) continue;
      digests_[{step->block, step->step}] = step->digest;
      NoteDecision(*step);
      ++summary_.records;
    }
    auto outputs = shard.Replay(*record);
    if (!outputs.ok()) {
      return absl::DataLossError(absl::StrCat("shard ", number, " cannot be replayed: ",
                                              std::string(outputs.status().message())));
    }
    SYNCLINE_RETURN_IF_ERROR(Compare(*outputs, shard, number));
  }
}

absl::Status Player::SavePart(const SegmentHead& head, const Shard& shard) {
  SYNCLINE_ASSIGN_OR_RETURN(const ShardSnapshot saved, shard.Save());
  SYNCLINE_ASSIGN_OR_RETURN(const auto part,
                            PartWriter::Create(out_, {.job = manifest_.job,
                                                      .name = manifest_.name,
                                                      .shard = head.shard,
                                                      .layout = options_.layout,
                                                      .blocks = BlocksOf(head)}));
  for (const auto& [block, snapshot] : saved.blocks) {
    SYNCLINE_RETURN_IF_ERROR(part->Add(block, snapshot));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const auto files, part->Finish(saved));
  manifest_.files.insert(manifest_.files.end(), files.begin(), files.end());
  return absl::OkStatus();
}

absl::Status Player::PlayShard(uint32_t number,
                               const std::vector<std::string>& segments) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto records, ShardRecords::Open(segments));
  if (records->head().blocks.empty()) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(const auto shard, MakeShard(records->head()));
  digests_.clear();
  SYNCLINE_RETURN_IF_ERROR(PlayRecords(*records, *shard));
  for (const uint32_t block : records->head().blocks) {
    if (!IsTrained(block) || IsAsync() || shard->block_version(block) == to_) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("block ", block, " of shard ", number, " is at version ",
                     shard->block_version(block), " at the end of its records"));
  }
  return SavePart(records->head(), *shard);
}

// If all journals started over, nothing says how long ago the loss scale changed: it
// counts as new.
void Player::StartLossScaler() {
  const TrainingSettings& training = options_.shard.training;
  if (!training.ScalesLoss()) return;
  manifest_.loss_scaler = StartLossScaling(training.loss_scaling);
  const bool all_anew = std::ranges::all_of(options_.run.shards, [&](const auto& shard) {
    return anew_.contains(shard.first) || !has_blocks_.contains(shard.first);
  });
  if (scaled_from_ && all_anew) manifest_.loss_scaler.scale = scaled_from_->loss_scale;
}

absl::StatusOr<ReplaySummary> Player::Play() {
  manifest_ = options_.about;
  manifest_.training = manifest_.declared;
  SYNCLINE_RETURN_IF_ERROR(Scan());
  StartLossScaler();
  SYNCLINE_RETURN_IF_ERROR(ChooseStep());
  SYNCLINE_RETURN_IF_ERROR(CheckCheckpoints());
  SYNCLINE_RETURN_IF_ERROR(ChooseBase());
  SYNCLINE_RETURN_IF_ERROR(CheckSeeds());
  summary_.first = std::max(first_, base_ ? base_->manifest().name.step : 0);
  const uint32_t run = std::max(options_.run.head.checkpoint_run, uint32_t{1});
  manifest_.name = {.run = run, .step = IsAsync() ? summary_.last : to_};
  SYNCLINE_RETURN_IF_ERROR(CheckName());
  for (const auto& [shard, segments] : options_.run.shards) {
    SYNCLINE_RETURN_IF_ERROR(PlayShard(shard, segments));
  }
  for (const auto& [step, verdict] : verdicts_) {
    const bool skips = verdict == ShardDecision::Verdict::kSkip;
    if (skips) ++manifest_.skipped_steps;
    if (!options_.shard.training.ScalesLoss()) continue;
    manifest_.loss_scaler =
        AdvanceLossScaling(manifest_.training.loss_scaling, manifest_.loss_scaler,
                           skips ? Gradients::kNotFinite : Gradients::kFinite);
  }
  SYNCLINE_RETURN_IF_ERROR(PutManifest(out_, manifest_));
  summary_.name = manifest_.name;
  return summary_;
}

}  // namespace

absl::StatusOr<ReplaySummary> ReplayInto(const ReplayOptions& options, BlobStore& out) {
  return Player(options, out).Play();
}

}  // namespace syncline
