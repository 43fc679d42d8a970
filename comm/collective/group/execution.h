// Executes one rank's schedule over lanes to its peers.
//
// Steps with the same peer run in the schedule's order. Steps with different peers run
// concurrently, a piece at a time: data from one peer is reduced while it is in the cache
// and passed on at once. Only the targets of the schedule are written.
//
//   Execution execution({.schedule = schedule, .header = header, ...}, lanes);
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
  CallHeader header = {};  // header for most peers
  // A rank that only sends to a peer waits for the peer's header, which confirms that it
  // is in the same operation.
  bool answered = false;
  // All-to-all with unequal counts: replace header.count. Otherwise empty.
  std::vector<size_t> send_counts = {};
  std::vector<size_t> receive_counts = {};
  Combination combination = {};  // divide_by applies to steps that complete
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
};

class Execution final : public Task {
 public:
  // `lanes` has one entry per rank, null for this one, and must outlive the execution.
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
  // Whether the next receive, or the next send, waits only for this peer.
  bool LacksBytesOf(const Peer& peer) const;
  bool LacksRoomOf(const Peer& peer) const;
  // If plan_.answered, for a peer that only sends or only receives: the header in the
  // other direction.
  bool OwesAnswer(const Peer& peer) const;
  bool AwaitsAnswer(const Peer& peer) const;
  bool Send(Peer& peer);
  bool SendHeader(Peer& peer);
  bool Receive(Peer& peer);
  bool ReadHeader(Peer& peer);
  bool Reduce(uint32_t index);
  bool Copy(uint32_t index);  // also folds: steps without a peer
  // Combines the next `n` elements into the target, from left to right.
  void CombineInto(const Step& step, size_t first, size_t n,
                   std::span<const std::byte* const> operands);
  // Returns how many leading elements may be processed, given the steps that it waits
  // for.
  size_t Allowed(const Step& step) const;
  bool WaitsAreOver(const Step& step) const;
  // Returns how many of `elements` to move, so that only the last piece of a message is
  // not a multiple of the lane's alignment.
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
  std::vector<size_t> done_;    // finished elements of each step
  std::vector<bool> finished_;  // a step without elements also waits for its turn
  std::vector<Peer> peers_;
  std::vector<int> peer_index_;   // index into peers_ by rank; -1: none
  std::vector<uint32_t> copies_;  // unfinished ones
  size_t unfinished_ = 0;         // number of steps
  size_t headers_ = 0;            // number of headers to be sent or read
  absl::Status status_;
};

}  // namespace syncline::collective
