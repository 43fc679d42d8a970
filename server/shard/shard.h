// The shard: the blocks of one job that one engine thread of one server owns, as a pure
// state machine.
//
// Apply takes one input and returns what has to happen outside. No socket, file, clock,
// thread or random device: the same inputs in the same order give the same outputs and
// the same bits.
//
// Life of a block at version v (= updates applied so far = number of the step it
// collects):
//   seeded      its first values came from the job's seeder
//   collecting  contributions for step v arrive, each counted once by (rank, incarnation)
//   complete    every member whose first_step <= v has contributed, or has said that it
//               has no gradient (a push of 0 samples: it counts, and weighs nothing); in
//               mode ssp contributions to the next few steps are held meanwhile; with a
//               quorum, the coordinator has closed the step (shard_quorum.cc)
//   decided     only in jobs that clip, skip or scale the loss: partial figures went out,
//               the decision came back
//   stepped     one pass: weighted sum in rank order, transforms, optimizer, encode;
//               version = v + 1
//   published   the encoded weights go to every member
//
// With accumulate_steps K, K - 1 of K steps only add to a sum. Blocks of a tensor whose
// optimizer needs figures about the whole tensor step together.
//
// Epochs change in two phases. Prepare: the shard answers with the first step that none
// of its blocks has completed, and completes none from there on. Commit: new members;
// those who join contribute from a first_step that no block anywhere has completed, and
// get the dense view of exactly that version.
//
// Thread safety: none; an engine thread owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "comm/base/tiling.h"
#include "comm/codec/codec.h"
#include "comm/codec/frame.h"
#include "comm/compression/transfer.h"
#include "comm/transport/message.h"
#include "server/optimizer/training.h"

namespace syncline {

struct ShardBlock {
  uint32_t block = 0;  // id in CutIntoBlocks
  BlockRange range = {};
};

// Whether a shard says what it does in records (record.h): its journal.
enum class Records {
  kNone,
  kKept,
  // Kept, and nobody is told of a version whose records may still be lost (ShardDurable).
  // So what a worker knows of outlives the server, and what it does not know of it still
  // has to push again.
  kAwaited
};

struct ShardOptions {
  uint32_t job = 0;
  uint64_t seed = 0;                            // JobSeed of its name, for roundings
  uint32_t shard = 0;                           // position in the job's list of shards
  std::vector<TensorTransfers> transfers = {};  // of all tensors of the job, in order
  const Codec* seed_codec = nullptr;            // FP32
  TrainingSettings training = {};
  std::vector<TrainedTensor> tensors = {};  // all of the job, in order
  Checksum checksum = Checksum::kHeaderOnly;
  // Blocks are copied at every version that is a multiple of it; 0: only for a ShardCut.
  uint64_t cut_every = 0;
  Records records = Records::kNone;
  // Where published views are written, at least kBufferAlignment aligned: memory that
  // several workers of this host can read in place. Null, or null returned: the shard's
  // pool.
  std::function<std::shared_ptr<std::byte>(size_t)> publish_memory = nullptr;
};

struct ShardMember {
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  uint64_t first_step = 0;
  uint64_t session_key = 0;

  bool operator==(const ShardMember&) const = default;
};

// ---- Inputs ----

// A data-plane message of kind kSeed, kPush or kPull. Its header was parsed, nothing else
// was checked.
struct ShardMessage {
  MessageHeader header = {};
  Landed payload;  // kept until the contribution is applied
  // Why it was refused when it arrived, so that no memory was taken for its payload. The
  // answer says so, whatever has changed since: without its payload it cannot be judged
  // anew.
  RefuseCode refused = RefuseCode::kNone;
};
struct ShardPrepare {
  uint64_t epoch = 0;
};
struct ShardCommit {
  uint64_t epoch = 0;
  std::vector<ShardMember> members = {};
  // New settings, from that step on; empty: as before.
  std::optional<TrainingSettings> training = std::nullopt;
  uint64_t training_from = 0;
};
struct ShardDecision {
  uint64_t step = 0;
  float gradient_scale = 1;  // clip factor
  enum class Verdict { kApply, kSkip } verdict = Verdict::kApply;
  float loss_scale = 1;              // of the next step
  std::vector<double> figures = {};  // sums for the optimizer's job reduction
};
// Blocks are to be copied as they are at version `step`: now, or when they get there. With
// one past it there is no cut, and the answer says so; hence the order comes between
// ShardPrepare and ShardCommit. A step that was cut before stays out. A shard that trains
// nothing has no versions: it copies at once.
struct ShardCut {
  uint64_t step = 0;
  enum class Kind {
    kCopy,
    // The same, and no member is left, nor comes: blocks that lie behind get there without
    // contributions, as they would for one who begins with that step.
    kLast,
    kLastAgain,   // and what was copied before could not be written
    kNextFrozen,  // of a cut that has more of them (ShardCopied)
  };
  Kind kind = Kind::kCopy;
};
// So many of the records that the shard has given out since it was made, began again or was
// backed up anew, from the first one on, outlive it. All ones: nobody keeps them any more,
// and it gives out none.
struct ShardDurable {
  uint64_t records = 0;
};
// A backup that was not there from the first record on: from now on there are records as
// Records::kAwaited has them, counted anew, that begin with what the shard is. It goes on
// meanwhile; each order is for one block, or those that step together, and until its turn
// has come a block gives no records.
//
// A snapshot is of a shard whose records are awaited already: they go on, of all blocks,
// and what the shard is comes among them. Nothing waits for it. Nor with kBeside, where
// whoever had the records goes on to have them.
struct ShardBackUp {
  enum class Kind {
    kBegin,     // whatever was kept before
    kSnapshot,  // nothing happens where no records are awaited
    kBeside,    // likewise, for somebody who knows nothing: settings come, too
    kNext,      // REQUIRES: ShardBackedUp has said that there is more
  };
  Kind kind = Kind::kBegin;
};
// With a quorum: the step is made of what these lives gave, on every shard, and of nothing
// else but what leavers handed over. Said again it changes nothing.
struct ShardClosed {
  uint64_t step = 0;
  std::vector<uint32_t> incarnations = {};
};
using ShardInput = std::variant<ShardMessage, ShardPrepare, ShardCommit, ShardDecision,
                                ShardCut, ShardDurable, ShardBackUp, ShardClosed>;

// ---- Outputs ----

// A message to one worker. The header is complete but for its CRC.
struct ShardReply {
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  MessageHeader header = {};
  Payload payload = {};
  bool repeats = false;  // acknowledges what was held or counted before
  // Acknowledges what its sender does not keep.
  bool is_promise = false;
};
struct ShardPrepared {
  uint64_t epoch = 0;
  uint64_t next_step = 0;
};
struct ShardCommitted {
  uint64_t epoch = 0;
};
// Partial figures of a complete block, for the decision about its step.
struct ShardFigures {
  uint32_t block = 0;
  uint64_t step = 0;
  // Sum of squares of the weighted mean gradient (not finite when some element is not),
  // then those of the optimizer's job reduction.
  std::vector<double> figures = {};
};
// With a quorum: these lives have contributed to all blocks here, and they are enough. Said
// anew with each one more, until the step is closed.
struct ShardHeld {
  uint64_t step = 0;
  std::vector<uint32_t> incarnations = {};  // ascending
};
// What went into a step of a block: the audit trail of exactly-once, and the metrics'
// source.
struct ShardApplied {
  struct Contributor {
    uint32_t rank = 0;
    uint32_t incarnation = 0;
    uint32_t samples = 0;
    bool parting = false;   // kFlagParting
    float rate_factor = 1;  // kFlagRate

    bool operator==(const Contributor&) const = default;
  };
  uint32_t block = 0;
  uint64_t step = 0;
  std::vector<Contributor> contributors = {};  // in rank order, those with samples
  bool skipped = false;  // weights and optimizer state stayed as they were
  // Mode asp: `step` is the block's version, and the contributor counts steps of its own.
  struct Arrival {
    uint64_t step = 0;  // the contributor's
    uint64_t age = 0;   // versions since the view that was sent to it
  };
  std::optional<Arrival> arrival = std::nullopt;
};
// What was ordered with ShardBackUp has outlived the shard from here on.
struct ShardBackedUp {
  bool more = false;  // it waits for kNext; otherwise the backup has all
};
struct ShardRecord;
struct ShardRecorded {
  std::shared_ptr<const ShardRecord> record = {};
};
struct BlockSnapshot;
struct ShardSnapshot;
// A block as it is at version `step` of the job. Blocks of frozen tensors come after the
// first of the others, one for each kNextFrozen while there are `more`: all at once would
// hold up the engine, and take as much memory again.
struct ShardCopied {
  uint64_t step = 0;
  uint32_t block = 0;
  std::shared_ptr<const BlockSnapshot> saved = {};
  bool more = false;
};
// All blocks were copied: what belongs to tensors and the job at that version, and the
// settings that hold there.
struct ShardCutDone {
  uint64_t step = 0;
  std::shared_ptr<const ShardSnapshot> rest = {};  // without blocks; null: too late
  TrainingSettings training = {};
};
using ShardOutput =
    std::variant<ShardReply, ShardPrepared, ShardCommitted, ShardFigures, ShardApplied,
                 ShardRecorded, ShardCopied, ShardCutDone, ShardHeld, ShardBackedUp>;
using ShardOutputs = std::vector<ShardOutput>;

// All that a shard's blocks are between two steps, in the representation they are stored
// in: to move blocks to other shards. Members and epoch are not part of it.
struct BlockSnapshot {
  uint64_t version = 0;
  uint64_t updates = 0;
  bool seeded = false;
  std::vector<float> weights = {};
  std::vector<float> view = {};  // what workers hold, where deltas are published
  std::vector<float> accumulator = {};
  double accumulated_samples = 0;
  double accumulated_parting_samples = 0;
  float rate_factor = 1;                           // of the last contributions
  std::vector<std::vector<std::byte>> state = {};  // by slot

  bool operator==(const BlockSnapshot&) const = default;
};
struct ShardSnapshot {
  std::map<uint32_t, BlockSnapshot> blocks = {};
  std::map<uint32_t, std::vector<float>> factors = {};  // of tensors stepped whole
  std::vector<double> job_memory = {};                  // the same on every shard
  float loss_scale = 1;
};

// For heartbeats: what the shard waits for, and what each member has done. "Nobody moves"
// is the coordinator's verdict, from what all shards say.
struct ShardProgress {
  struct Member {
    uint32_t rank = 0;
    uint32_t owed = 0;   // blocks that others wait for and that lack its contribution
    uint32_t waits = 0;  // blocks that hold its contribution or its wish for a version
    // Of all lives of the rank, only growing (movement.h).
    uint64_t contributed = 0;
    uint64_t moved = 0;
  };
  uint64_t step = 0;        // the lowest that somebody waits for; nobody: the next one
  uint32_t trained = 0;     // blocks that contributions are for
  uint32_t waited_for = 0;  // of them: somebody waits for the others' contributions
  uint32_t undecided = 0;   // of them: complete, without a decision
  uint32_t unseeded = 0;    // blocks without values, also of frozen tensors
  uint64_t completed = 0;   // steps of blocks, since the shard was made
  std::vector<Member> members = {};  // in rank order
};

class Shard {
 public:
  // Takes and touches all memory that the blocks need. InvalidArgument for settings that
  // TrainingPlan::Create refuses, ResourceExhausted when the system does not give the
  // memory. `pool` outlives the shard.
  static absl::StatusOr<std::unique_ptr<Shard>> Create(
      const ShardOptions& options, const std::vector<ShardBlock>& blocks,
      BufferPool& pool);
  ~Shard();

  ShardOutputs Apply(const ShardInput& input);

  // Does again what a shard of these blocks once did. For one that was made or loaded as
  // that one was, and has no members; what comes of it are copies (ShardCut) and
  // ShardApplied. FailedPrecondition when the record is of another version of its block
  // than the one that is here, InvalidArgument when it fits no block, or makes no sense.
  absl::StatusOr<ShardOutputs> Replay(const ShardRecord& record);

  // After the last Replay: goes on as the shard would whose records those were, in the next
  // epoch that it is told. Counts its own records anew. REQUIRES: no block waits for the
  // record of another one with which it steps.
  void BeginAgain();
  // How many blocks step together with this one, itself included.
  size_t UnitOf(uint32_t block) const;  // REQUIRES: block is here

  // One pass over the blocks; with members to count where somebody waits.
  ShardProgress Progress() const;
  // A kPublish or kAverage that Apply gave out has been sent, to the last byte. Shows in
  // Progress only.
  void Delivered(const MessageHeader& header);
  // So many bytes crossed the connection of this member, up and down. Shows in Progress
  // only.
  void Crossed(uint32_t rank, uint32_t incarnation, uint64_t bytes);

  // FailedPrecondition while a block holds contributions or waits for a decision.
  absl::StatusOr<ShardSnapshot> Save() const;
  // A part of what other shards of a job with the same settings saved: takes the blocks
  // that this shard owns, and what belongs to them. Before the first Apply.
  // InvalidArgument when a block comes twice or is of another size; then the shard must
  // not be used.
  absl::Status Load(const ShardSnapshot& part);
  // InvalidArgument when parts were loaded and a block is still missing.
  absl::Status CheckLoaded() const;

  // Why a message with this header would be refused now, whatever it carries; kNone when
  // its payload decides.
  RefuseCode Check(const MessageHeader& header) const;

  // The largest payload that a message with this header may carry, for
  // Receiver::Allocate; an error (a line for the log) when Check refuses it. The answer
  // to the sender is what Apply gives for a ShardMessage with `refused`.
  absl::StatusOr<size_t> MaxPayloadBytes(const MessageHeader& header) const;

  // Null when this life of the rank is no member of the epoch.
  const ShardMember* FindMember(uint32_t rank, uint32_t incarnation) const;

  // For status, metrics and tests.
  uint64_t epoch() const;
  bool HasBlock(uint32_t block) const;
  // Whether it has values. REQUIRES: HasBlock(block).
  bool HasValues(uint32_t block) const;
  uint64_t block_version(uint32_t block) const;                // REQUIRES: block is here
  std::span<const float> block_weights(uint32_t block) const;  // REQUIRES: block is here
  uint32_t block_digest(uint32_t block) const;                 // StepRecord::digest
  size_t resident_bytes() const;  // weights, state and held contributions

 private:
  class Impl;
  explicit Shard(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace syncline
