#include "comm/collective/group/board.h"

#include <array>
#include <cstring>

namespace syncline::collective {

bool FitsBoard(const Call& call) {
  switch (call.op) {
    case CollectiveOp::kBarrier:
      return true;
    case CollectiveOp::kAllReduce:
    case CollectiveOp::kAllGather:
    case CollectiveOp::kBroadcast:
      return call.count * ElementBytes(call.type) <= kBoardBytes;
    default:
      return false;
  }
}

BoardTask::BoardTask(SharedWire& wire, const Call& call, const CallHeader& header,
                     uint64_t number)
    : wire_(wire),
      call_(call),
      header_(header),
      number_(number),
      rank_(wire.rank()),
      ranks_(wire.ranks()),
      bytes_(call.op == CollectiveOp::kBarrier ? 0
                                               : call.count * ElementBytes(call.type)) {}

// Copies this rank's values to its board; without an input they are in the output. Later
// only boards are read.
void BoardTask::Post() {
  BoardSlot& slot = wire_.own().slots[number_ % 2];
  slot.header = header_;
  const void* values = call_.input != nullptr ? call_.input : call_.output;
  const bool gives = call_.op != CollectiveOp::kBroadcast || call_.root == rank_;
  if (bytes_ > 0 && gives) std::memcpy(slot.data, values, bytes_);
  wire_.own().posted.store(number_, std::memory_order_seq_cst);
  wire_.RingAll();
  posted_ = true;
}

bool BoardTask::HasPosted(int rank) const {
  return rank == rank_ ||
         wire_.peer(rank)->header().posted.load(std::memory_order_seq_cst) >= number_;
}

const std::byte* BoardTask::ValuesOf(int rank) const {
  SharedHeader& its = rank == rank_ ? wire_.own() : wire_.peer(rank)->header();
  return its.slots[number_ % 2].data;
}

std::vector<int> BoardTask::WaitingFor() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!HasPosted(rank)) ranks.push_back(rank);
  }
  return ranks;
}

bool BoardTask::Advance() {
  const bool moved = !posted_;
  if (!posted_) Post();
  while (arrived_ < ranks_ && HasPosted(arrived_)) {
    if (arrived_ != rank_) {
      const CallHeader& its = wire_.peer(arrived_)->header().slots[number_ % 2].header;
      if (!(its == header_)) {
        status_ = Mismatch(arrived_, its, header_);
        return moved;
      }
    }
    ++arrived_;
  }
  if (arrived_ < ranks_) return moved;
  Finish();
  return true;
}

void BoardTask::Finish() {
  auto* const out = static_cast<std::byte*>(call_.output);
  // With no elements there may be no memory either.
  switch (bytes_ == 0 ? CollectiveOp::kBarrier : call_.op) {
    case CollectiveOp::kAllReduce: {
      // Combines in rank order on every rank, which gives the same bits.
      std::vector<const std::byte*> others;
      for (int rank = 1; rank < ranks_; ++rank) others.push_back(ValuesOf(rank));
      Combine({.type = call_.type, .op = call_.reduce, .divide_by = ranks_}, call_.count,
              ValuesOf(0), others, out);
      break;
    }
    case CollectiveOp::kAllGather:
      for (int rank = 0; rank < ranks_; ++rank) {
        std::memcpy(out + static_cast<size_t>(rank) * bytes_, ValuesOf(rank), bytes_);
      }
      break;
    case CollectiveOp::kBroadcast:
      std::memcpy(out, ValuesOf(call_.root), bytes_);
      break;
    default:
      break;
  }
  done_ = true;
}

}  // namespace syncline::collective
