// When a block steps, what it does then, and what workers are told.
#include <algorithm>
#include <bit>
#include <utility>

#include "comm/codec/view_digest.h"
#include "comm/transport/message.h"
#include "server/shard/shard_impl.h"

namespace syncline {

size_t Shard::Impl::ExpectedContributions(uint64_t step) const {
  if (step >= last_first_step_) return members_.size();
  return std::ranges::count_if(
      members_, [&](const auto& entry) { return entry.second.first_step <= step; });
}

std::span<Block* const> Shard::Impl::UnitOf(const Block& block) const {
  const std::vector<Block*>& all = tensors_.at(block.spec().range.tensor);
  if (stepper_->StepsWhole(block.spec().range.tensor)) return all;
  return {&*std::ranges::find(all, &block), 1};
}

// A step in which no present member takes part is also over: its contributors were
// dropped before it was complete, and members that joined begin later. Such a step passes
// without a change.
bool Shard::Impl::IsComplete(const Block& block) const {
  const bool moves = !members_.empty() || block.version() < passes_until_;
  return moves && block.seeded() && !block.frozen() && block.version() < hold_from_ &&
         IsSafe(block) && policy_->StepsNow(FactsOf(block)) &&
         !stepper_->IsFrozen(block.spec().range.tensor);
}

void Shard::Impl::StepIfComplete(Block& block) {
  const std::span<Block* const> unit = UnitOf(block);
  while (
      std::ranges::all_of(unit, [this](const Block* one) { return IsComplete(*one); })) {
    const uint64_t step = block.version();
    for (Block* one : unit) one->SetWeights();
    if (!stepper_->Updates(step)) {
      for (Block* one : unit) Accumulate(*one);
    } else if (stepper_->NeedsDecision(step)) {
      for (Block* one : unit) SendFigures(*one);
      if (early_ && early_->step == step && HasAllOf(step)) {
        Decide(*std::exchange(early_, std::nullopt));
      }
    } else {
      Step(unit, {.step = step});
    }
  }
}

void Shard::Impl::StepOnArrival(const MessageHeader& header, Block& block) {
  const WorkerId worker = {header.rank, header.incarnation};
  block.SetWeights();
  const auto view = Arrive(worker, {header.step, block.AgeFor(worker)}, block);
  Publish(block, worker, view ? *view : Encode(block));
}

std::optional<Payload> Shard::Impl::Arrive(WorkerId worker,
                                           const ShardApplied::Arrival& arrival,
                                           Block& block) {
  const bool skips = block.samples() == 0;
  Block* const unit[] = {&block};
  BeginRecords(unit, {.step = block.version()},
               skips ? StepRecord::Payload::kNone : StepRecord::Payload::kGradient);
  if (!begun_.empty()) begun_.front().record.arrival = arrival;
  std::optional<Payload> view;
  if (!skips) view = stepper_->UpdateOnArrival(block, worker, arrival, epoch_);
  EndRecord(block);
  outputs_.push_back(ShardApplied{.block = block.spec().block,
                                  .step = block.version(),
                                  .contributors = block.Contributors(),
                                  .skipped = skips,
                                  .arrival = arrival});
  block.Advance(skips ? Block::Outcome::kUnchanged : Block::Outcome::kUpdated);
  ++completed_;
  block.SetGiven(worker, arrival.step);
  return view;
}

void Shard::Impl::SendFigures(Block& block) {
  outputs_.push_back(ShardFigures{.block = block.spec().block,
                                  .step = block.version(),
                                  .figures = stepper_->Figures(block)});
  block.Freeze();
}

bool Shard::Impl::HasAllOf(uint64_t step) const {
  return std::ranges::all_of(blocks_, [&](const auto& entry) {
    const Block& block = entry.second;
    return block.version() > step || (block.version() == step && block.frozen()) ||
           stepper_->IsFrozen(block.spec().range.tensor);
  });
}

// Keeps a decision that came before its blocks have reported. It is one that the
// coordinator repeats to a shard that has lost its last step.
void Shard::Impl::On(const ShardDecision& decision) {
  early_.reset();
  if (!HasAllOf(decision.step)) {
    early_ = decision;
    return;
  }
  Decide(decision);
}

void Shard::Impl::Decide(const ShardDecision& decision) {
  std::vector<Block*> waiting;
  for (auto& [id, block] : blocks_) {
    if (block.frozen() && block.version() == decision.step) waiting.push_back(&block);
  }
  if (waiting.empty()) return;
  if (replayed_decision_ == decision.step) {
    stepper_->SetContributionScale(replayed_scale_);
  } else {
    stepper_->Prepare(decision, *waiting.front());
  }
  for (Block* block : waiting) {
    if (block->frozen() && block->version() == decision.step) {
      Step(UnitOf(*block), decision);
    }
  }
  stepper_->Finish();
  for (Block* block : waiting) StepIfComplete(*block);
}

void Shard::Impl::Accumulate(Block& block) {
  auto contributors = block.Contributors();
  const bool skips = contributors.empty();
  outputs_.push_back(
      ShardApplied{block.spec().block, block.version(), std::move(contributors), skips});
  Block* const unit[] = {&block};
  BeginRecords(unit, {.step = block.version()}, StepRecord::Payload::kSum);
  stepper_->Accumulate(block);
  EndRecord(block);
  block.Advance(Block::Outcome::kAccumulated);
  ++completed_;
  CopyIfDue(block);
  PublishToAll(block, std::nullopt);
  BackUpIfDue(UnitOf(block));
}

void Shard::Impl::Step(std::span<Block* const> unit, const ShardDecision& decision) {
  const bool is_skipped = decision.verdict == ShardDecision::Verdict::kSkip &&
                          !stepper_->IsMean(unit.front()->spec().range.tensor);
  const bool skips = is_skipped || std::ranges::any_of(unit, [](const Block* block) {
                       return block->samples() == 0;
                     });
  const bool keeps_weights =
      skips || stepper_->KindAt(decision.step) == ContributionKind::kHessian;
  BeginRecords(unit, decision,
               skips ? StepRecord::Payload::kNone : StepRecord::Payload::kGradient);
  std::vector<Payload> views;
  if (!skips) views = stepper_->Update(unit, decision, epoch_);
  for (size_t i = 0; i < unit.size(); ++i) {
    Block& block = *unit[i];
    EndRecord(block);
    outputs_.push_back(
        ShardApplied{block.spec().block, block.version(), block.Contributors(), skips});
    block.Advance(keeps_weights ? Block::Outcome::kUnchanged : Block::Outcome::kUpdated);
    ++completed_;
    // A delta may bring the view nearer to weights that stay as they are.
    const bool is_news = !skips && !(keeps_weights && block.memory().view.empty());
    PublishToAll(block, is_news ? std::optional(views[i]) : std::nullopt);
  }
  for (const Block* block : unit) CopyIfDue(*block);
  BackUpIfDue(unit);
}

// ---- Replies ----

void Shard::Impl::Reply(MessageHeader header, MessageKind kind, Payload payload) {
  header.kind = static_cast<uint16_t>(kind);
  header.epoch = epoch_;
  header.shard = options_.shard;
  header.flags = 0;
  header.samples = 0;
  outputs_.push_back(
      ShardReply{header.rank, header.incarnation, header, std::move(payload)});
}

void Shard::Impl::Refuse(const MessageHeader& header, RefuseCode code) {
  MessageHeader reply = header;
  reply.code = static_cast<uint16_t>(code);
  Reply(reply, MessageKind::kRefuse, {});
}

void Shard::Impl::Acknowledge(const MessageHeader& header, Repeats repeats) {
  MessageHeader reply = header;
  reply.code = 0;
  Reply(reply, MessageKind::kAck, {});
  std::get<ShardReply>(outputs_.back()).repeats = repeats == Repeats::kYes;
}

void Shard::Impl::Promise(const MessageHeader& header, Repeats repeats) {
  // The message arrived and need not be sent again while its record takes time.
  if (!IsSafe(blocks_.at(header.block))) Reply(header, MessageKind::kNoted, {});
  Acknowledge(header, repeats);
  std::get<ShardReply>(outputs_.back()).is_promise = true;
}

void Shard::Impl::PublishToAll(Block& block, const std::optional<Payload>& view) {
  const uint64_t step = block.version() - 1;
  // A member that once ran ahead may lack the version before.
  const bool all_hold_it = most_taken_ == 0 && !mode_.has_quorum();
  const std::map<WorkerId, Wish> wishes = block.TakeFulfilled();
  // Members that took part hold the version before, to which a delta is added.
  std::optional<Payload> whole = block.memory().view.empty() ? view : std::nullopt;
  for (const auto& [rank, member] : members_) {
    const WorkerId worker = {rank, member.incarnation};
    const bool took_part = member.first_step <= step;
    if (took_part && view) {
      Publish(block, worker, *view);
    } else if (took_part && all_hold_it) {
      PublishWithout(block, worker, kFlagUnchanged);
    } else if (took_part || wishes.contains(worker)) {
      // A member that took part may lack the version before: this one may have replaced
      // it in the queue.
      if (!whole) whole = Encode(block);
      Publish(block, worker, *whole);
    }
  }
}

void Shard::Impl::PublishAsWished(Block& block, const std::map<WorkerId, Wish>& wishes) {
  if (wishes.empty()) return;
  const Payload view = Encode(block);
  const bool is_held = std::ranges::any_of(
      wishes, [](const auto& wish) { return wish.second.held.has_value(); });
  const uint64_t digest = is_held ? ViewDigest(view, block.spec().range.elements) : 0;
  for (const auto& [worker, wish] : wishes) {
    if (wish.held == digest) {
      PublishWithout(block, worker, kFlagHeld);
    } else {
      Publish(block, worker, view);
    }
  }
}

void Shard::Impl::PublishWithout(Block& block, WorkerId to, uint16_t flag) {
  Publish(block, to, {});
  std::get<ShardReply>(outputs_.back()).header.flags |= flag;
}

void Shard::Impl::Publish(Block& block, WorkerId to, const Payload& view) {
  if (mode_.is_async()) {
    block.SetShown(
        to, mode_.compensation > 0 ? Block::Keep::kWeights : Block::Keep::kVersion);
  }
  MessageHeader header;
  header.job = options_.job;
  header.rank = to.first;
  header.incarnation = to.second;
  header.session_key = members_.at(to.first).session_key;
  header.block = block.spec().block;
  header.step = block.version();
  Reply(header, MessageKind::kPublish, view);
  MessageHeader& published = std::get<ShardReply>(outputs_.back()).header;
  const auto counted = counted_.find(to);
  const bool is_counted =
      counted != counted_.end() && counted->second + 1 == block.version();
  if (is_counted) published.flags |= kFlagCounted;
  published.samples = std::bit_cast<uint32_t>(stepper_->loss_scale());
  published.shard = std::bit_cast<uint32_t>(stepper_->learning_rate(block.version()));
}

}  // namespace syncline
