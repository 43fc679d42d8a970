// The decoding part of exchange.h: writes views to the weights, and handles the results.
//
// The weights of a block have one writer at a time. While a view is decoded, messages for
// the block are deferred, and handled afterwards in order. So the result is the same as
// if decoding took no time.
#include <algorithm>
#include <utility>

#include "comm/base/check.h"
#include "worker/client/exchange.h"

namespace syncline {

Slice Exchange::Kept(Slice payload) {
  if (payload.owner != nullptr || payload.size == 0) return payload;
  const Buffer copy = pool_.Allocate(payload.size);
  std::copy_n(payload.data, payload.size, copy.data());
  return Slice::Of(copy);
}

// Keeps a copy of a view until the caller no longer uses the weights. It never keeps the
// lent memory itself, which the server would then lack for as long as the caller
// computes.
void Exchange::Stash(const MessageHeader& header, const Slice& payload) {
  Waiting& stashed = stashed_[header.block];
  if (stashed.header.step >= header.step) return;
  stashed = {.header = header,
             .payload = Kept(Slice::Borrowed({payload.data, payload.size}))};
  stats_.progress_bytes += payload.size;
}

void Exchange::LandStashed(uint32_t id) {
  const auto stashed = stashed_.extract(id);
  if (stashed.empty()) return;
  Block& block = blocks_[id];
  const auto& [header, payload] = stashed.mapped();
  if (Land(header, payload) != ViewLanding::Result::kLanded) return;
  block.version = header.step;
  TakeRates(header, block);
}

std::shared_ptr<DecodeWork> Exchange::AskLanding(const MessageHeader& header,
                                                 Slice payload) {
  Block& block = blocks_[header.block];
  TraceArrived(block, header.step);
  Enter(WorkerPhase::kDecode);
  ViewLanding::Place place = {
      .range = block.range, .weights = WeightsOf(block), .is_own = block.is_own};
  if (block.landed) place.version = block.version;
  // Version v is the result of step v - 1, except in mode asp, where members count their
  // own steps.
  const uint64_t step = options_.mode.is_async() ? block.step : header.step - 1;
  return std::make_shared<DecodeWork>(
      DecodeWork::Options{.job = options_.job,
                          .rank = options_.rank,
                          .step = step,
                          .clock = options_.clock},
      landing_, PublishedView{header, Kept(std::move(payload))}, place);
}

ViewLanding::Result Exchange::Land(const MessageHeader& header, const Slice& payload) {
  Block& block = blocks_[header.block];
  SYNCLINE_CHECK(!IsInUse(block));
  const std::shared_ptr<DecodeWork> work = AskLanding(header, payload);
  work->Run(workspace_);
  TakeCost(*work);
  device_status_.Update(work->status());
  if (work->result() != ViewLanding::Result::kIgnored) block.is_own = false;
  return work->result();
}

void Exchange::TakeCost(const DecodeWork& work) {
  decoding_cost_.values += work.cost().values;
  decoding_cost_.time += work.cost().time;
}

ExchangeOutputs Exchange::Decoded(const DecodeWork& work, absl::Duration now) {
  ExchangeOutputs outputs;
  const uint32_t id = work.header().block;
  Block& block = blocks_[id];
  SYNCLINE_CHECK(block.decoding == &work);
  block.decoding = nullptr;
  --tensors_[block.range.tensor].decodings;
  --decodings_;
  TakeCost(work);
  if (!work.status().ok() && !failed_) Fail(work.status(), outputs);
  if (failed_) return outputs;
  Landed(work, now, outputs);
  HandleDeferred(id, now, outputs);
  ReportIfReady(block.range.tensor, outputs);
  PumpShard(block.shard, now, outputs);
  return outputs;
}

void Exchange::Landed(const DecodeWork& work, absl::Duration now,
                      ExchangeOutputs& outputs) {
  const MessageHeader& header = work.header();
  Block& block = blocks_[header.block];
  if (work.result() == ViewLanding::Result::kIgnored) {
    // This may be the answer to an earlier request, with the right one still under way.
    if (block.phase != Phase::kHeld) return;
    block.was_useless = true;
    block.due = std::min(block.due, now + Backoff(block));
    ++block.attempts;
    return;
  }
  block.is_own = false;
  if (work.result() == ViewLanding::Result::kDiverged) {
    if (block.phase == Phase::kSent) wire_.Lost();  // no acknowledgement is expected now
    ++stats_.diverged_blocks;
    block.landed = false;
    block.was_useless = true;
    Leave(header.block, Phase::kHeld);
    return SendPull(header.block, outputs);
  }
  Have(header, work.payload_bytes(), outputs);
}

void Exchange::Have(const MessageHeader& header, size_t payload_bytes,
                    ExchangeOutputs& outputs) {
  Block& block = blocks_[header.block];
  block.version = header.step;
  block.landed = true;
  stats_.progress_bytes += payload_bytes;
  TakeRates(header, block);
  const bool is_counted = block.kind != MessageKind::kPush || Follows(header);
  if (block.phase == Phase::kIdle || block.version < block.wanted) return;
  if (IsUnheld(block.phase) && !is_counted) return;
  if (block.phase == Phase::kSent) wire_.Lost();  // no acknowledgement is expected now
  Finish(header.block, outputs);
}

// Whether the view includes the block's contribution. A shard can publish a later version
// only if it holds that contribution.
bool Exchange::Follows(const MessageHeader& header) const {
  return !options_.mode.is_async() && header.step > blocks_[header.block].step;
}

// Drops the message if too many are deferred. A view that is needed is requested again.
void Exchange::Defer(const MessageHeader& header, Slice payload) {
  std::deque<Waiting>& waiting = deferred_[header.block];
  if (waiting.size() >= kMaxDeferred) return;
  waiting.push_back({header, Kept(std::move(payload))});
}

void Exchange::HandleDeferred(uint32_t id, absl::Duration now, ExchangeOutputs& outputs) {
  auto deferred = deferred_.find(id);
  while (deferred != deferred_.end() && !failed_ && !IsInUse(blocks_[id])) {
    const Waiting next = std::move(deferred->second.front());
    deferred->second.pop_front();
    if (deferred->second.empty()) deferred_.erase(deferred);
    Handle(next.header, next.payload, now, outputs);
    deferred = deferred_.find(id);
  }
}

}  // namespace syncline
