// Gives the state of a running shard to a new backup, block by block, among the records
// of what it does. A block's state is taken between two steps, and its records follow
// without a gap. State of the job as a whole comes with the first blocks; their records
// name every decision from there on.
//
// A snapshot is the same for a journal that already has everything. Records of blocks
// whose turn has not come continue. A reader that begins with the snapshot skips those.
#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "comm/base/check.h"
#include "server/shard/shard_impl.h"

namespace syncline {

void Shard::Impl::On(const ShardBackUp& order) {
  if (order.kind != ShardBackUp::Kind::kNext) BeginBackUp(order.kind);
  BackUpNext();
}

void Shard::Impl::BeginBackUp(ShardBackUp::Kind kind) {
  gives_settings_ = kind != ShardBackUp::Kind::kSnapshot;
  if (kind != ShardBackUp::Kind::kBegin) {
    if (keeps_ != Records::kAwaited || !unrecorded_.empty()) return;
    backs_up_.reset();
  } else {
    On(ShardDurable{std::numeric_limits<uint64_t>::max()});
    keeps_ = Records::kAwaited;
    records_ = durable_ = 0;
    for (const auto& [id, block] : blocks_) unrecorded_.insert(id);
  }
  for (const auto& [id, block] : blocks_) unsaved_.insert(id);
  backed_up_ = unsaved_.empty() ? BackedUp::kFirstUnit : BackedUp::kNothing;
}

// Takes frozen tensors last, because only records of trained blocks name decisions.
void Shard::Impl::BackUpNext() {
  if (unsaved_.empty() || backs_up_) return;
  const auto is_trained = [this](uint32_t id) {
    return !stepper_->IsFrozen(block(id).spec().range.tensor);
  };
  const auto next = std::ranges::find_if(unsaved_, is_trained);
  backs_up_ = next == unsaved_.end() ? *unsaved_.begin() : *next;
  BackUpIfDue(UnitOf(block(*backs_up_)));
}

void Shard::Impl::BackUpIfDue(std::span<Block* const> unit) {
  if (unit.front()->spec().block != backs_up_) return;
  // What was added to its sum already cannot be taken out again.
  const bool adds = stepper_->AddsOnArrival();
  const bool is_between = std::ranges::all_of(
      unit, [adds](const Block* one) { return !adds || one->HoldsNothing(); });
  if (!is_between) return;
  const bool is_first = unsaved_.size() == blocks_.size();
  backs_up_.reset();
  // A snapshot's journal has the settings already.
  if (is_first && gives_settings_) {
    for (SettingsRecord& change : stepper_->ChangesOfSettings()) Keep(std::move(change));
  }
  for (const Block* one : unit) BackUp(*one);
  backed_up_ = is_first ? BackedUp::kFirstUnit : BackedUp::kUnit;
}

void Shard::Impl::BackUp(const Block& block) {
  unsaved_.erase(block.spec().block);
  const bool is_snapshot = unrecorded_.erase(block.spec().block) == 0;
  // A block without values begins with the record of its seed.
  if (!block.seeded()) return;
  Keep(BlockStateRecord{.block = block.spec().block,
                        .saved = std::make_shared<const BlockSnapshot>(block.Save()),
                        .factors = UnitOf(block).front() == &block
                                       ? stepper_->FactorsOf(block.spec().range.tensor)
                                       : std::vector<float>()});
  KeepPartings(block);
  // A snapshot repeats only what is safe already.
  if (!is_snapshot) NoteRecorded(block);
}

// The worker that handed them over keeps no copy.
void Shard::Impl::KeepPartings(const Block& block) {
  for (const Contribution& one : block.Partings()) {
    // Take refuses payloads in lent memory.
    SYNCLINE_CHECK(one.payload.head.size == 0);
    Keep(PartingRecord{
        .block = block.spec().block,
        .step = block.version(),
        .part = {.from = one.from, .bytes = static_cast<uint32_t>(one.payload.size())},
        .payload = one.payload.body});
  }
}

// Called once everything that follows from an input is done: only then is the loss scale
// that of the next step.
void Shard::Impl::FinishBackUp() {
  const BackedUp backed_up = std::exchange(backed_up_, BackedUp::kNothing);
  if (backed_up == BackedUp::kNothing) return;
  if (backed_up == BackedUp::kFirstUnit) {
    ShardSnapshot job;
    stepper_->Save(job);
    Keep(JobStateRecord{.memory = std::move(job.job_memory),
                        .loss_scale = job.loss_scale});
  }
  outputs_.push_back(ShardBackedUp{.more = !unsaved_.empty()});
}

}  // namespace syncline
