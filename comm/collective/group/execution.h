// The engine: runs one rank's schedule over lanes to its peers.
//
// Between two ranks steps run in the schedule's order; those of different peers run side by
// side, a piece at a time, so that what one peer sends is reduced while it is in the cache
// and passed on at once. Nothing is written but the schedule's targets.
//
//   Execution execution(schedule, {.header = header, .combination = ..}, buffers, lanes);
//   while (!execution.done() && execution.status().ok()) {
//     if (!execution.Advance()) WaitForTheNetwork();
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/collective/element/element.h"
#include "comm/collective/group/call.h"
#include "comm/collective/group/lane.h"
#include "comm/collective/group/task.h"
#include "comm/collective/schedule/schedule.h"

namespace syncline::collective {

struct ExecutionPlan {
  std::shared_ptr<const Schedule> schedule = nullptr;
  CallHeader header = {};  // as it is for most peers
  // Whoever only gives to a peer hears that it is in the same operation before it is done.
  bool answered = false;
  // Of all-to-all with unequal counts: what replaces header.count; otherwise empty.
  std::vector<size_t> send_counts = {};
  std::vector<size_t> receive_counts = {};
  Combination combination = {};  // divide_by is used in steps that complete
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
};

class Execution final : public Task {
 public:
  // `lanes` has one for each rank, null for this one, and outlives the execution.
  Execution(ExecutionPlan plan, const std::vector<Lane*>& lanes);

  bool Advance() override;
  bool done() const override { return unfinished_ == 0 && headers_ == 0; }
  absl::Status status() const override { return status_; }
  std::vector<int> WaitingFor() const override;

 private:
  struct Peer {
    int rank = 0;
    Lane* lane = nullptr;
    std::vector<uint32_t> sends = {};
    std::vector<uint32_t> receives = {};
    size_t next_send = 0;
    size_t next_receive = 0;
    bool header_sent = false;
    bool header_read = false;

    bool sending() const { return next_send < sends.size(); }
    bool receiving() const { return next_receive < receives.size(); }
  };

  Peer& PeerOf(int rank, const std::vector<Lane*>& lanes);
  // Nothing but this peer keeps its next receive, or its next send, from moving.
  bool LacksBytesOf(const Peer& peer) const;
  bool LacksRoomOf(const Peer& peer) const;
  // Of a peer that only gives, or only takes, where plan_.answered: the header back.
  bool OwesAnswer(const Peer& peer) const;
  bool AwaitsAnswer(const Peer& peer) const;
  bool Send(Peer& peer);
  bool SendHeader(Peer& peer);
  bool Receive(Peer& peer);
  bool ReadHeader(Peer& peer);
  bool Reduce(uint32_t index);
  bool Copy(uint32_t index);  // or fold: what needs no peer
  // Into the target's next `n` elements, from left to right.
  void CombineInto(const Step& step, size_t first, size_t n,
                   std::span<const std::byte* const> operands);
  // How many elements from the front the steps it waits for allow.
  size_t Allowed(const Step& step) const;
  bool WaitsAreOver(const Step& step) const;
  // How many of `elements` to move so that a message ends at its end only.
  size_t Whole(const Step& step, size_t done, size_t elements) const;
  bool IsHeldUp(uint32_t index) const;  // by steps that it waits for
  bool IsNext(const Peer& peer, uint32_t index) const;
  void Finish(Peer& peer, uint32_t index);
  CallHeader HeaderFor(const Peer& peer, const std::vector<size_t>& counts) const;
  std::byte* At(const Range& range, size_t element) const;

  const ExecutionPlan plan_;
  const Schedule& schedule_;
  const size_t element_bytes_;
  std::vector<std::byte> scratch_;
  std::vector<size_t> done_;    // elements of each step
  std::vector<bool> finished_;  // also steps of no elements are only in their turn
  std::vector<Peer> peers_;
  std::vector<int> peer_index_;   // by rank; -1: none
  std::vector<uint32_t> copies_;  // not finished
  size_t unfinished_ = 0;         // steps
  size_t headers_ = 0;            // that have not been sent or read
  absl::Status status_;
};

}  // namespace syncline::collective
