// Small operations among the ranks of one host. Each rank posts its values on its own
// board and reads the boards of all others. This needs one flag and no ring, and takes
// about a microsecond if each rank has a core.
#pragma once

#include <vector>

#include "comm/collective/element/element.h"
#include "comm/collective/group/call.h"
#include "comm/collective/group/shared_wire.h"
#include "comm/collective/group/task.h"

namespace syncline::collective {

// Whether the board supports a call: all-reduce, all-gather, broadcast and barrier of at
// most kBoardBytes per rank.
bool FitsBoard(const Call& call);

class BoardTask final : public Task {
 public:
  // `number`: number of the operation among the group's board operations, from 1. `call`
  // and `wire` must outlive the task.
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
  int arrived_ = 0;  // the ranks before this one have posted
  absl::Status status_;
};

}  // namespace syncline::collective
