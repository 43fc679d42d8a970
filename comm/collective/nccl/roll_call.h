// Detects that ranks of a group over NCCL have called different operations. NCCL compares
// nothing: such ranks hang or compute nonsense. So the ranks exchange records from time
// to time. The operations never wait for this. The records of one round determine what
// the next round asks for: the call of the first operation that some rank has not
// finished, and a digest of all calls before it.
//
// The result depends only on the calls of Note, NoteEnd and Take. Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "comm/collective/group/call.h"

namespace syncline::collective {

// What a rank reports in a round; sent as its bytes.
struct RollCallRecord {
  uint64_t ended = 0;   // number of collective operations that have finished here
  uint64_t called = 0;  // number that were called here
  // What the last round asked for. Zeros: not called here yet, or forgotten.
  uint64_t digest = 0;
  CallHeader header = {};
};
static_assert(sizeof(RollCallRecord) == 88);

class RollCall {
 public:
  explicit RollCall(int rank) : rank_(rank) {}

  // Records the next call. Returns its number, from 1 on.
  uint64_t Note(CallHeader& header);
  void NoteEnd() { ++ended_; }

  RollCallRecord Answer() const;
  // Takes the records of a round, by rank. Fails with FailedPrecondition, which names a
  // rank and what it called instead.
  absl::Status Take(std::span<const RollCallRecord> records);
  // Returns the ranks that had not called that operation at the last round.
  std::vector<int> Behind(uint64_t sequence) const;

 private:
  struct Noted {
    CallHeader header;
    uint64_t digest = 0;  // digest of all calls up to this one
  };
  const Noted* Find(uint64_t sequence) const;

  const int rank_;
  uint64_t called_ = 0;
  uint64_t ended_ = 0;
  uint64_t asked_ = 0;           // number of an operation; 0: none
  std::vector<Noted> noted_;     // ring of the last calls
  std::vector<uint64_t> heard_;  // `called`, by rank
};

}  // namespace syncline::collective
