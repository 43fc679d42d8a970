// A member's side of a trace: takes the coordinator's orders, and sends the recorded
// spans with its heartbeats (docs/adr/0030-traces.md).
//
//   TraceSender sender(recorder);
//   if (auto answer = sender.Take(order, first_step)) link.Send(*std::move(answer));
//   ...
//   for (auto& part : sender.Parts({.reached = step}, link)) link.Send(std::move(part));
//
// The amount of trace data in flight is bounded, since messages that steps need queue
// behind it.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/trace_recorder.h"
#include "comm/rpc/control_link.h"
#include "proto/coordinator.pb.h"

namespace syncline {

class TraceSender {
 public:
  static constexpr uint64_t kNoStepComes = std::numeric_limits<uint64_t>::max();

  // `recorder` must outlive this object.
  explicit TraceSender(TraceRecorder& recorder) : recorder_(recorder) {}

  // Handles an order. Returns the answer to the first order of a trace. `first_step`: the
  // first step that this member can record completely.
  std::optional<v1::MemberMessage> Take(const v1::TraceOrder& order, uint64_t first_step)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns recorded spans, or a part of them. `reached`: all steps before it are
  // finished on this member; spans of the last one may still be recorded until the next
  // call. The last part is marked.
  std::vector<v1::MemberMessage> Parts(uint64_t reached, const ControlLink* link)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the job that is being recorded, or whose spans are still to be sent.
  std::optional<uint32_t> job() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  v1::MemberMessage NewPart() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  TraceRecorder& recorder_;

  mutable absl::Mutex mutex_;
  uint64_t trace_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_under_way_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t job_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t until_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: not known yet
  int64_t ends_at_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;  // it was over at the last call
};

// Convert between spans and bytes for the wire, a third of their size in memory.
std::string PackSpans(std::span<const TraceSpan> spans);
// Fails with InvalidArgument for bytes that PackSpans cannot produce: columns of
// different lengths, unknown kinds.
absl::StatusOr<std::vector<TraceSpan>> UnpackSpans(const std::string& packed);

}  // namespace syncline
