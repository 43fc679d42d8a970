// A shard holds the blocks of one job that one engine thread of one server owns. It is a
// pure state machine.
//
// Shard::Apply takes one input and returns the outputs that the caller must carry out. It
// uses no socket, file, clock, thread or random device: the same inputs in the same order
// give the same outputs, bit for bit.
//
// A block at version v has had v updates applied and collects contributions for step v.
// It passes through these states:
//   seeded      Its first values came from the job's seeder.
//   collecting  Contributions for step v arrive. Each is counted once by (rank,
//               incarnation). In mode ssp the block also holds contributions to the
//               next few steps.
//   complete    Every member whose first_step <= v has contributed. A push of 0 samples
//               means "no gradient": it counts as a contribution and has no weight.
//               With a quorum, the coordinator closes the step (shard_quorum.cc).
//   decided     Only in jobs that clip, skip or scale the loss: the block has sent
//               partial statistics, and the coordinator's decision has come back.
//   stepped     One pass computed the weighted sum in rank order, transforms, optimizer
//               and encoding. The version is now v + 1.
//   published   The encoded weights go to every member.
//
// With accumulate_steps = K, the first K - 1 of every K steps only add to a sum. If an
// optimizer needs statistics of a whole tensor, the blocks of that tensor step together.
//
// An epoch changes in two phases. On Prepare, the shard answers with the first step that
// none of its blocks has completed, and completes no step from that one on. On Commit, it
// takes the new members. A member that joins contributes from a first_step that no block
// anywhere has completed, and receives the dense view of exactly that version.
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

// Whether a shard emits records (record.h) of what it does, for a journal or a backup.
enum class Records {
  kNone,
  kKept,
  // Records are kept, and no worker is told of a version whose records may still be lost
  // (ShardDurable). Everything that a worker knows of then survives the server, and the
  // worker still has everything else and pushes it again.
  kAwaited
};

struct ShardOptions {
  uint32_t job = 0;
  uint64_t seed = 0;   // JobSeed of the job's name, for stochastic rounding
  uint32_t shard = 0;  // position in the job's list of shards
  std::vector<TensorTransfers> transfers = {};  // of all tensors of the job, in order
  const Codec* seed_codec = nullptr;            // FP32
  TrainingSettings training = {};
  std::vector<TrainedTensor> tensors = {};  // of all tensors of the job, in order
  Checksum checksum = Checksum::kHeaderOnly;
  // Blocks are copied at every version that is a multiple of this. 0: only on ShardCut.
  uint64_t cut_every = 0;
  Records records = Records::kNone;
  // Allocates memory for published views, aligned to at least kBufferAlignment. Several
  // workers of this host can read it in place. If the function is null or returns null,
  // the shard uses its pool.
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

// A data-plane message of kind kSeed, kSeedState, kPush, kPull, kPullAverage or
// kPullState. Its header has been parsed; nothing else has been checked.
struct ShardMessage {
  MessageHeader header = {};
  // The payload, kept until the contribution is applied.
  Landed payload;
  // Set if the message was refused on arrival, before memory was taken for its payload.
  // Apply answers with this code even if the message would be accepted by now, because it
  // cannot be judged again without its payload.
  RefuseCode refused = RefuseCode::kNone;
};
struct ShardPrepare {
  uint64_t epoch = 0;
};
struct ShardCommit {
  uint64_t epoch = 0;
  std::vector<ShardMember> members = {};
  // New settings, which hold from step `training_from` on. Empty: settings stay the same.
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
// Orders a copy of each block at version `step`: now, or when the block reaches it. If a
// block is past that version there is no cut, and the answer says so. The coordinator
// therefore sends the order between ShardPrepare and ShardCommit. A step that was cut
// before is not cut again. A shard that trains nothing has no versions and copies at
// once.
struct ShardCut {
  uint64_t step = 0;
  enum class Kind {
    kCopy,
    // The same, but no member is left and none will come. Blocks that are behind reach
    // the version without contributions, as they do for a worker that joins at that step.
    kLast,
    // The same as kLast, after the earlier copy of this version could not be written.
    kLastAgain,
    // Copies the next frozen block of a cut that has more of them (ShardCopied::more).
    kNextFrozen,
  };
  Kind kind = Kind::kCopy;
};
// The first `records` of the records that the shard has given out are durable. The count
// starts when the shard is made, at BeginAgain, and at ShardBackUp::Kind::kBegin.
// UINT64_MAX: nobody keeps records any more, and the shard stops giving them out.
struct ShardDurable {
  uint64_t records = 0;
};
// Orders the state of the whole shard as records, block by block, while the shard runs.
// Each order covers one block, or all blocks that step together; kNext asks for more.
//
// kBegin is for a new backup that has no earlier records. From then on the shard gives
// out records as with Records::kAwaited, counted from 0. A block gives no records until
// its state has been given out.
//
// kSnapshot and kBeside are for a shard whose records are already awaited. Records of all
// blocks continue, with the states among them, and no worker waits for the states.
struct ShardBackUp {
  enum class Kind {
    kBegin,     // nothing that was kept before matters
    kSnapshot,  // no effect unless records are awaited
    // The same as kSnapshot, for a receiver that has nothing yet: settings are included.
    kBeside,
    kNext,  // REQUIRES: the last ShardBackedUp had `more`
  };
  Kind kind = Kind::kBegin;
};
// With a quorum: the step consists of the contributions of these incarnations, on every
// shard, and of what leaving workers handed over. A repetition changes nothing.
struct ShardClosed {
  uint64_t step = 0;
  std::vector<uint32_t> incarnations = {};
};
using ShardInput = std::variant<ShardMessage, ShardPrepare, ShardCommit, ShardDecision,
                                ShardCut, ShardDurable, ShardBackUp, ShardClosed>;

// ---- Outputs ----

// A message to one worker. The header is complete except for its CRC.
struct ShardReply {
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  MessageHeader header = {};
  Payload payload = {};
  // True if it acknowledges a contribution that was held or counted before.
  bool repeats = false;
  // True if it acknowledges data that the sender then no longer keeps.
  bool is_promise = false;
};
struct ShardPrepared {
  uint64_t epoch = 0;
  uint64_t next_step = 0;
};
struct ShardCommitted {
  uint64_t epoch = 0;
};
// Partial statistics of a complete block, for the decision about its step.
struct ShardFigures {
  uint32_t block = 0;
  uint64_t step = 0;
  // The sum of squares of the weighted mean gradient (not finite if some element is not),
  // followed by the values of the optimizer's job reduction.
  std::vector<double> figures = {};
};
// With a quorum: these incarnations have contributed to all blocks of this shard, and
// they are enough. Sent again for each additional one until the step is closed.
struct ShardHeld {
  uint64_t step = 0;
  std::vector<uint32_t> incarnations = {};  // ascending
};
// What went into a step of a block: the audit trail that proves exactly-once counting,
// and the source of metrics.
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
  std::vector<Contributor> contributors = {};  // in rank order, only those with samples
  bool skipped = false;  // weights and optimizer state did not change
  // Mode asp only. `step` is then the block's version; each contributor counts its own
  // steps.
  struct Arrival {
    uint64_t step = 0;  // the contributor's own step
    // Versions of the block since the view that was last sent to the contributor.
    uint64_t age = 0;
  };
  std::optional<Arrival> arrival = std::nullopt;
};
// The states ordered by the last ShardBackUp have been given out.
struct
    // True: the shard waits for kNext. False: the receiver has everything.
    ShardBackedUp {
  bool more = false;  // it waits for kNext; otherwise the backup has all
};
struct ShardRecord;
struct ShardRecorded {
  std::shared_ptr<const ShardRecord> record = {};
};
struct BlockSnapshot;
struct ShardSnapshot;
// A copy of a block at version `step` of the job. Blocks of frozen tensors follow the
// first trained block, one for each kNextFrozen while `more` is set. Copying all of them
// at once would block the engine and need as much memory again.
struct ShardCopied {
  uint64_t step = 0;
  uint32_t block = 0;
  std::shared_ptr<const BlockSnapshot> saved = {};
  bool more = false;
};
// The end of a cut: all blocks were copied. Carries the state of tensors and of the job
// at that version, and the settings that hold there.
struct ShardCutDone {
  uint64_t step = 0;
  std::shared_ptr<const ShardSnapshot> rest =
      {};  // has no blocks; null: the cut came too late
  TrainingSettings training = {};
};
using ShardOutput =
    std::variant<ShardReply, ShardPrepared, ShardCommitted, ShardFigures, ShardApplied,
                 ShardRecorded, ShardCopied, ShardCutDone, ShardHeld, ShardBackedUp>;
using ShardOutputs = std::vector<ShardOutput>;

// The whole state of a block between two steps, in the representation in which it is
// stored; used to move blocks between shards. Members and epoch are not part of it.
struct BlockSnapshot {
  uint64_t version = 0;
  uint64_t updates = 0;
  bool seeded = false;
  std::vector<float> weights = {};
  // What workers hold. Empty unless deltas are published.
  std::vector<float> view = {};
  std::vector<float> accumulator = {};
  double accumulated_samples = 0;
  double accumulated_parting_samples = 0;
  float rate_factor = 1;                           // of the last contributions
  std::vector<std::vector<std::byte>> state = {};  // by slot

  bool operator==(const BlockSnapshot&) const = default;
};
struct ShardSnapshot {
  std::map<uint32_t, BlockSnapshot> blocks = {};
  // By tensor: state of tensors that are stepped as a whole.
  std::map<uint32_t, std::vector<float>> factors = {};
  std::vector<double> job_memory = {};  // the same on every shard
  float loss_scale = 1;
};

// What the shard waits for and what each member has done, for heartbeats. The coordinator
// combines the reports of all shards and decides whether a member stands still.
struct ShardProgress {
  struct Member {
    uint32_t rank = 0;
    // Blocks that others wait for and that lack this member's contribution.
    uint32_t owed = 0;
    // Blocks that hold this member's contribution or its request for a version.
    uint32_t waits = 0;
    // Over all incarnations of the rank; they never decrease (movement.h).
    uint64_t contributed = 0;
    uint64_t moved = 0;
  };
  // The lowest step that a member waits for or that has no decision yet. Otherwise the
  // highest version here.
  uint64_t step = 0;
  uint32_t trained = 0;  // blocks that are trained
  // Trained blocks for which a member waits for contributions of others.
  uint32_t waited_for = 0;
  uint32_t undecided = 0;  // trained blocks that are complete but have no decision
  uint32_t unseeded = 0;   // blocks without values, frozen tensors included
  uint64_t completed = 0;  // steps of all blocks since the shard was made
  std::vector<Member> members = {};  // in rank order
};

class Shard {
 public:
  // Allocates and touches all memory that the blocks need. Fails with InvalidArgument for
  // settings that TrainingPlan::Create refuses, and with ResourceExhausted if the system
  // does not give the memory. `pool` must outlive the shard.
  static absl::StatusOr<std::unique_ptr<Shard>> Create(
      const ShardOptions& options, const std::vector<ShardBlock>& blocks,
      BufferPool& pool);
  ~Shard();

  // Advances the state machine by one input, and returns what the caller must carry out.
  ShardOutputs Apply(const ShardInput& input);

  // Repeats what a shard with the same blocks recorded. REQUIRES: this shard was created
  // or loaded as that one was, and has no members. Returns copies (ShardCut) and
  // ShardApplied. Fails with FailedPrecondition if the record is of another version of
  // its block, and with InvalidArgument if it fits no block or is malformed.
  absl::StatusOr<ShardOutputs> Replay(const ShardRecord& record);

  // Ends the replay: the shard continues where the recorded one stopped, in the next
  // epoch that it is told of. The count of its own records starts at 0. REQUIRES: no
  // block waits for the record of another block with which it steps.
  void BeginAgain();
  // Returns the number of blocks that step together with this one, itself included.
  size_t UnitOf(uint32_t block) const;  // REQUIRES: block is here

  // Computes the progress report in one pass over the blocks. Where a member waits for a
  // block, it also passes over the members.
  ShardProgress Progress() const;
  // Notes that a kPublish, kAverage or kState message of Apply was sent to its last byte.
  // Affects Progress() only.
  void Delivered(const MessageHeader& header);
  // Notes that `bytes` crossed this member's connection, in either direction. Affects
  // Progress() only.
  void Crossed(uint32_t rank, uint32_t incarnation, uint64_t bytes);

  // Fails with FailedPrecondition while a block holds contributions or waits for a
  // decision.
  absl::StatusOr<ShardSnapshot> Save() const;
  // Takes the blocks that this shard owns, and the state that belongs to them, out of a
  // part that some shard of a job with the same settings saved. Call it before the first
  // Apply. Fails with InvalidArgument if a block comes twice or has another size; the
  // shard must not be used then.
  absl::Status Load(const ShardSnapshot& part);
  // Fails with InvalidArgument if a block of this shard has not been loaded.
  absl::Status CheckLoaded() const;

  // Returns why a message with this header would be refused now whatever its payload.
  // kNone: the payload decides.
  RefuseCode Check(const MessageHeader& header) const;

  // Returns the largest payload that a message with this header may carry, for
  // Receiver::Allocate. Fails, with one line for the log, if Check refuses the header.
  // The sender gets the answer of Apply to a ShardMessage with `refused`.
  absl::StatusOr<size_t> MaxPayloadBytes(const MessageHeader& header) const;

  // Returns null if this incarnation of the rank is not a member of the epoch.
  const ShardMember* FindMember(uint32_t rank, uint32_t incarnation) const;

  // For status, metrics and tests.
  uint64_t epoch() const;
  bool HasBlock(uint32_t block) const;
  // Whether the block has values. REQUIRES: HasBlock(block).
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
