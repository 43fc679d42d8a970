// The optimizer's state of a block, array by array: what the seeder sends when a job
// begins with state, and what workers ask for.
#include <algorithm>
#include <optional>
#include <utility>

#include "server/shard/shard_impl.h"

namespace syncline {

void Shard::Impl::OnPullState(const MessageHeader& header, const Block& block) {
  std::optional<Payload> state = stepper_->EncodeState(block, header.samples, epoch_);
  if (!state) return Refuse(header, RefuseCode::kNoAverage);
  MessageHeader reply = header;
  reply.kind = static_cast<uint16_t>(MessageKind::kState);
  reply.step = block.version();
  reply.shard = static_cast<uint32_t>(block.updates());
  reply.flags = 0;
  outputs_.push_back(
      ShardReply{header.rank, header.incarnation, reply, *std::move(state)});
}

// State must come before the weights, which make it the job's. The arrays of two seeders
// never mix: each sends all of them from the first one on, and only one seeds at a time.
void Shard::Impl::OnSeedState(const ShardMessage& message, Block& block) {
  const MessageHeader& header = message.header;
  if (!block.TakesSeed()) return Acknowledge(header, Repeats::kYes);
  const auto view = ParseBlock(message.payload, {block.spec().range, 0, header.epoch},
                               {options_.seed_codec});
  const bool fits =
      view.ok() && header.shard > 0 && header.samples < block.memory().state.size();
  if (!fits) return Refuse(header, RefuseCode::kMalformed);
  const Block::BegunState* own = BegunBy(header, block);
  // Another seeder that is still a member goes first. What a dead one sent is discarded.
  const bool waits = own == nullptr && block.begun_state() &&
                     FindMember(block.begun_state()->from) != nullptr;
  const uint32_t arrays = own == nullptr ? 0 : own->arrays;
  if (waits || header.samples > arrays) return Refuse(header, RefuseCode::kNotSeeded);
  if (own != nullptr && own->updates != header.shard) {
    return Refuse(header, RefuseCode::kMalformed);
  }
  stepper_->SeedState(block, header.samples, *view);
  block.SetBegunState({.from = {header.rank, header.incarnation},
                       .updates = header.shard,
                       .arrays = std::max(arrays, header.samples + 1)});
  Acknowledge(header, Repeats::kNo);
}

const Block::BegunState* Shard::Impl::BegunBy(const MessageHeader& header,
                                              const Block& block) {
  const auto& begun = block.begun_state();
  const bool is_own = begun && begun->from == WorkerId(header.rank, header.incarnation);
  return is_own ? &*begun : nullptr;
}

RefuseCode Shard::Impl::BeginState(const MessageHeader& header, Block& block) {
  if (header.samples == 0) {
    block.BeginWithoutState();
    return RefuseCode::kNone;
  }
  const Block::BegunState* own = BegunBy(header, block);
  if (own == nullptr) return RefuseCode::kNotSeeded;
  const bool is_whole =
      own->updates == header.samples && own->arrays == block.memory().state.size();
  if (!is_whole) return RefuseCode::kMalformed;
  block.BeginAfter(header.samples);
  return RefuseCode::kNone;
}

}  // namespace syncline
