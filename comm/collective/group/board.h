// Small operations of the ranks of one host: each posts its values on its own board and
// reads those of all others. One flag, no ring: about a microsecond with a core for each.
#pragma once

#include <vector>

#include "comm/collective/element/element.h"
#include "comm/collective/group/call.h"
#include "comm/collective/group/shared_wire.h"
#include "comm/collective/group/task.h"

namespace syncline::collective {

// What the board can do: all-reduce, all-gather, broadcast and barrier of at most
// kBoardBytes from each rank.
bool FitsBoard(const Call& call);

class BoardTask final : public Task {
 public:
  // `number` counts the group's operations on the board, from 1. `call` and `wire` outlive
  // the task.
  BoardTask(SharedWire& wire, const Call& call, const CallHeader& header,
            uint64_t number);

  bool Advance() override;
  bool done() const override { return done_; }
  absl::Status status() const override { return status_; }
  std::vector<int> WaitingFor() const override;

 private:
  void Post();
  bool HasPosted(int rank) const;
  const std::byte* ValuesOf(int rank) const;
  void Finish();

  SharedWire& wire_;
  const Call& call_;
  const CallHeader header_;
  const uint64_t number_;
  const int rank_;
  const int ranks_;
  const size_t bytes_;
  bool posted_ = false;
  bool done_ = false;
  int arrived_ = 0;  // ranks before this one have posted
  absl::Status status_;
};

}  // namespace syncline::collective
