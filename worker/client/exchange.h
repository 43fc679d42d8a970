// The exchange: a worker's side of the data path, as a pure state machine.
//
// It decides what to send to which shard, lands what the servers publish in the tensors'
// weights, and says when a tensor is complete. No socket or thread: Session feeds it
// messages and times from one thread, and so does the simulation. The only clock is
// options.clock, which measures what encoding and decoding cost, for status and for
// push_codec=auto.
//
// What has to be encoded and decoded it asks for, block by block (ExchangeEncode,
// ExchangeDecode); some thread does it, and what it came to counts as soon as it is told
// (Encoded, Decoded), in whatever order that is. A tensor is not ready while something of it
// is being encoded or decoded, and what comes of a block whose view is being decoded waits
// until that is done, so that each block sees its messages one after the other.
//
// Every block of a pushed tensor goes through: queued -> encoding -> sent -> held
// (acknowledged) -> published. A published delta needs the version before it; without that, or when the
// servers' checksum of the sum differs, the whole view is asked for anew.
//
// Nothing is repeated by the clock: connections are reliable (comm/transport), so one copy
// of a block is on its way, and its answer comes. What was on its way when a connection
// was lost is sent and asked for again on the next one (Connected), which is harmless: a
// contribution counts once. What a shard refused for a reason that passes is sent again a
// little later.
//
// Where the mode lets a worker run ahead (options.mode), a tensor is ready again once its
// contribution is held and its blocks are fresh enough. Views that come while the caller
// uses the weights wait for the next Push, Skip or Settle. With a quorum it may be left out
// of a step (exchange_quorum.cc).
//
// Blocks are taken from each shard's queue in block order, so the tensors declared first
// overtake; no more are than there is room for on the way to the shard (SetRoom), and few
// at once (options.encodings_at_once), so that this bounds what waits encoded, too.
// One whose predecessors have all left in this step is urgent, since the next forward waits
// for it: it has room of its own, and overtakes what is on its way.
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
  // Messages of a block that wait while its view is decoded; a server sends one a step.
  static constexpr size_t kMostDeferred = 64;

  // `weights[i]` is the memory of tensor i: read when seeding, written when views land.
  // `pool` and the weights outlive the exchange. REQUIRES: one shard, below
  // options.shards, for each block of the tensors; FP32 where views come as deltas
  // (Transfer::compresses).
  Exchange(const ExchangeOptions& options, const std::vector<MemoryView>& weights,
           BufferPool& pool);

  // Seeds or asks for all weights. ExchangeReady follows once for every tensor.
  ExchangeOutputs Start(absl::Duration now);

  // The gradient, a mean over `samples` samples, for the version that the tensor now
  // holds. It stays unchanged until ExchangeReady. REQUIRES: the tensor is ready;
  // gradient and weights have equal sizes.
  ExchangeOutputs Push(uint32_t tensor, const ConstMemoryView& gradient, uint32_t samples,
                       absl::Duration now);

  // What the servers multiply the tensor's learning rate with at the steps that are pushed
  // from now on. REQUIRES: 0 <= factor <= kMaxRateFactor.
  void SetRateFactor(uint32_t tensor, float factor) {
    tensors_[tensor].next_rate_factor = factor;
  }

  // This worker has no gradient for the version that the tensor now holds: it counts as
  // one, and weighs nothing. What is kept of earlier gradients stays. REQUIRES: the
  // tensor is ready.
  ExchangeOutputs Skip(uint32_t tensor, absl::Duration now);

  // The tensor's weights are to be the newest: of all that this worker has contributed to
  // it and, in mode asp, of all that the servers hold by now. ExchangeReady follows.
  // REQUIRES: the tensor is ready, and not frozen.
  ExchangeOutputs Settle(uint32_t tensor, absl::Duration now);

  // Asks for the averaged weights of a tensor; ExchangeAveraged follows. REQUIRES: the
  // last one asked for has come.
  ExchangeOutputs PullAverage(uint32_t tensor);
  // The same for array number `array` of its optimizer's state.
  ExchangeOutputs PullState(uint32_t tensor, uint32_t array);

  // Sends what lossy encodings have kept, so that nothing is lost when this worker
  // leaves. ExchangeParted follows once the servers hold it, at once when there is
  // nothing. The weights do not change any more. REQUIRES: all tensors are ready; no Push
  // follows.
  ExchangeOutputs Part(absl::Duration now);

  // A message from a shard. Nothing in it is believed unchecked.
  // A payload without an owner is copied where it is used later.
  ExchangeOutputs OnMessage(const MessageHeader& header, Slice payload,
                            absl::Duration now);

  // An ExchangeEncode was run.
  ExchangeOutputs Encoded(EncodeWork& work, absl::Duration now);

  // An ExchangeDecode was run.
  ExchangeOutputs Decoded(const DecodeWork& work, absl::Duration now);

  // Those that were pushed and are not the caller's again.
  std::vector<ByteView> UnfinishedGradients() const;

  // An ExchangeSend that borrowed the gradient is done.
  ExchangeOutputs SendDone(uint32_t block);

  ExchangeOutputs EpochChanged(uint64_t epoch, SeedRole role, absl::Duration now);

  // Mode ssp, all shards take it: so many steps may this worker be ahead of the slowest from
  // its next step on; with more than before, at once. In other modes nothing changes.
  ExchangeOutputs SetStaleness(uint64_t staleness, absl::Duration now);

  // The shard has welcomed this worker on a new connection. Before that, nothing is sent.
  ExchangeOutputs Connected(uint32_t shard, absl::Duration now);
  void Disconnected(uint32_t shard) { shards_[shard].is_connected = false; }

  // The shard is another one from that epoch on: it has what the one before had told of, and
  // nothing else. What that one had acknowledged, and not answered with a view, is sent again
  // to this one; what it still answers, in its earlier epoch, is not the new one's word.
  void Replaced(uint32_t shard, uint64_t epoch);

  // Bytes that may be put on the way to the shard; the last block may have more. Unlimited
  // at first. What is urgent has room of its own, or the same. That may be less: where
  // nothing but urgent blocks wait, there is room for another one (send_window.h).
  void SetRoom(uint32_t shard, size_t bytes, std::optional<size_t> urgent_bytes = {}) {
    shards_[shard].room = bytes;
    shards_[shard].urgent_room = urgent_bytes.value_or(bytes);
  }
  // Sends what there is room for.
  ExchangeOutputs Pump(absl::Duration now);
  // Bytes that the shard has not acknowledged. Within a host this is what is on the way:
  // lent memory comes back only when the step is over.
  size_t unacknowledged_bytes(uint32_t shard) const {
    return shards_[shard].unacknowledged;
  }

  // Bytes of contributions that the shard holds and whose views have not come.
  size_t held_bytes(uint32_t shard) const { return shards_[shard].held_bytes; }
  // Of these, the ones in front of what is sent next, counted as far as `limit`: how far
  // this worker is ahead of the slowest, and of its own views. What lies behind was
  // pushed while backward came to it; the others push it when they have come that far.
  size_t HeldInFront(uint32_t shard, size_t limit) const;
  // Of the longest contribution that was sent to the shard.
  size_t contribution_bytes(uint32_t shard) const {
    return shards_[shard].contribution_bytes;
  }

  // Repeats what was refused, and pumps.
  ExchangeOutputs Tick(absl::Duration now);

  // What the next message of the shard is up to.
  enum class Awaits {
    kNothing,
    kOthers,  // it holds what it needs of this worker
    kShard,   // it owes an answer
  };
  Awaits WhatIsAwaited(uint32_t shard) const;
  // Has a shard that waits for others say that it still knows what it is to send.
  // REQUIRES: WhatIsAwaited(shard) == Awaits::kOthers.
  ExchangeOutputs Probe(uint32_t shard);
  uint32_t shard_of(uint32_t block) const { return blocks_[block].shard; }
  // What its weights hold.
  uint64_t version_of(uint32_t block) const { return blocks_[block].version; }

  // The largest payload that a message with this header may carry.
  size_t MaxPayloadBytes(const MessageHeader& header) const;

  // The lowest of all tensors that are trained: the step this worker computes.
  uint64_t step() const;
  // Of that step, as the servers decided it; 1 without loss scaling.
  float loss_scale() const { return loss_scale_; }
  bool IsReady(uint32_t tensor) const { return tensors_[tensor].ready; }
  // Whether everything pushed is held by the servers: what is missing now is up to
  // others.
  bool AllHeld() const { return unheld_ == 0; }
  uint64_t epoch() const { return epoch_; }
  ExchangeStats stats() const;
  // Which codec was chosen, and why; empty when the job leaves no choice.
  const std::string& codec_choice() const { return encoder_.choice(); }
  // What the worker keeps of a tensor, to be saved and restored between steps; not where
  // kept_status() is not OK afterwards.
  GradientMemory& memory(uint32_t tensor) { return encoder_.memory(tensor); }
  absl::Status kept_status() const { return encoder_.kept_status(); }
  uint32_t blocks() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t tensors() const { return static_cast<uint32_t>(tensors_.size()); }

 private:
  // Seeds come before step 0; a step of their own keeps a late acknowledgement of a seed
  // from passing for one of the first contribution.
  static constexpr uint64_t kSeedStep = ~uint64_t{0};
  // Some 10 ms of work: nothing else is done on this thread meanwhile.
  static constexpr size_t kDigestElements = size_t{1} << 24;
  enum class Phase { kIdle, kQueued, kEncoding, kSent, kHeld };

  struct Block {
    BlockRange range = {};
    uint32_t shard = 0;
    Phase phase = Phase::kIdle;
    // What is under way: kSeedState, kSeed, kPush or kPull.
    MessageKind kind = MessageKind::kPull;
    uint32_t seed_array = 0;  // of a kSeedState
    uint64_t step = 0;        // that is contributed to, or will be next
    uint64_t version = 0;     // what `weights` holds
    uint64_t wanted = 0;      // what has to land for the tensor to be ready
    bool landed = false;      // `version` means something
    bool is_own = true;       // the weights are what the program declared
    uint64_t sent_epoch = 0;
    size_t sent_bytes = 0;
    size_t promised = 0;       // bytes, while it is encoded
    bool is_encoding = false;  // was asked for; also once it is no longer wanted
    bool is_read = false;      // of a seed: what is encoded are the weights
    const DecodeWork* decoding = nullptr;  // under way: the weights are its own
    size_t held_bytes = 0;                 // of a contribution whose view has not come
    float learning_rate = 0;  // of the step that begins with `version`; 0: unknown
    int64_t sent_at_ns = 0;   // for a trace, as those below; 0: none is open
    int64_t held_at_ns = 0;
    int borrowed_sends = 0;  // given out and not yet done
    int attempts = 0;
    bool is_noted = false;     // the shard will send what was asked for
    bool is_asked = false;     // of a quorum: settles, and no answer has come yet
    uint64_t newest_view = 0;  // of a quorum: that was heard of while it parts
    // A view of `wanted` came, and could not be used.
    bool was_useless = false;
    // When to repeat what was refused; infinite: it was not.
    absl::Duration due = absl::InfiniteDuration();
  };
  struct Tensor {
    uint32_t first_block = 0;
    uint32_t blocks = 0;
    bool frozen = false;
    MemoryView weights = {};
    ConstMemoryView gradient = {};
    uint32_t samples = 0;  // of the last gradient
    bool skips = false;    // what is under way has none
    float loss_scale = 1;  // of the gradient
    float rate_factor = 1;
    float next_rate_factor = 1;  // of the next gradient
    bool ready = false;
    bool gave_late = false;    // what it gave last was too late, or it settles
    uint32_t encodings = 0;    // under way
    uint32_t decodings = 0;    // likewise
    bool is_surveyed = false;  // one of them; no block is encoded meanwhile
    // To be taken back once none is under way.
    std::vector<GradientBlock> late = {};
  };
  // A message that waits: a view that came while the caller used the weights, or anything
  // while they are written.
  struct Waiting {
    MessageHeader header = {};
    Slice payload = {};
  };
  struct ShardQueue {
    std::set<uint32_t> queued;  // in block order: front layers first
    size_t room = std::numeric_limits<size_t>::max();
    std::set<uint32_t> encoding = {};
    size_t promised = 0;  // bytes of these, as far as is known
    size_t urgent_room = std::numeric_limits<size_t>::max();
    Front front = {};           // of contributions
    size_t unacknowledged = 0;  // bytes of blocks that are kSent
    std::set<uint32_t> held;    // blocks whose contributions are kHeld
    size_t held_bytes = 0;
    size_t contribution_bytes = 0;
    bool is_connected = false;
    uint64_t first_epoch = 0;  // in which it is where it is
  };

  ExchangeOutputs Contribute(uint32_t tensor, absl::Duration now);
  // For options.phases.
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
  // Sends the first block that can be begun, or asks for its encoding; false: there is
  // none.
  bool BeginNext(uint32_t shard, absl::Duration now, ExchangeOutputs& outputs);
  bool Begin(uint32_t block, absl::Duration now, ExchangeOutputs& outputs);
  void SendBlock(uint32_t block, Payload payload, absl::Duration now,
                 ExchangeOutputs& outputs);
  bool HasRoom(const ShardQueue& queue, uint32_t block) const;
  bool IsUrgent(const Block& block) const;
  void SendPull(uint32_t block, ExchangeOutputs& outputs);
  bool MayHoldView(const Block& block) const;
  MessageKind FirstOfSeed(Block& block) const;
  // Mode ssp: the block's contribution is held.
  void OnHeldAhead(uint32_t id, ExchangeOutputs& outputs);
  void OnSeedAck(uint32_t block, ExchangeOutputs& outputs);
  const SeedState* SeedStateOf(const Block& block) const;  // null: none
  // Of what is under way: a step of its own for each part, so that a late acknowledgement
  // passes for no other.
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
  // The tensor's memory is the exchange's: the newest view that came before lands.
  void LandStashed(uint32_t block);
  // The version that has to land before the block's tensor is ready again.
  uint64_t WantedAfter(const Block& block) const;
  bool IsWelcome(const MessageHeader& header) const;
  // What it waited for has come.
  void Finish(uint32_t block, ExchangeOutputs& outputs);
  void OnNoted(const MessageHeader& header);
  bool IsOfPredecessor(const MessageHeader& header) const;
  void OnRefuse(const MessageHeader& header, absl::Duration now,
                ExchangeOutputs& outputs);
  // ---- Quorum (exchange_quorum.cc) ----
  bool IsOfQuorum(const Block& block) const;
  static bool IsContribution(const Block& block);
  bool IsUnderWay(const Tensor& tensor) const;
  // The highest version of it that is here.
  uint64_t NewestOf(uint32_t block) const;
  ExchangeOutputs ContributeToQuorum(uint32_t tensor, absl::Duration now);
  ExchangeOutputs SettleWithQuorum(uint32_t tensor, absl::Duration now);
  void OnQuorumView(const MessageHeader& header, const Slice& payload, absl::Duration now,
                    ExchangeOutputs& outputs);
  void OnQuorumAck(const MessageHeader& header, ExchangeOutputs& outputs);
  void OnTooLate(const MessageHeader& header, ExchangeOutputs& outputs);
  // What this worker gave to the step is part of it.
  void Counted(uint64_t step, ExchangeOutputs& outputs);
  void GoOn(uint32_t block, ExchangeOutputs& outputs);
  // It is not.
  void BeLate(uint64_t step, ExchangeOutputs& outputs);
  void TakeBack(uint32_t tensor);
  void TakeBackLate(Tensor& tensor);
  void PartAgain(uint32_t block, uint64_t version);
  void CatchUpIfAllGave(ExchangeOutputs& outputs);
  void CatchUpWith(const MessageHeader& header, const Slice& payload, absl::Duration now,
                   ExchangeOutputs& outputs);
  void EndCatchUp(ExchangeOutputs& outputs);
  // False when it could not be used, and is asked for again.
  bool LandNews(const MessageHeader& header, const Slice& payload, absl::Duration now);

  // ---- Decoding (exchange_decode.cc) ----
  std::shared_ptr<DecodeWork> AskLanding(const MessageHeader& header, Slice payload);
  // Likewise, at once and on this thread. REQUIRES: no decoding of the block is under way.
  ViewLanding::Result Land(const MessageHeader& header, const Slice& payload);
  void TakeCost(const DecodeWork& work);
  bool Follows(const MessageHeader& header) const;
  void Landed(const DecodeWork& work, absl::Duration now, ExchangeOutputs& outputs);
  // Its weights are read or written.
  static bool IsInUse(const Block& block) {
    return block.decoding != nullptr || block.is_read;
  }
  Slice Kept(Slice payload);
  void Handle(const MessageHeader& header, Slice payload, absl::Duration now,
              ExchangeOutputs& outputs);
  // What came of the block while its weights were in use.
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
  uint64_t staleness_;  // of mode ssp, as it is now
  bool has_run_ahead_;  // it is, or was, above 0: versions may be left out
  std::vector<Tensor> tensors_;
  std::vector<Block> blocks_;
  std::vector<ShardQueue> shards_;
  std::map<uint32_t, Waiting> stashed_;               // by block
  std::map<uint32_t, std::deque<Waiting>> deferred_;  // likewise
  uint32_t unheld_ = 0;     // blocks that are queued, encoded or sent
  uint32_t encodings_ = 0;  // under way
  uint32_t decodings_ = 0;  // likewise
  CodecCost decoding_cost_;
  CodecWorkspace workspace_ = {.is_of_exchange = true};  // of what lands here
  absl::Status device_status_;                           // of the GPUs where it landed
  bool has_news_ = false;  // a view came since all that was pushed is held
  // Elements whose digest may be made before the next Tick.
  size_t digest_room_ = kDigestElements;
  uint64_t epoch_;
  AveragePull average_;
  std::optional<std::set<uint32_t>> parting_;  // blocks that are not held yet

  // Of a quorum: steps before it are settled; the step that went on without this worker;
  // the highest version that any block is known to have; whether all blocks wait for that one, as they
  // do at the beginning.
  uint64_t counted_until_ = 0;
  std::optional<uint64_t> late_step_;
  uint64_t newest_ = 0;
  bool catches_up_ = false;

  float loss_scale_ = 1;
  uint64_t loss_scale_version_ = 0;
  bool failed_ = false;
  ExchangeStats stats_;
};

}  // namespace syncline
