// How long records of a shard take until they are on the disk, for traces: which record an
// answer of the journal is about follows from their numbers, so all of them are counted.
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
  // What the shard gave out.
  void Count(const ShardOutputs& outputs);
  // The same of the last Count, with its time: these are waited for.
  void Began(const ShardOutputs& outputs, int64_t now);
  // So many records are on the disk.
  void Durable(uint64_t records, TraceTrack& track);

 private:
  // A journal that falls behind shows in the first of them.
  static constexpr size_t kMostAwaited = 4096;

  struct Awaited {
    uint64_t record;  // counted from 1
    TraceSpan span;
  };
  uint64_t records_ = 0;
  std::deque<Awaited> awaited_;
};

}  // namespace syncline
