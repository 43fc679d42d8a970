// Records spans of what the threads of a worker or a server do, while a trace is open
// (docs/traces.md, docs/adr/0030-traces.md).
//
//   TraceRecorder recorder(clock);
//   TraceTrack* track = recorder.AddTrack("exchange");  // one for each thread
//   recorder.Open(job);
//   if (track->IsOpen(job)) track->Add({.begin_ns = ..., .end_ns = track->Now(), ...});
//   while (auto taken = recorder.Take(1000)) ...        // the thread that reports
//   recorder.Close();
//
// While closed, it costs a thread one load per action. While open, a span costs two clock
// readings and a copy of 32 bytes, without locks and allocations: memory is allocated by
// the first Open and kept. A span without room is dropped and counted; threads never
// wait.
//
// Thread safety: a track belongs to one thread at a time. Call AddTrack before the
// threads begin. Open, Limit, Close and Take: one caller at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "comm/base/env.h"

namespace syncline {

// The first six are those of WorkerPhase, in its order.
enum class TraceKind : uint8_t {
  kCompute,
  kEncode,
  kPush,
  kOthers,
  kPublish,
  kDecode,
  // Spans of a worker and a block.
  kEncodeBlock,
  kPushBlock,   // from its first byte until the server's acknowledgement
  kAwaitBlock,  // from the acknowledgement until the new view arrived
  kDecodeBlock,
  // Spans of a server's engine.
  kReceive,  // takes a contribution in
  kStep,     // makes a step, after the last contribution or a decision
  kHold,     // from the first contribution of a step to its last
  kDecide,   // from the last contribution to the decision
  kSend,     // from the step of the last block until its views were delivered
  kJournal,  // from a block's record until it was on the disk
  // Spans of a whole model of a worker (worker/client/session.h).
  kForward,
  kBackward,
};
inline constexpr std::array<const char*, 18> kTraceKindNames = {
    "compute", "encode",       "push",       "wait for others", "publish",
    "decode",  "encode block", "push block", "wait for block",  "decode block",
    "receive", "step",         "hold",       "decide",          "send views",
    "journal", "forward",      "backward"};

// Returns true for kinds that describe the program itself. Their spans alone do not show
// that a step was made.
constexpr bool DescribesTheProgram(TraceKind kind) {
  return kind <= TraceKind::kDecode || kind >= TraceKind::kForward;
}

struct TraceSpan {
  static constexpr uint32_t kNoBlock = ~uint32_t{0};
  static constexpr uint16_t kNoRank = 0xffff;

  int64_t begin_ns = 0;  // by the recorder's clock
  int64_t end_ns = 0;
  uint64_t step = 0;
  uint32_t block = kNoBlock;
  uint16_t rank = kNoRank;  // rank of the contribution
  TraceKind kind = TraceKind::kCompute;

  bool operator==(const TraceSpan&) const = default;
};

class TraceRecorder;

class TraceTrack {
 public:
  explicit TraceTrack(const TraceRecorder& recorder, std::string name)
      : recorder_(recorder), name_(std::move(name)) {}

  bool IsOpen(uint32_t job) const;
  int64_t Now() const;
  // Drops a span of a step at or after the limit.
  void Add(const TraceSpan& span);

 private:
  friend class TraceRecorder;

  const TraceRecorder& recorder_;
  const std::string name_;
  // A ring: the owner writes at `end_`, the reporting thread reads at `begin_`.
  std::unique_ptr<TraceSpan[]> spans_;  // allocated by the recorder's first Open
  std::atomic<uint64_t> begin_ = 0;
  std::atomic<uint64_t> end_ = 0;
  std::atomic<uint64_t> lost_ = 0;
};

class TraceRecorder {
 public:
  // 2 MiB per thread.
  static constexpr size_t kSpansPerTrack = size_t{1} << 16;

  // `clock` must outlive the recorder.
  explicit TraceRecorder(const Clock& clock) : clock_(clock) {}

  // Adds a track, which lives as long as the recorder.
  TraceTrack* AddTrack(std::string name);

  // Starts recording; discards what was recorded before.
  void Open(uint32_t job);
  // Ignores spans of steps from `until` on.
  void Limit(uint64_t until) { until_.store(until, std::memory_order_relaxed); }
  // Stops recording. Recorded spans can still be taken.
  void Close() { open_.store(0, std::memory_order_relaxed); }

  struct Taken {
    std::string track;
    std::vector<TraceSpan> spans;
  };
  // Returns at most `most` spans of one track; nullopt when nothing is left.
  std::optional<Taken> Take(size_t most);
  // Returns the number of spans dropped since Open.
  uint64_t lost() const;
  int64_t Now() const { return absl::ToInt64Nanoseconds(clock_.Now()); }

 private:
  friend class TraceTrack;

  const Clock& clock_;
  std::vector<std::unique_ptr<TraceTrack>> tracks_;
  std::atomic<uint64_t> open_ = 0;  // job + 1, or 0
  std::atomic<uint64_t> until_ = 0;
};

// Acquire order makes the memory of tracks visible; on x86 it is the same instruction.
inline bool TraceTrack::IsOpen(uint32_t job) const {
  return recorder_.open_.load(std::memory_order_acquire) == uint64_t{job} + 1;
}

inline int64_t TraceTrack::Now() const { return recorder_.Now(); }

}  // namespace syncline
