// Measures how long records of a shard take until they are on the disk, for traces. The
// journal reports only numbers of records, so all records are counted, even while no
// trace is open.
//
// Thread safety: none; the engine's thread owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "comm/base/trace_recorder.h"
#include "server/shard/shard.h"

namespace syncline {

class JournalTimes {
 public:
  // Counts the records among the outputs of a shard.
  void Count(const ShardOutputs& outputs);
  // Begins to measure the step records of the outputs that were last passed to Count.
  void Began(const ShardOutputs& outputs, int64_t now);
  // Ends the measurement of the first `records` records, which are on the disk. Adds them
  // to the track.
  void Durable(uint64_t records, TraceTrack& track);

 private:
  // Further records are not measured. If the journal falls behind, the first ones show
  // that.
  static constexpr size_t kMaxAwaited = 4096;

  struct Awaited {
    uint64_t record;  // numbered from 1
    TraceSpan span;
  };
  uint64_t records_ = 0;
  std::deque<Awaited> awaited_;
};

}  // namespace syncline
