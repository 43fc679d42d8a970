// The part of exchange.h for jobs whose steps are closed by a quorum
// (docs/adr/0026-a-quorum.md). It finds out whether this worker's contributions count. If
// they do not, it brings the worker to the step that the other workers have reached.
//
// A contribution is part of a step with all its blocks or with none. So an answer for one
// block (a view with the flag, or a refusal) holds for all blocks. If a view of a later
// version arrives before this worker has pushed all of a step, the step was closed
// without it.
//
// A worker that is late puts the contribution back into error feedback, if the codec has
// any. It lets its caller finish the step, and then continues where the servers are. All
// blocks then hold one version, the newest that any of them has seen. The servers send
// views of that version without a request.
#include <algorithm>
#include <utility>

#include "worker/client/exchange.h"

namespace syncline {

bool Exchange::IsOfQuorum(const Block& block) const {
  return options_.mode.has_quorum() && !tensors_[block.range.tensor].frozen;
}

bool Exchange::IsContribution(const Block& block) {
  return block.kind == MessageKind::kPush && block.phase != Phase::kIdle;
}

uint64_t Exchange::NewestOf(uint32_t id) const {
  const Block& block = blocks_[id];
  const auto stashed = stashed_.find(id);
  const uint64_t waiting = stashed == stashed_.end() ? 0 : stashed->second.header.step;
  return std::max(waiting, block.landed ? block.version : 0);
}

// ---- Views and answers ----

void Exchange::OnQuorumView(const MessageHeader& header, const Slice& payload,
                            absl::Duration now, ExchangeOutputs& outputs) {
  Block& block = blocks_[header.block];
  newest_ = std::max(newest_, header.step);
  if (parting_) return PartAgain(header.block, header.step);
  if (catches_up_) return CatchUpWith(header, payload, now, outputs);
  const bool follows = IsContribution(block) && header.step > block.step;
  const bool is_next = follows && header.step == block.step + 1;
  const bool counts = follows && (block.step < counted_until_ ||
                                  (is_next && (header.flags & kFlagCounted) != 0));
  if (counts && !tensors_[block.range.tensor].ready) {
    const uint64_t step = block.step;
    stashed_.erase(header.block);
    if (!LandNews(header, payload, now)) return;
    if (block.phase == Phase::kSent) wire_.Lost();  // no acknowledgement is expected now
    Finish(header.block, outputs);
    if (step >= counted_until_) Counted(step, outputs);
    return;
  }
  if (header.step > block.version) Stash(header, payload);
  if (header.step >= block.wanted) block.is_asked = false;
  if (!follows) return;
  if (is_next) return BeLate(block.step, outputs);
  // The view that says whether the contribution counts was skipped. Send the contribution
  // again: the shard's answer says the same.
  if (block.phase == Phase::kHeld) Enqueue(header.block, MessageKind::kPush);
}

// The flag says whether the contribution is counted or only held. If it is only held, but
// a later view has arrived, the shard has decided since then. Send the contribution again
// to get the answer.
void Exchange::OnQuorumAck(const MessageHeader& header, ExchangeOutputs& outputs) {
  const Block& block = blocks_[header.block];
  if (block.step < counted_until_ || (header.flags & kFlagCounted) != 0) {
    return Counted(block.step, outputs);
  }
  if (NewestOf(header.block) > block.step) Enqueue(header.block, MessageKind::kPush);
}

void Exchange::Counted(uint64_t step, ExchangeOutputs& outputs) {
  counted_until_ = std::max(counted_until_, step + 1);
  for (uint32_t id = 0; id < blocks_.size(); ++id) {
    const Block& block = blocks_[id];
    if (!IsOfQuorum(block) || !IsContribution(block) || block.step != step) continue;
    if (block.phase == Phase::kSent) wire_.Lost();  // no acknowledgement is expected now
    Leave(id, Phase::kHeld);
    blocks_[id].is_noted = true;
    if (NewestOf(id) > step) GoOn(id, outputs);
  }
}

// The block's contribution counts, and the stashed view includes it.
void Exchange::GoOn(uint32_t id, ExchangeOutputs& outputs) {
  LandStashed(id);
  Finish(id, outputs);
}

// ---- Late contributions ----

void Exchange::OnTooLate(const MessageHeader& header, ExchangeOutputs& outputs) {
  Block& block = blocks_[header.block];
  if (!IsContribution(block) || header.step != block.step) return;
  if (!parting_) return BeLate(block.step, outputs);
  // Error feedback of a worker that leaves may go to any step, so try a later one.
  block.kind = MessageKind::kPull;
  Leave(header.block, Phase::kHeld);
  block.wanted = block.step + 1;
  PartAgain(header.block, NewestOf(header.block));
  if (block.phase == Phase::kHeld) SendPull(header.block, outputs);
}

void Exchange::PartAgain(uint32_t id, uint64_t version) {
  Block& block = blocks_[id];
  block.newest_view = std::max(block.newest_view, version);
  const uint64_t newest = block.newest_view;
  if (!parting_->contains(id) || block.kind != MessageKind::kPull) return;
  if (block.phase != Phase::kHeld || newest <= block.step) return;
  block.step = newest;
  block.attempts = 0;
  Enqueue(id, MessageKind::kPush);
}

void Exchange::BeLate(uint64_t step, ExchangeOutputs& outputs) {
  if (late_step_ == step || step < counted_until_ || catches_up_) return;
  late_step_ = step;
  newest_ = std::max(newest_, step + 1);  // the view of this version is on its way
  ++stats_.late_steps;
  outputs.push_back(ExchangeLate{step});
  for (uint32_t id = 0; id < tensors_.size(); ++id) {
    const Tensor& tensor = tensors_[id];
    if (tensor.frozen || tensor.ready || tensor.blocks == 0) continue;
    const Block& first = blocks_[tensor.first_block];
    if (first.step == step && IsUnderWay(tensor)) TakeBack(id);
  }
  CatchUpIfAllGave(outputs);
}

// Whether any block of the tensor has a contribution under way. Some blocks may be
// finished before others.
bool Exchange::IsUnderWay(const Tensor& tensor) const {
  const auto begin = blocks_.begin() + tensor.first_block;
  return std::any_of(begin, begin + tensor.blocks,
                     [](const Block& block) { return IsContribution(block); });
}

// Takes back the tensor's contribution, which does not count for the step.
void Exchange::TakeBack(uint32_t id) {
  Tensor& tensor = tensors_[id];
  tensor.ready = false;
  tensor.gave_late = true;
  for (uint32_t b = tensor.first_block; b < tensor.first_block + tensor.blocks; ++b) {
    Block& block = blocks_[b];
    if (!tensor.skips) tensor.late.push_back(ContributionOf(block));
    if (block.phase == Phase::kSent) wire_.Lost();
    block.kind = MessageKind::kPull;
    Leave(b, Phase::kHeld);
    block.attempts = 0;
    block.is_noted = true;  // the shard sends later versions without a request
  }
  if (tensor.encodings == 0) TakeBackLate(tensor);
}

void Exchange::TakeBackLate(Tensor& tensor) {
  const auto late = std::exchange(tensor.late, {});
  for (const GradientBlock& contribution : late) encoder_.EncodeUnsent(contribution);
  for (const GradientBlock& contribution : late) {
    encoder_.TakeBack(contribution);
    encoder_.Forget(contribution.block);
  }
}

ExchangeOutputs Exchange::ContributeToQuorum(uint32_t id, absl::Duration now) {
  ExchangeOutputs outputs;
  Tensor& tensor = tensors_[id];
  tensor.ready = false;
  if (tensor.blocks > 0) {
    const uint64_t step = blocks_[tensor.first_block].step;
    // The step was closed without this worker.
    if (newest_ > step) BeLate(step, outputs);
    if (late_step_ == step) {
      TakeBack(id);
      CatchUpIfAllGave(outputs);
      return outputs;
    }
  }
  for (uint32_t b = tensor.first_block; b < tensor.first_block + tensor.blocks; ++b) {
    blocks_[b].wanted = blocks_[b].step + 1;
    Enqueue(b, MessageKind::kPush);
  }
  PumpAll(now, outputs);
  ReportIfReady(id, outputs);  // a tensor without elements has no block to wait for
  return outputs;
}

// ---- Catching up ----

void Exchange::CatchUpIfAllGave(ExchangeOutputs& outputs) {
  const bool all_gave = std::ranges::all_of(tensors_, [](const Tensor& tensor) {
    return tensor.frozen || tensor.blocks == 0 || tensor.gave_late;
  });
  if (!all_gave) return;
  catches_up_ = true;
  for (uint32_t id = 0; id < blocks_.size(); ++id) {
    Block& block = blocks_[id];
    if (!IsOfQuorum(block)) continue;
    LandStashed(id);
    block.wanted = std::max(block.wanted, newest_);
    if (block.version < newest_) SendPull(id, outputs);
  }
  EndCatchUp(outputs);
}

void Exchange::CatchUpWith(const MessageHeader& header, const Slice& payload,
                           absl::Duration now, ExchangeOutputs& outputs) {
  Block& block = blocks_[header.block];
  const bool is_news = !block.landed || header.step > block.version;
  if (is_news && !LandNews(header, payload, now)) return;
  if (header.step >= block.wanted) block.is_asked = false;
  EndCatchUp(outputs);
}

bool Exchange::LandNews(const MessageHeader& header, const Slice& payload,
                        absl::Duration now) {
  Block& block = blocks_[header.block];
  if (Land(header, payload) != ViewLanding::Result::kLanded) {
    block.was_useless = true;
    block.due = std::min(block.due, now + Backoff(block));
    ++block.attempts;
    return false;
  }
  block.version = header.step;
  block.landed = true;
  stats_.progress_bytes += payload.size;
  TakeRates(header, block);
  return true;
}

// Ends catching up once all blocks hold the newest version that any of them has seen.
void Exchange::EndCatchUp(ExchangeOutputs& outputs) {
  for (const Block& block : blocks_) {
    if (!IsOfQuorum(block)) continue;
    if (!block.landed || block.is_asked || block.version < newest_) return;
  }
  catches_up_ = false;
  late_step_.reset();
  counted_until_ = newest_;
  for (uint32_t id = 0; id < blocks_.size(); ++id) {
    Block& block = blocks_[id];
    if (!IsOfQuorum(block)) continue;
    Leave(id, Phase::kIdle);
    block.kind = MessageKind::kPull;
    block.step = newest_;
    block.attempts = 0;
    block.was_useless = false;
  }
  for (uint32_t id = 0; id < tensors_.size(); ++id) {
    tensors_[id].gave_late = false;
    if (!tensors_[id].frozen) ReportIfReady(id, outputs);
  }
}

ExchangeOutputs Exchange::SettleWithQuorum(uint32_t id, absl::Duration now) {
  ExchangeOutputs outputs;
  Tensor& tensor = tensors_[id];
  tensor.ready = false;
  tensor.gave_late = true;
  for (uint32_t b = tensor.first_block; b < tensor.first_block + tensor.blocks; ++b) {
    Block& block = blocks_[b];
    LandStashed(b);
    block.wanted = block.version;
    block.was_useless = true;  // asks for a view even if there is no newer version
    block.is_asked = true;
    SendPull(b, outputs);
  }
  CatchUpIfAllGave(outputs);
  PumpAll(now, outputs);
  ReportIfReady(id, outputs);
  return outputs;
}

}  // namespace syncline
