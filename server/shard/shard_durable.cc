// No worker learns of a version before its records are durable. A server that dies then
// comes back, from its records, with everything that anyone knows of; until then workers
// keep what they have pushed. A block makes its next step only after that, so no block is
// ever more than one step ahead of its records.
#include <algorithm>
#include <limits>
#include <utility>

#include "server/shard/shard_impl.h"

namespace syncline {
namespace {

// All records count as durable, because nobody keeps them.
constexpr uint64_t kForgotten = std::numeric_limits<uint64_t>::max();

}  // namespace

// Returns how many records must be durable before the output may leave. 0: it reveals
// nothing that could be lost.
uint64_t Shard::Impl::RecordsBefore(const ShardOutput& output) const {
  const auto of_block = [this](uint32_t block) {
    const auto unsafe = unsafe_.find(block);
    return unsafe == unsafe_.end() ? 0 : unsafe->second;
  };
  if (const auto* reply = std::get_if<ShardReply>(&output)) {
    switch (static_cast<MessageKind>(reply->header.kind)) {
      case MessageKind::kPublish:
      case MessageKind::kAverage:
      case MessageKind::kState:
        return of_block(reply->header.block);
      default:
        return reply->is_promise ? of_block(reply->header.block) : 0;
    }
  }
  if (const auto* copied = std::get_if<ShardCopied>(&output)) {
    return of_block(copied->block);
  }
  const bool is_of_all =
      std::holds_alternative<ShardCutDone>(output) ||
      std::holds_alternative<ShardBackedUp>(output) ||
      std::holds_alternative<ShardCommitted>(output);  // also of new settings
  return is_of_all ? records_ : 0;
}

void Shard::Impl::Withhold() {
  const size_t released = std::exchange(released_, 0);
  if (keeps_ != Records::kAwaited) return;
  // Blocks that step together are repeated together or not at all, so all need all
  // records.
  for (const uint32_t block : recorded_) unsafe_[block] = records_;
  recorded_.clear();
  size_t kept = released;
  for (size_t i = released; i < outputs_.size(); ++i) {
    const uint64_t records = RecordsBefore(outputs_[i]);
    if (records > durable_) {
      withheld_.push_back({records, std::move(outputs_[i])});
    } else {
      if (kept != i) outputs_[kept] = std::move(outputs_[i]);
      ++kept;
    }
  }
  outputs_.erase(outputs_.begin() + static_cast<std::ptrdiff_t>(kept), outputs_.end());
}

void Shard::Impl::On(const ShardDurable& durable) {
  durable_ = std::max(durable_, durable.records);
  std::vector<uint32_t> safe;
  std::erase_if(unsafe_, [&](const auto& entry) {
    if (entry.second > durable_) return false;
    safe.push_back(entry.first);
    return true;
  });
  std::deque<Withheld> later;
  for (Withheld& one : withheld_) {
    if (one.records > durable_) {
      later.push_back(std::move(one));
    } else {
      outputs_.push_back(std::move(one.output));
    }
  }
  withheld_ = std::move(later);
  released_ = outputs_.size();
  if (durable_ == kForgotten) {
    keeps_ = Records::kNone;
    unsaved_.clear();
    unrecorded_.clear();
    backs_up_.reset();
  }
  for (const uint32_t block : safe) StepIfComplete(blocks_.at(block));
}

}  // namespace syncline
