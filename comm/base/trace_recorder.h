// What the threads of a worker or a server are at, span by span, while a trace is open
// (docs/traces.md, docs/adr/0030-traces.md).
//
//   TraceRecorder recorder(clock);
//   TraceTrack* track = recorder.AddTrack("exchange");  // one for each thread
//   recorder.Open(job);
//   if (track->IsOpen(job)) track->Add({.begin_ns = ..., .end_ns = track->Now(), ...});
//   while (auto taken = recorder.Take(1000)) ...        // the thread that reports
//   recorder.Close();
//
// Closed it costs its threads one load for each thing they do. Open, a span costs two
// readings of the clock and a copy of 32 bytes: no lock and no memory, which is taken with
// the first Open and kept. A span that finds no room is lost and counted; nobody waits.
//
// Thread safety: a track belongs to one thread at a time. AddTrack before the threads
// begin; Open, Limit, Close and Take by one caller at a time.
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
  // Of a worker and a block.
  kEncodeBlock,
  kPushBlock,   // from its first byte until the server acknowledged it
  kAwaitBlock,  // from there until the new view came
  kDecodeBlock,
  // Of a server's engine.
  kReceive,  // a contribution was taken in
  kStep,     // ... and made the step, or a decision did
  kHold,     // of a step: from its first contribution to its last
  kDecide,   // from there until the decision
  kSend,     // from the last block's step until its views were delivered
  kJournal,  // from a block's record until it was on the disk
};
inline constexpr std::array<const char*, 16> kTraceKindNames = {
    "compute",        "encode",       "push",         "wait for others",
    "publish",        "decode",       "encode block", "push block",
    "wait for block", "decode block", "receive",      "step",
    "hold",           "decide",       "send views",   "journal"};

struct TraceSpan {
  static constexpr uint32_t kNoBlock = ~uint32_t{0};
  static constexpr uint16_t kNoRank = 0xffff;

  int64_t begin_ns = 0;  // by the recorder's clock
  int64_t end_ns = 0;
  uint64_t step = 0;
  uint32_t block = kNoBlock;
  uint16_t rank = kNoRank;  // whose contribution it is about
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
  // Dropped where it is of a step behind the window.
  void Add(const TraceSpan& span);

 private:
  friend class TraceRecorder;

  const TraceRecorder& recorder_;
  const std::string name_;
  // A ring: the owner writes at `end_`, the reporting thread reads at `begin_`.
  std::unique_ptr<TraceSpan[]> spans_;  // before the recorder is opened
  std::atomic<uint64_t> begin_ = 0;
  std::atomic<uint64_t> end_ = 0;
  std::atomic<uint64_t> lost_ = 0;
};

class TraceRecorder {
 public:
  // 2 MiB of each thread.
  static constexpr size_t kSpansPerTrack = size_t{1} << 16;

  // The clock outlives it.
  explicit TraceRecorder(const Clock& clock) : clock_(clock) {}

  // Lives as long as the recorder.
  TraceTrack* AddTrack(std::string name);

  // Forgets what was recorded before.
  void Open(uint32_t job);
  // Steps from this one on are of no interest.
  void Limit(uint64_t until) { until_.store(until, std::memory_order_relaxed); }
  // What was recorded stays to be taken.
  void Close() { open_.store(0, std::memory_order_relaxed); }

  struct Taken {
    std::string track;
    std::vector<TraceSpan> spans;
  };
  // At most so many of one track; nothing when nothing is left.
  std::optional<Taken> Take(size_t most);
  // Since Open.
  uint64_t lost() const;
  int64_t Now() const { return absl::ToInt64Nanoseconds(clock_.Now()); }

 private:
  friend class TraceTrack;

  const Clock& clock_;
  std::vector<std::unique_ptr<TraceTrack>> tracks_;
  std::atomic<uint64_t> open_ = 0;  // job + 1, or 0
  std::atomic<uint64_t> until_ = 0;
};

// Acquire, since the memory of tracks comes with it: the same instruction on x86.
inline bool TraceTrack::IsOpen(uint32_t job) const {
  return recorder_.open_.load(std::memory_order_acquire) == uint64_t{job} + 1;
}

inline int64_t TraceTrack::Now() const { return recorder_.Now(); }

}  // namespace syncline
