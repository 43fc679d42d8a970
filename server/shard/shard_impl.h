// What a Shard is made of, for the files that implement it: shard.cc takes messages,
// members and snapshots, shard_step.cc steps blocks and answers, shard_cut.cc copies,
// shard_durable.cc waits for records, shard_quorum.cc for enough contributors, and
// shard_backup.cc gives a new backup what it lacks.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "comm/base/check.h"
#include "server/shard/block.h"
#include "server/shard/movement.h"
#include "server/shard/record.h"
#include "server/shard/shard.h"
#include "server/shard/stepper.h"
#include "server/shard/sync_policy.h"

namespace syncline {

class Shard::Impl {
 public:
  struct Parts {
    std::unique_ptr<Stepper> stepper;
    BufferPool& pool;
  };
  Impl(const ShardOptions& options, Parts parts, const std::vector<ShardBlock>& blocks);

  ShardOutputs Apply(const ShardInput& input) {
    std::visit([this](const auto& one) { On(one); }, input);
    if (mode_.has_quorum()) ReportHeld();
    return TakeOutputs();
  }
  absl::Status Replay(const ShardRecord& record);
  void BeginAgain();
  size_t UnitOf(uint32_t id) const { return UnitOf(block(id)).size(); }
  ShardOutputs TakeOutputs() {
    FinishCuts();
    FinishBackUp();
    Withhold();
    return std::exchange(outputs_, {});
  }

  RefuseCode Check(const MessageHeader& header) const;
  const ShardMember* FindMember(WorkerId worker) const;
  // What a seed or push may be encoded with.
  CodecSet CodecsFor(const MessageHeader& header, uint32_t tensor) const {
    const bool is_seed = header.kind == static_cast<uint16_t>(MessageKind::kSeed) ||
                         header.kind == static_cast<uint16_t>(MessageKind::kSeedState);
    if (is_seed || (header.flags & kFlagParting) != 0) return {options_.seed_codec};
    return options_.transfers[tensor].push.Accepted();
  }
  bool HasBlock(uint32_t id) const { return blocks_.contains(id); }
  const Block& block(uint32_t id) const {
    const auto found = blocks_.find(id);
    SYNCLINE_CHECK(found != blocks_.end());
    return found->second;
  }
  absl::StatusOr<ShardSnapshot> Save() const;
  absl::Status Load(const ShardSnapshot& part);
  absl::Status CheckLoaded() const;
  uint64_t epoch() const { return epoch_; }
  ShardProgress Progress() const;
  void Delivered(const MessageHeader& header);
  void Crossed(WorkerId worker, uint64_t bytes);
  size_t resident_bytes() const;

 private:
  void On(const ShardMessage& message);
  void On(const ShardPrepare& prepare);
  void On(const ShardCommit& commit);
  void On(const ShardDecision& decision);
  void On(const ShardCut& cut);
  void On(const ShardDurable& durable);
  void On(const ShardBackUp& order);
  void On(const ShardClosed& closed);
  // How far members may be ahead from now on.
  void SetPace(const SyncMode& mode);
  void OnPull(const MessageHeader& header, Block& block);
  void OnPullAverage(const MessageHeader& header, const Block& block);
  void OnSeed(const ShardMessage& message, Block& block);
  void OnPullState(const MessageHeader& header, const Block& block);
  void OnSeedState(const ShardMessage& message, Block& block);
  // What has come of the state that this member seeds; null when nothing has.
  static const Block::BegunState* BegunBy(const MessageHeader& header,
                                          const Block& block);
  // The block is about to get its weights: with the state that the kSeed says, or none.
  static RefuseCode BeginState(const MessageHeader& header, Block& block);
  void OnPush(const ShardMessage& message, Block& block);
  void Postpone(const ShardMessage& message);
  void TakePostponed();
  // No refusal: the contribution is held, and counts as what it is.
  RefuseCode Take(const ShardMessage& message, Block& block);

  // The blocks that step together with this one: those of its tensor, or it alone.
  std::span<Block* const> UnitOf(const Block& block) const;
  size_t ExpectedContributions(uint64_t step) const;
  uint64_t LowestVersion() const;  // of the blocks that are trained
  bool IsComplete(const Block& block) const;
  StepFacts FactsOf(const Block& block) const;
  PushFacts FactsOf(const MessageHeader& header, const Block& block) const;
  bool IsWaitedFor(const Block& block) const;
  void AddProgress(const Block& block, ShardProgress& progress) const;
  void StepIfComplete(Block& block);
  void StepOnArrival(const MessageHeader& header, Block& block);
  // The new view; null when the weights stay.
  std::optional<Payload> Arrive(WorkerId worker, const ShardApplied::Arrival& arrival,
                                Block& block);
  void Step(std::span<Block* const> unit, const ShardDecision& decision);
  // Whether every block of it has reported, or has made the step already.
  bool HasAllOf(uint64_t step) const;
  void Decide(const ShardDecision& decision);
  void Accumulate(Block& block);
  void SendFigures(Block& block);

  // Quorum (shard_quorum.cc).
  uint64_t CollectedStep() const;  // of all blocks that are trained
  bool IsClosed(uint64_t step) const { return closed_ && closed_->step == step; }
  bool CountsAt(uint64_t step, uint32_t incarnation) const {
    return IsClosed(step) && closed_->incarnations.contains(incarnation);
  }
  void NoteGiven(const MessageHeader& header);
  void Collect(uint64_t step);
  void CountGivers();
  std::vector<uint32_t> Whole() const;
  void ReportHeld();
  void LeaveOut(Block& block);

  // Records: nothing happens where none are kept. Between the two the step is made.
  bool KeepsRecords() const;
  bool KeepsRecordsOf(const Block& block) const {
    return KeepsRecords() && !unrecorded_.contains(block.spec().block);
  }
  void Keep(ShardRecord::What what);
  void KeepSeed(const Block& block);
  void KeepParting(const ShardMessage& message, const Block& block);
  void NoteRecorded(const Block& block);
  void BeginRecords(std::span<Block* const> unit, const ShardDecision& decision,
                    StepRecord::Payload payload);
  void EndRecord(const Block& block);
  absl::Status Replay(const StepRecord& record, Block& block);
  void StepAgain(std::span<Block* const> unit, const StepRecord& record);

  // Records::kAwaited (shard_durable.cc): the block's version outlives this shard.
  bool IsSafe(const Block& block) const { return !unsafe_.contains(block.spec().block); }
  // Takes out of the outputs what nobody may hear of yet.
  void Withhold();
  uint64_t RecordsBefore(const ShardOutput& output) const;

  // A new backup, or a snapshot (shard_backup.cc).
  void BeginBackUp(ShardBackUp::Kind kind);
  void BackUpNext();
  // The blocks are between two steps: it may be their turn.
  void BackUpIfDue(std::span<Block* const> unit);
  void BackUp(const Block& block);
  void KeepPartings(const Block& block);
  void FinishBackUp();

  // The block has reached a version, which may be one to copy.
  void CopyIfDue(const Block& block);
  void Copy(const Block& block, uint64_t step);
  void BeginCut(uint64_t step);
  void CopyNextFrozen(uint64_t step);
  void SayWhetherMoreWait(uint64_t step);
  bool Trains() const;
  bool IsPast(uint64_t step) const;
  struct Cut;
  void SaveRest(uint64_t step, Cut& cut) const;
  void FinishCuts();

  void Reply(MessageHeader header, MessageKind kind, Payload payload);
  void Refuse(const MessageHeader& header, RefuseCode code);
  enum class Repeats { kNo, kYes };
  void Acknowledge(const MessageHeader& header, Repeats repeats);
  // The sender may forget what it sent.
  void Promise(const MessageHeader& header, Repeats repeats);
  void Publish(Block& block, WorkerId to, const Payload& view);
  // Its view as it is: whole, or by a word to whoever holds it.
  void PublishAsWished(Block& block, const std::map<WorkerId, Wish>& wishes);
  void PublishWithout(Block& block, WorkerId to, uint16_t flag);
  // Sends the new version to those who contributed or may have, and to those who wait for
  // it. Without a view the weights are those of the last version.
  void PublishToAll(Block& block, const std::optional<Payload>& view);
  Payload Encode(const Block& block) { return stepper_->Encode(block, epoch_); }

  const ShardOptions options_;
  const SyncMode mode_;  // that the job was declared with: its kind never changes
  uint64_t most_taken_;  // the largest staleness so far
  std::unique_ptr<const SyncPolicy> policy_;
  const std::unique_ptr<Stepper> stepper_;
  BufferPool& pool_;
  std::map<uint32_t, Block> blocks_;  // by id, which is also the order of all work
  std::map<uint32_t, std::vector<Block*>> tensors_;  // blocks in order

  Movement movement_;
  uint64_t completed_ = 0;  // steps of blocks

  uint64_t epoch_ = 0;
  std::map<uint32_t, ShardMember> members_;  // by rank
  uint64_t last_first_step_ = 0;             // from here on every member contributes
  uint64_t prepared_epoch_ = 0;
  static constexpr uint64_t kNoHold = std::numeric_limits<uint64_t>::max();
  uint64_t hold_from_ = kNoHold;  // no block completes this step or a later one
  // In mode asp: contributions to those steps, of which the new epoch may change the settings.
  std::map<std::pair<uint32_t, WorkerId>, ShardMessage> postponed_;  // by block

  uint64_t passes_until_ = 0;  // blocks make steps before it, although no member is left

  // Of a quorum: the last step that was closed, and with whom.
  struct Closed {
    uint64_t step = 0;
    std::set<uint32_t> incarnations = {};
  };
  std::optional<Closed> closed_;
  std::map<WorkerId, uint64_t> counted_;  // members, and the last step that has theirs
  size_t trained_ = 0;                    // blocks
  // Of step `collected_`: to how many blocks each life has given; whom the coordinator was
  // told of.
  uint64_t collected_ = 0;
  std::map<uint32_t, size_t> given_;
  size_t whole_ = 0;  // lives that have given to all blocks
  std::optional<std::vector<uint32_t>> reported_;

  std::set<uint32_t> loaded_;  // blocks

  struct BegunRecord {
    StepRecord record = {};
    Buffer sum = {};  // becomes its payload; empty where it has one, or none
  };
  std::deque<BegunRecord> begun_;  // of the step under way, in the order of its blocks
  std::set<uint32_t> replayed_;    // blocks whose record waits for the rest of the tensor
  std::optional<uint64_t> replayed_decision_;  // the step of the last one
  float replayed_scale_ = 1;                   // of the loss, at that step
  bool is_replaying_ = false;                  // until it begins again
  // Of a step that some blocks here have still to make, and others made long ago.
  std::optional<ShardDecision> early_;

  // Versions that are being copied.
  struct Cut {
    std::set<uint32_t> blocks = {};  // that were copied
    std::map<uint32_t, std::vector<float>> factors = {};
    std::deque<uint32_t> frozen = {};  // that are still to be copied
    // As of the version, once nothing but frozen blocks is left: the others train on.
    std::shared_ptr<ShardSnapshot> rest = {};
    TrainingSettings training = {};
  };
  std::map<uint64_t, Cut> cuts_;
  std::set<uint64_t> asked_cuts_;
  uint64_t last_cut_ = 0;         // the highest that was done
  std::set<uint64_t> done_cuts_;  // the last of them

  struct Withheld {
    uint64_t records = 0;  // that must be durable before
    ShardOutput output = {};
  };
  Records keeps_;                     // as was ordered last
  std::set<uint32_t> unsaved_;        // blocks whose state is still to be given
  std::set<uint32_t> unrecorded_;     // of them: that a new backup has nothing of
  std::optional<uint32_t> backs_up_;  // whose turn it is: the first of its unit
  bool gives_settings_ = false;       // with the first of them
  enum class BackedUp { kNothing, kUnit, kFirstUnit };
  BackedUp backed_up_ = BackedUp::kNothing;  // in the Apply under way
  uint64_t records_ = 0;                     // given out
  uint64_t durable_ = 0;                     // of them
  std::map<uint32_t, uint64_t> unsafe_;  // blocks, and the records that make them safe
  std::vector<uint32_t> recorded_;       // blocks, in the Apply under way
  std::deque<Withheld> withheld_;
  size_t released_ = 0;  // of outputs_: they were withheld before

  ShardOutputs outputs_;  // of the Apply under way
};

}  // namespace syncline
