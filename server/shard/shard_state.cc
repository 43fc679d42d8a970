// The optimizer's state of a block, array by array: what a job begins with where workers
// bring some, and what they ask for.
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

// Before the weights, which make it the job's. A seeder that follows a dead one sends all
// of it again.
void Shard::Impl::OnSeedState(const ShardMessage& message, Block& block) {
  const MessageHeader& header = message.header;
  if (!block.TakesSeed()) return Acknowledge(header, Repeats::kYes);
  const auto view =
      ParseBlock({message.payload.data, message.payload.size},
                 {block.spec().range, 0, header.epoch}, {options_.seed_codec});
  const bool fits =
      view.ok() && header.shard > 0 && stepper_->SeedState(block, header.samples, *view);
  if (!fits) return Refuse(header, RefuseCode::kMalformed);
  block.BeginAfter(header.shard);
  Acknowledge(header, Repeats::kNo);
}

}  // namespace syncline
