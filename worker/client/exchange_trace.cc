// The part of exchange.h that records spans while a trace of the job is open
// (comm/base/trace_recorder.h).
#include <algorithm>
#include <utility>

#include "worker/client/exchange.h"

namespace syncline {

TraceSpan Exchange::SpanOf(const Block& block, TraceKind kind) const {
  return {.step = block.step,
          .block = static_cast<uint32_t>(&block - blocks_.data()),
          .rank = static_cast<uint16_t>(options_.rank),
          .kind = kind};
}

// Starts the span of a block that is sent now.
void Exchange::TraceSent(Block& block) const {
  if (!IsTraced()) return;
  block.sent_at_ns = options_.trace->Now();
  block.held_at_ns = 0;
}

void Exchange::TraceAcknowledged(Block& block) const {
  TraceSpan span = SpanOf(block, TraceKind::kPushBlock);
  span.begin_ns = std::exchange(block.sent_at_ns, 0);
  if (!IsTraced()) return;
  span.end_ns = block.held_at_ns = options_.trace->Now();
  options_.trace->Add(span);
}

// Ends the block's wait for this version. Version 0 is not the result of a step.
void Exchange::TraceArrived(Block& block, uint64_t version) const {
  if (version == 0 || !IsTraced()) return;
  const int64_t held_at = std::exchange(block.held_at_ns, 0);
  if (held_at == 0) return;
  TraceSpan wait = SpanOf(block, TraceKind::kAwaitBlock);
  wait.begin_ns = held_at;
  wait.end_ns = std::max(held_at, options_.trace->Now());
  options_.trace->Add(wait);
}

}  // namespace syncline
