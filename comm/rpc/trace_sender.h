// A member's side of a trace: takes the coordinator's orders, and says with its heartbeats
// what its threads have recorded since (docs/adr/0030-traces.md).
//
//   TraceSender sender(recorder);
//   if (auto answer = sender.Take(order, first_step)) link.Send(*std::move(answer));
//   ...
//   for (auto& part : sender.Parts({.reached = step}, link)) link.Send(std::move(part));
//
// What is on its way to the coordinator at once is bounded: behind it wait messages that
// steps need.
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

  // The recorder outlives it.
  explicit TraceSender(TraceRecorder& recorder) : recorder_(recorder) {}

  // `first_step`: the first that this member would record from its beginning. The answer
  // to the first order of a trace.
  std::optional<v1::MemberMessage> Take(const v1::TraceOrder& order, uint64_t first_step)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // What was recorded, or some of it. `reached`: all steps before it are over here; what
  // belongs to the last of them may still be recorded until the next call. The last part
  // says that it is the last.
  std::vector<v1::MemberMessage> Parts(uint64_t reached, const ControlLink* link)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The job whose steps are recorded, or were and are still to be sent.
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
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;  // at the last call
};

// Spans as bytes on the wire, and back: a third of their size in memory.
std::string PackSpans(std::span<const TraceSpan> spans);
// InvalidArgument for what PackSpans would not give: columns of different lengths, kinds
// that are none.
absl::StatusOr<std::vector<TraceSpan>> UnpackSpans(const std::string& packed);

}  // namespace syncline
