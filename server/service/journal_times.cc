#include "server/service/journal_times.h"

#include <variant>

#include "server/shard/record.h"

namespace syncline {

void JournalTimes::Count(const ShardOutputs& outputs) {
  for (const ShardOutput& output : outputs) {
    if (std::holds_alternative<ShardRecorded>(output)) ++records_;
  }
}

void JournalTimes::Began(const ShardOutputs& outputs, int64_t now) {
  uint64_t record = records_;
  for (const ShardOutput& output : outputs) {
    if (std::holds_alternative<ShardRecorded>(output)) --record;
  }
  for (const ShardOutput& output : outputs) {
    const auto* recorded = std::get_if<ShardRecorded>(&output);
    if (recorded == nullptr) continue;
    ++record;
    const auto* step = std::get_if<StepRecord>(&recorded->record->what);
    if (step == nullptr || awaited_.size() >= kMaxAwaited) continue;
    awaited_.push_back({record, TraceSpan{.begin_ns = now,
                                          .step = step->step,
                                          .block = step->block,
                                          .kind = TraceKind::kJournal}});
  }
}

void JournalTimes::Durable(uint64_t records, TraceTrack& track) {
  for (; !awaited_.empty() && awaited_.front().record <= records; awaited_.pop_front()) {
    TraceSpan span = awaited_.front().span;
    span.end_ns = track.Now();
    track.Add(span);
  }
}

}  // namespace syncline
