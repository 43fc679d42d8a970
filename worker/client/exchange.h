// The exchange: a worker's side of the data path, as a pure state machine.
//
// It decides what to send to which shard, writes the views that the servers publish into
// the tensors' weights, and reports when a tensor is complete. It has no sockets and no
// threads: one thread of Session feeds it messages and times, and so does the simulation.
// Its only clock is options.clock, which measures the cost of encoding and decoding for
// status and for push_codec=auto.
//
// Encoding and decoding happen outside. The exchange emits one request for each block
// (ExchangeEncode, ExchangeDecode); any thread may run it, and the results are reported
// back by Encoded and Decoded in any order. A tensor is not ready while one of its blocks
// is being encoded or decoded. Messages for a block whose view is being decoded are
// deferred, so that each block handles its messages one after the other.
//
// Each block of a pushed tensor passes through these states: queued -> encoding -> sent
// -> held (acknowledged by the shard) -> published. A published delta applies to the
// previous version. If the block does not have that version, or the servers' checksum of
// the result differs, the exchange pulls the whole view.
//
// No timer repeats anything: connections are reliable (comm/transport), so one copy of a
// block is under way, and its answer arrives. When a connection is lost, the blocks and
// requests that were under way are sent again on the next one (Connected). This is safe,
// since a contribution counts once. A block that a shard refused for a temporary reason
// is sent again a little later.
//
// In modes that let a worker run ahead (options.mode), a tensor is ready again once the
// shard holds its contribution and its blocks are fresh enough. Views that arrive while
// the caller uses the weights are stashed until the next Push, Skip or Settle. With a
// quorum a step may be made without this worker (exchange_quorum.cc).
//
// Each shard's queue is served in block order, so tensors declared first overtake others.
// SetRoom bounds the bytes under way to a shard, and options.encodings_at_once the number
// of blocks encoded at a time, which also bounds the encoded bytes that wait. A block is
// urgent once all blocks before it have left in this step, since the next forward waits
// for it: it has room of its own, and overtakes what is under way.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "comm/base/tiling.h"
#include "comm/codec/codec.h"
#include "comm/codec/frame.h"
#include "comm/compression/transfer.h"
#include "comm/transport/front.h"
#include "comm/transport/message.h"
#include "worker/client/average_pull.h"
#include "worker/client/codec_cost.h"
#include "worker/client/codec_workspace.h"
#include "worker/client/decode_work.h"
#include "worker/client/encode_work.h"
#include "worker/client/exchange_options.h"
#include "worker/client/exchange_outputs.h"
#include "worker/client/push_encoder.h"
#include "worker/client/view_landing.h"
#include "worker/client/wire_meter.h"

namespace syncline {

class Exchange {
 public:
  // Maximum number of messages that a block defers while its view is being decoded; a
  // server sends one for each step.
  static constexpr size_t kMaxDeferred = 64;

  // `weights[i]` is the memory of tensor i: read when seeding, written when views arrive.
  // `pool` and the weights must outlive the exchange. REQUIRES: one shard, below
  // options.shards, for each block of the tensors; FP32 weights where views arrive as
  // deltas (Transfer::compresses).
  Exchange(const ExchangeOptions& options, const std::vector<MemoryView>& weights,
           BufferPool& pool);

  // Seeds the servers or pulls all weights. ExchangeReady follows once for every tensor.
  ExchangeOutputs Start(absl::Duration now);

  // Contributes a gradient, the mean over `samples` samples, computed from the version
  // that the tensor now holds. The gradient must not change until ExchangeReady.
  // REQUIRES: the tensor is ready; gradient and weights have equal sizes.
  ExchangeOutputs Push(uint32_t tensor, const ConstMemoryView& gradient, uint32_t samples,
                       absl::Duration now);

  // Sets the factor by which the servers multiply the tensor's learning rate, from the
  // next push on. REQUIRES: 0 <= factor <= kMaxRateFactor.
  void SetRateFactor(uint32_t tensor, float factor) {
    tensors_[tensor].next_rate_factor = factor;
  }

  // Contributes nothing to the tensor's next step, with a weight of 0 samples. Error
  // feedback is kept. REQUIRES: the tensor is ready.
  ExchangeOutputs Skip(uint32_t tensor, absl::Duration now);

  // Ends the use of the tensor's weights: from now on its views are taken note of, and
  // dropped. Its blocks still take part in every step (Skip). REQUIRES: the tensor is
  // ready, and the mode is lockstep.
  void Release(uint32_t tensor);

  // Brings the tensor's weights up to date: with everything that this worker has
  // contributed and, in mode asp, with everything that the servers hold by now.
  // ExchangeReady follows.
  // REQUIRES: the tensor is ready, and not frozen.
  ExchangeOutputs Settle(uint32_t tensor, absl::Duration now);

  // Requests the averaged weights of a tensor; ExchangeAveraged follows. REQUIRES: the
  // previous request was answered.
  ExchangeOutputs PullAverage(uint32_t tensor);
  // The same for array number `array` of the tensor's optimizer state.
  ExchangeOutputs PullState(uint32_t tensor, uint32_t array);

  // Sends all error feedback, so that nothing is lost when this worker leaves.
  // ExchangeParted follows once the servers hold it, or at once if there is none. Weights
  // no longer change. REQUIRES: all tensors are ready; no Push follows.
  ExchangeOutputs Part(absl::Duration now);

  // Handles a message from a shard. Every field is checked before it is used. A payload
  // without an owner is copied if it is needed later.
  ExchangeOutputs OnMessage(const MessageHeader& header, Slice payload,
                            absl::Duration now);

  // Reports that an ExchangeEncode was run.
  ExchangeOutputs Encoded(EncodeWork& work, absl::Duration now);

  // Reports that an ExchangeDecode was run.
  ExchangeOutputs Decoded(const DecodeWork& work, absl::Duration now);

  // Returns the gradients that were pushed and that the exchange may still read.
  std::vector<ByteView> UnfinishedGradients() const;

  // Reports that an ExchangeSend that borrowed the gradient's memory is done.
  ExchangeOutputs SendDone(uint32_t block);

  ExchangeOutputs EpochChanged(uint64_t epoch, SeedRole role, absl::Duration now);

  // Mode ssp: sets how many steps this worker may be ahead of the slowest. A lower number
  // counts from its next step on, a higher one at once. Other modes ignore it.
  ExchangeOutputs SetStaleness(uint64_t staleness, absl::Duration now);

  // Reports that the shard has accepted this worker on a new connection. Nothing is sent
  // before.
  ExchangeOutputs Connected(uint32_t shard, absl::Duration now);
  void Disconnected(uint32_t shard) { shards_[shard].is_connected = false; }

  // Another server holds the shard from `epoch` on, with the state that the previous
  // server had published and nothing else. Contributions that the previous server had
  // acknowledged without publishing a view are sent again to the new one. Messages of
  // earlier epochs, which the previous server may still send, are ignored.
  void Replaced(uint32_t shard, uint64_t epoch);

  // Limits the bytes under way to the shard; the last block may exceed the limit. There
  // is no limit at first. Urgent blocks have a limit of their own, by default the same.
  // It may be lower: if only urgent blocks wait, one more is sent (send_window.h).
  void SetRoom(uint32_t shard, size_t bytes, std::optional<size_t> urgent_bytes = {}) {
    shards_[shard].room = bytes;
    shards_[shard].urgent_room = urgent_bytes.value_or(bytes);
  }
  // Sends the queued blocks that the limits allow.
  ExchangeOutputs Pump(absl::Duration now);
  // Bytes that the shard has not acknowledged. Within a host this is what is under way,
  // since lent memory is returned only when the step is over.
  size_t unacknowledged_bytes(uint32_t shard) const {
    return shards_[shard].unacknowledged;
  }

  // Bytes of contributions that the shard holds and whose views have not arrived.
  size_t held_bytes(uint32_t shard) const { return shards_[shard].held_bytes; }
  // The part of held_bytes() in blocks before the one that is sent next, counted up to
  // `limit`: how far this worker is ahead of the slowest one, and of its own views.
  // Blocks behind that one were pushed in the order of backward; other workers push
  // theirs when their backward gets there.
  size_t HeldInFront(uint32_t shard, size_t limit) const;
  // Bytes of the longest contribution that was sent to the shard.
  size_t contribution_bytes(uint32_t shard) const {
    return shards_[shard].contribution_bytes;
  }

  // Sends refused blocks whose time has come again, and pumps.
  ExchangeOutputs Tick(absl::Duration now);

  // What the next message from the shard depends on.
  enum class Awaits {
    kNothing,
    kOthers,  // other workers: the shard has everything it needs from this one
    kShard,   // the shard: it owes an answer
  };
  Awaits WhatIsAwaited(uint32_t shard) const;
  // Asks a shard that waits for other workers to confirm what it is going to send.
  // REQUIRES: WhatIsAwaited(shard) == Awaits::kOthers.
  ExchangeOutputs Probe(uint32_t shard);
  uint32_t shard_of(uint32_t block) const { return blocks_[block].shard; }
  // The version that the block's weights hold.
  uint64_t version_of(uint32_t block) const { return blocks_[block].version; }

  // Maximum payload of a message with this header.
  size_t MaxPayloadBytes(const MessageHeader& header) const;

  // The step this worker computes: the lowest of all trained tensors.
  uint64_t step() const;
  // The loss scale of that step, which the servers decide; 1 without loss scaling.
  float loss_scale() const { return loss_scale_; }
  bool IsReady(uint32_t tensor) const { return tensors_[tensor].ready; }
  // Whether the servers hold everything that was pushed: only other workers are waited
  // for.
  bool AllHeld() const { return unheld_ == 0; }
  uint64_t epoch() const { return epoch_; }
  ExchangeStats stats() const;
  // The codec that push_codec=auto chose, and why. Empty if the job names a codec.
  const std::string& codec_choice() const { return encoder_.choice(); }
  // A tensor's error feedback, which may be saved and restored between steps. It is
  // invalid if kept_status() is not OK afterwards.
  GradientMemory& memory(uint32_t tensor) { return encoder_.memory(tensor); }
  absl::Status kept_status() const { return encoder_.kept_status(); }
  uint32_t blocks() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t tensors() const { return static_cast<uint32_t>(tensors_.size()); }

 private:
  // Seeds come before step 0; a step of their own keeps a late acknowledgement of a seed
  // from passing for one of the first contribution.
  static constexpr uint64_t kSeedStep = ~uint64_t{0};
  // About 10 ms of work, during which this thread does nothing else.
  static constexpr size_t kDigestElements = size_t{1} << 24;
  enum class Phase { kIdle, kQueued, kEncoding, kSent, kHeld };

  struct Block {
    BlockRange range = {};
    uint32_t shard = 0;
    Phase phase = Phase::kIdle;
    // Kind of the message under way: kSeedState, kSeed, kPush or kPull.
    MessageKind kind = MessageKind::kPull;
    uint32_t seed_array = 0;  // kSeedState: the number of the array
    uint64_t step = 0;        // the step of the present or next contribution
    uint64_t version = 0;     // the version in `weights`; valid if `landed`
    uint64_t wanted = 0;      // the version that makes the tensor ready
    bool landed = false;      // a view has been written to `weights`
    bool is_own = true;       // `weights` still holds what the program declared
    uint64_t sent_epoch = 0;
    size_t sent_bytes = 0;
    size_t promised = 0;       // upper bound of the encoded bytes, while encoding
    bool is_encoding = false;  // an encoding is under way, even if no longer needed
    bool is_read = false;      // the encoding reads the weights, to seed
    const DecodeWork* decoding = nullptr;  // not null: it owns the weights
    size_t held_bytes = 0;    // of a held contribution whose view has not arrived
    float learning_rate = 0;  // of the step that begins with `version`; 0: unknown
    int64_t sent_at_ns = 0;   // start of the trace's span; 0: no span is open
    int64_t held_at_ns = 0;   // the same for the time at the shard
    int borrowed_sends = 0;   // sends that read the gradient's memory
    int attempts = 0;
    bool is_noted = false;     // the shard has confirmed that it will send the view
    bool is_asked = false;     // quorum: settles, and has no answer yet
    uint64_t newest_view = 0;  // quorum: newest version seen while parting
    bool was_useless = false;  // a view of `wanted` arrived that could not be used
    // When to send a refused message again; infinite: it was not refused.
    absl::Duration due = absl::InfiniteDuration();
  };
  struct Tensor {
    uint32_t first_block = 0;
    uint32_t blocks = 0;
    bool frozen = false;
    MemoryView weights = {};
    ConstMemoryView gradient = {};
    uint32_t samples = 0;  // of the last gradient
    bool skips = false;    // the step under way has no gradient of this worker
    float loss_scale = 1;  // of the gradient
    float rate_factor = 1;
    float next_rate_factor = 1;  // of the next gradient
    bool ready = false;
    bool is_released = false;  // `weights` has no memory any more
    bool gave_late = false;    // its last contribution was too late, or it settles
    uint32_t encodings = 0;    // number under way
    uint32_t decodings = 0;    // number under way
    bool is_surveyed = false;  // one encoding surveys it; no block is encoded meanwhile
    // Blocks to be added to the error feedback once no encoding is under way.
    std::vector<GradientBlock> late = {};
  };
  // A message that waits: a view that arrived while the caller used the weights, or any
  // message that arrived while they were being written.
  struct Waiting {
    MessageHeader header = {};
    Slice payload = {};
  };
  struct ShardQueue {
    std::set<uint32_t> queued;  // in block order: front layers first
    size_t room = std::numeric_limits<size_t>::max();
    std::set<uint32_t> encoding = {};
    size_t promised = 0;  // upper bound of the bytes of `encoding`
    size_t urgent_room = std::numeric_limits<size_t>::max();
    Front front = {};           // of contributions
    size_t unacknowledged = 0;  // bytes of blocks that are kSent
    std::set<uint32_t> held;    // blocks whose contributions are kHeld
    size_t held_bytes = 0;
    size_t contribution_bytes = 0;
    bool is_connected = false;
    uint64_t first_epoch = 0;  // the first epoch in which this server holds the shard
  };

  ExchangeOutputs Contribute(uint32_t tensor, absl::Duration now);
  // Records the phase in options.phases.
  void Enter(WorkerPhase phase) const {
    if (options_.phases != nullptr) options_.phases->Exchange(phase);
  }
  void EnterPhase() const {
    Enter(decodings_ > 0   ? WorkerPhase::kDecode
          : encodings_ > 0 ? WorkerPhase::kEncode
          : unheld_ > 0    ? WorkerPhase::kPush
          : has_news_      ? WorkerPhase::kPublish
                           : WorkerPhase::kOthers);
  }
  // ---- Traces (exchange_trace.cc) ----
  bool IsTraced() const {
    return options_.trace != nullptr && options_.trace->IsOpen(options_.job);
  }
  TraceSpan SpanOf(const Block& block, TraceKind kind) const;
  void TraceSent(Block& block) const;
  void TraceAcknowledged(Block& block) const;
  void TraceArrived(Block& block, uint64_t version) const;
  static bool IsUnheld(Phase phase) {
    return phase == Phase::kQueued || phase == Phase::kEncoding || phase == Phase::kSent;
  }
  void SetPhase(Block& block, Phase phase);
  void Enqueue(uint32_t block, MessageKind kind);
  void PumpAll(absl::Duration now, ExchangeOutputs& outputs);
  void PumpShard(uint32_t shard, absl::Duration now, ExchangeOutputs& outputs);
  // Sends the first block that can be sent, or requests its encoding. Returns false if
  // there is none.
  bool BeginNext(uint32_t shard, absl::Duration now, ExchangeOutputs& outputs);
  bool Begin(uint32_t block, absl::Duration now, ExchangeOutputs& outputs);
  void SendBlock(uint32_t block, Payload payload, absl::Duration now,
                 ExchangeOutputs& outputs);
  bool HasRoom(const ShardQueue& queue, uint32_t block) const;
  bool IsUrgent(const Block& block) const;
  void SendPull(uint32_t block, ExchangeOutputs& outputs);
  bool MayHoldView(const Block& block) const;
  MessageKind FirstOfSeed(Block& block) const;
  // Mode ssp: handles the acknowledgement of the block's contribution.
  void OnHeldAhead(uint32_t id, ExchangeOutputs& outputs);
  void OnSeedAck(uint32_t block, ExchangeOutputs& outputs);
  const SeedState* SeedStateOf(const Block& block) const;  // null: none
  // The step number of the message under way. Each part of a seed has its own, so that a
  // late acknowledgement cannot be taken for another part's.
  static uint64_t StepOf(const Block& block);
  std::shared_ptr<EncodeWork> AskSeed(const Block& block) const;
  GradientBlock ContributionOf(const Block& block) const;
  MemoryView WeightsOf(const Block& block) const {
    return tensors_[block.range.tensor].weights.Part(block.range.first_element,
                                                     block.range.elements);
  }
  GradientUnits UnitsOf(const Tensor& tensor, const Block& block) const;
  void Leave(uint32_t block, Phase next);
  void OnAck(const MessageHeader& header, absl::Duration now, ExchangeOutputs& outputs);
  void OnPublish(const MessageHeader& header, Slice payload, absl::Duration now,
                 ExchangeOutputs& outputs);
  void Stash(const MessageHeader& header, const Slice& payload);
  // Writes the newest stashed view. REQUIRES: the exchange owns the tensor's memory.
  void LandStashed(uint32_t block);
  // The version that must have been written before the block's tensor is ready again.
  uint64_t WantedAfter(const Block& block) const;
  bool IsWelcome(const MessageHeader& header) const;
  // Handles the arrival of the version that the block waited for.
  void Finish(uint32_t block, ExchangeOutputs& outputs);
  void OnNoted(const MessageHeader& header);
  bool IsOfPredecessor(const MessageHeader& header) const;
  void OnRefuse(const MessageHeader& header, absl::Duration now,
                ExchangeOutputs& outputs);
  // ---- Quorum (exchange_quorum.cc) ----
  bool IsOfQuorum(const Block& block) const;
  static bool IsContribution(const Block& block);
  bool IsUnderWay(const Tensor& tensor) const;
  // The newest version of the block that has arrived.
  uint64_t NewestOf(uint32_t block) const;
  ExchangeOutputs ContributeToQuorum(uint32_t tensor, absl::Duration now);
  ExchangeOutputs SettleWithQuorum(uint32_t tensor, absl::Duration now);
  void OnQuorumView(const MessageHeader& header, const Slice& payload, absl::Duration now,
                    ExchangeOutputs& outputs);
  void OnQuorumAck(const MessageHeader& header, ExchangeOutputs& outputs);
  void OnTooLate(const MessageHeader& header, ExchangeOutputs& outputs);
  // The step was made with this worker's contribution.
  void Counted(uint64_t step, ExchangeOutputs& outputs);
  void GoOn(uint32_t block, ExchangeOutputs& outputs);
  // The step was made without it.
  void BeLate(uint64_t step, ExchangeOutputs& outputs);
  void TakeBack(uint32_t tensor);
  void TakeBackLate(Tensor& tensor);
  void PartAgain(uint32_t block, uint64_t version);
  void CatchUpIfAllGave(ExchangeOutputs& outputs);
  void CatchUpWith(const MessageHeader& header, const Slice& payload, absl::Duration now,
                   ExchangeOutputs& outputs);
  void EndCatchUp(ExchangeOutputs& outputs);
  // Returns false if the view could not be used and was requested again.
  bool LandNews(const MessageHeader& header, const Slice& payload, absl::Duration now);

  // ---- Decoding (exchange_decode.cc) ----
  std::shared_ptr<DecodeWork> AskLanding(const MessageHeader& header, Slice payload);
  // Decodes at once on this thread. REQUIRES: no decoding of the block is under way.
  ViewLanding::Result Land(const MessageHeader& header, const Slice& payload);
  void TakeCost(const DecodeWork& work);
  bool Follows(const MessageHeader& header) const;
  void Landed(const DecodeWork& work, absl::Duration now, ExchangeOutputs& outputs);
  // The block's weights are those of this view, or nobody uses them any more.
  void Have(const MessageHeader& header, size_t payload_bytes, ExchangeOutputs& outputs);
  // Whether the block's weights are being read or written.
  static bool IsInUse(const Block& block) {
    return block.decoding != nullptr || block.is_read;
  }
  Slice Kept(Slice payload);
  void Handle(const MessageHeader& header, Slice payload, absl::Duration now,
              ExchangeOutputs& outputs);
  // Keeps a message that arrived while the block's weights were in use.
  void Defer(const MessageHeader& header, Slice payload);
  void HandleDeferred(uint32_t block, absl::Duration now, ExchangeOutputs& outputs);
  void TakeRates(const MessageHeader& header, Block& block);
  bool IsParting(uint32_t block) const { return parting_ && parting_->contains(block); }
  void Parted(uint32_t block, ExchangeOutputs& outputs);
  ExchangeOutputs Pull(uint32_t tensor, std::optional<uint32_t> array);
  void SendAveragePull(uint32_t block, ExchangeOutputs& outputs);
  void OnAverage(const MessageHeader& header, ByteView payload, ExchangeOutputs& outputs);
  void ReportIfReady(uint32_t tensor, ExchangeOutputs& outputs);
  void Fail(absl::Status status, ExchangeOutputs& outputs);
  absl::Duration Backoff(const Block& block) const;
  MessageHeader HeaderFor(uint32_t block, MessageKind kind, uint64_t step) const;
  std::string Where(uint32_t block) const;

  const ExchangeOptions options_;
  BufferPool& pool_;
  PushEncoder encoder_;
  WireMeter wire_;
  ViewLanding landing_;
  uint64_t staleness_;  // mode ssp: the present limit
  bool has_run_ahead_;  // staleness_ is or was above 0, so versions may be missing
  std::vector<Tensor> tensors_;
  std::vector<Block> blocks_;
  std::vector<ShardQueue> shards_;
  std::map<uint32_t, Waiting> stashed_;               // by block
  std::map<uint32_t, std::deque<Waiting>> deferred_;  // by block
  uint32_t unheld_ = 0;     // number of blocks that are queued, encoding or sent
  uint32_t encodings_ = 0;  // number under way
  uint32_t decodings_ = 0;  // number under way
  CodecCost decoding_cost_;
  CodecWorkspace workspace_ = {.is_of_exchange = true};  // for decoding on this thread
  absl::Status device_status_;  // of the GPUs that views were written to
  bool has_news_ = false;       // a view arrived since the servers held all pushes
  // Number of elements that may still be digested before the next Tick.
  size_t digest_room_ = kDigestElements;
  uint64_t epoch_;
  AveragePull average_;
  std::optional<std::set<uint32_t>> parting_;  // blocks that are not held yet

  // For a quorum.
  uint64_t counted_until_ = 0;         // for steps before it the outcome is known
  std::optional<uint64_t> late_step_;  // the step that was made without this worker
  uint64_t newest_ = 0;                // newest version that any block is known to have
  bool catches_up_ = false;  // all blocks wait for newest_, as they do at the beginning

  float loss_scale_ = 1;
  uint64_t loss_scale_version_ = 0;
  bool failed_ = false;
  ExchangeStats stats_;
};

}  // namespace syncline
