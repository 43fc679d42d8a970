// The implementation of Shard, for the files that define it: shard.cc takes messages,
// members and snapshots; shard_step.cc steps blocks and answers; shard_state.cc takes and
// gives optimizer state; shard_record.cc keeps records and replays them;
// shard_progress.cc reports progress; shard_cut.cc copies; shard_durable.cc waits for
// records; shard_quorum.cc waits for enough contributors; shard_backup.cc gives a new
// backup what it lacks.
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
  // Returns the codecs that a seed or push may use.
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
  // Sets how far members may be ahead from now on.
  void SetPace(const SyncMode& mode);
  void OnPull(const MessageHeader& header, Block& block);
  void OnPullAverage(const MessageHeader& header, const Block& block);
  void OnSeed(const ShardMessage& message, Block& block);
  void OnPullState(const MessageHeader& header, const Block& block);
  void OnSeedState(const ShardMessage& message, Block& block);
  // Returns what has come of the state that this member seeds; null if nothing has.
  static const Block::BegunState* BegunBy(const MessageHeader& header,
                                          const Block& block);
  // Called just before the block gets its weights: it begins with the state that the
  // kSeed names, or without state.
  static RefuseCode BeginState(const MessageHeader& header, Block& block);
  // Called on a push: holds it, refuses it, or answers a repetition.
  void OnPush(const ShardMessage& message, Block& block);
  void Postpone(const ShardMessage& message);
  void TakePostponed();
  // Holds the contribution. Returns kNone on success, otherwise why it must be refused.
  RefuseCode Take(const ShardMessage& message, Block& block);

  // Returns the blocks that step together with this one: those of its tensor, or it
  // alone.
  std::span<Block* const> UnitOf(const Block& block) const;
  size_t ExpectedContributions(uint64_t step) const;
  uint64_t LowestVersion() const;  // of trained blocks
  bool IsComplete(const Block& block) const;
  StepFacts FactsOf(const Block& block) const;
  PushFacts FactsOf(const MessageHeader& header, const Block& block) const;
  bool IsWaitedFor(const Block& block) const;
  void AddProgress(const Block& block, ShardProgress& progress) const;
  void StepIfComplete(Block& block);
  void StepOnArrival(const MessageHeader& header, Block& block);
  // Makes the step of one contribution in mode asp. Returns the new view; nothing if the
  // weights did not change.
  std::optional<Payload> Arrive(WorkerId worker, const ShardApplied::Arrival& arrival,
                                Block& block);
  void Step(std::span<Block* const> unit, const ShardDecision& decision);
  // Returns whether every trained block has reported `step`, or has made it already.
  bool HasAllOf(uint64_t step) const;
  void Decide(const ShardDecision& decision);
  void Accumulate(Block& block);
  void SendFigures(Block& block);

  // Quorum (shard_quorum.cc).
  uint64_t CollectedStep() const;  // of all trained blocks
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

  // Records. BeginRecords and EndRecord enclose the step itself; both do nothing if no
  // records are kept.
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

  // Records::kAwaited (shard_durable.cc). Returns whether the block's version survives
  // this shard.
  bool IsSafe(const Block& block) const { return !unsafe_.contains(block.spec().block); }
  // Removes from the outputs what nobody may learn yet.
  void Withhold();
  uint64_t RecordsBefore(const ShardOutput& output) const;

  // A new backup, or a snapshot (shard_backup.cc).
  void BeginBackUp(ShardBackUp::Kind kind);
  void BackUpNext();
  // Backs the blocks up if they are between two steps and it is their turn.
  void BackUpIfDue(std::span<Block* const> unit);
  void BackUp(const Block& block);
  void KeepPartings(const Block& block);
  void FinishBackUp();

  // Copies the block if its new version is one to copy.
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
  // Acknowledges a message whose sender then no longer keeps the data.
  void Promise(const MessageHeader& header, Repeats repeats);
  void Publish(Block& block, WorkerId to, const Payload& view);
  // Publishes the current view: whole, or as a flag without payload to a worker that
  // holds it.
  void PublishAsWished(Block& block, const std::map<WorkerId, Wish>& wishes);
  void PublishWithout(Block& block, WorkerId to, uint16_t flag);
  // Sends the new version to the members that contributed or may have, and to those that
  // wait for it. Without `view`, the weights are those of the version before.
  void PublishToAll(Block& block, const std::optional<Payload>& view);
  Payload Encode(const Block& block) { return stepper_->Encode(block, epoch_); }

  const ShardOptions options_;
  // The mode that the job was declared with; its kind never changes.
  const SyncMode mode_;
  uint64_t most_taken_;  // the largest staleness so far
  std::unique_ptr<const SyncPolicy> policy_;
  const std::unique_ptr<Stepper> stepper_;
  BufferPool& pool_;
  std::map<uint32_t, Block> blocks_;  // by id, which is also the order of all work
  // By tensor: its blocks in order.
  std::map<uint32_t, std::vector<Block*>> tensors_;

  Movement movement_;
  uint64_t completed_ = 0;  // steps of all blocks

  uint64_t epoch_ = 0;
  std::map<uint32_t, ShardMember> members_;  // by rank
  // The highest first_step of a member: from this step on every member contributes.
  uint64_t last_first_step_ = 0;
  uint64_t prepared_epoch_ = 0;
  static constexpr uint64_t kNoHold = std::numeric_limits<uint64_t>::max();
  // No block completes this step or a later one. kNoHold: no epoch is being prepared.
  uint64_t hold_from_ = kNoHold;
  // In mode asp: contributions to steps from `hold_from_` on, by block and worker. The
  // new epoch may change the settings of those steps.
  std::map<std::pair<uint32_t, WorkerId>, ShardMessage> postponed_;

  // Blocks make steps before this one even if no member is left (ShardCut::Kind::kLast).
  uint64_t passes_until_ = 0;

  // With a quorum: the last closed step, and the incarnations that it counts.
  struct Closed {
    uint64_t step = 0;
    std::set<uint32_t> incarnations = {};
  };
  std::optional<Closed> closed_;
  // By member: the last step that counted its contribution.
  std::map<WorkerId, uint64_t> counted_;
  size_t trained_ = 0;  // number of trained blocks
  // About step `collected_`. `given_`: the number of blocks that each incarnation has
  // given to. `reported_`: the incarnations that the coordinator was told of.
  uint64_t collected_ = 0;
  std::map<uint32_t, size_t> given_;
  size_t whole_ = 0;  // incarnations that have given to all trained blocks
  std::optional<std::vector<uint32_t>> reported_;

  std::set<uint32_t> loaded_;  // blocks

  struct BegunRecord {
    StepRecord record = {};
    // Becomes the payload of the record; empty if it has one, or needs none.
    Buffer sum = {};
  };
  // The records of the step under way, in the order of its blocks.
  std::deque<BegunRecord> begun_;
  // Blocks whose record waits for the records of the other blocks of the tensor.
  std::set<uint32_t> replayed_;
  // The step of the decision that was replayed last.
  std::optional<uint64_t> replayed_decision_;
  float replayed_scale_ = 1;   // loss scale at that step
  bool is_replaying_ = false;  // until BeginAgain
  // A decision about a step that some blocks here have not reached, while others made it
  // long ago.
  std::optional<ShardDecision> early_;

  // The versions that are being copied.
  struct Cut {
    std::set<uint32_t> blocks = {};  // already copied
    std::map<uint32_t, std::vector<float>> factors = {};
    std::deque<uint32_t> frozen = {};  // still to be copied
    // State of tensors and of the job. It is saved once only frozen blocks are left,
    // because the others continue to train.
    std::shared_ptr<ShardSnapshot> rest = {};
    TrainingSettings training = {};
  };
  std::map<uint64_t, Cut> cuts_;
  std::set<uint64_t> asked_cuts_;
  uint64_t last_cut_ = 0;         // the highest that is done
  std::set<uint64_t> done_cuts_;  // the latest ones

  struct Withheld {
    // Number of records that must be durable before the output may leave.
    uint64_t records = 0;
    ShardOutput output = {};
  };
  Records keeps_;  // as ordered last
  // Blocks whose state is still to be given out.
  std::set<uint32_t> unsaved_;
  // Subset of unsaved_: blocks of which a new backup has nothing yet.
  std::set<uint32_t> unrecorded_;
  // The block whose turn it is: the first of those that step together.
  std::optional<uint32_t> backs_up_;
  // Whether settings come with the first states.
  bool gives_settings_ = false;
  enum class BackedUp { kNothing, kUnit, kFirstUnit };
  BackedUp backed_up_ = BackedUp::kNothing;  // in the Apply under way
  uint64_t records_ = 0;                     // number given out
  uint64_t durable_ = 0;                     // number of them that are durable
  // By block: number of records that must be durable before its version is safe.
  std::map<uint32_t, uint64_t> unsafe_;
  std::vector<uint32_t> recorded_;  // blocks recorded in the Apply under way
  std::deque<Withheld> withheld_;
  // Number of outputs, at the front of `outputs_`, that were withheld before.
  size_t released_ = 0;

  ShardOutputs outputs_;  // of the Apply under way
};

}  // namespace syncline
