// Records what an engine does while a trace of a job is open
// (comm/base/trace_recorder.h).
#include <variant>

#include "comm/transport/message.h"
#include "server/service/engine.h"

namespace syncline {
namespace {

// Returns the span for the input, without times. A contribution that completes the step,
// or a decision, gets a kStep span. Any other contribution gets a kReceive span.
std::optional<TraceSpan> SpanOf(const ShardInput& input, const ShardOutputs& outputs) {
  const ShardApplied* applied = nullptr;
  for (const ShardOutput& output : outputs) {
    if (applied == nullptr) applied = std::get_if<ShardApplied>(&output);
  }
  if (const auto* message = std::get_if<ShardMessage>(&input)) {
    const MessageHeader& header = message->header;
    if (header.kind != static_cast<uint16_t>(MessageKind::kPush)) return std::nullopt;
    return TraceSpan{.step = header.step,
                     .block = header.block,
                     .rank = static_cast<uint16_t>(header.rank),
                     .kind = applied != nullptr ? TraceKind::kStep : TraceKind::kReceive};
  }
  if (applied == nullptr) return std::nullopt;
  return TraceSpan{.step = applied->step, .kind = TraceKind::kStep};
}

}  // namespace

void Engine::Trace(Job& job, const ShardInput& input, const ShardOutputs& outputs,
                   int64_t began) {
  const int64_t now = options_.trace->Now();
  if (auto span = SpanOf(input, outputs)) {
    span->begin_ns = began;
    span->end_ns = now;
    options_.trace->Add(*span);
  }
  job.journal.Began(outputs, now);
  if (const auto* durable = std::get_if<ShardDurable>(&input)) {
    job.journal.Durable(durable->records, *options_.trace);
  }
}

}  // namespace syncline
