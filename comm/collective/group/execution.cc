#include "comm/collective/group/execution.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "comm/base/check.h"

namespace syncline::collective {
namespace {

// Maximum size of a piece: the peer reads one piece while the next one is written.
constexpr size_t kPieceBytes = size_t{64} << 10;

}  // namespace

Execution::Execution(ExecutionPlan plan, const std::vector<Lane*>& lanes)
    : plan_(std::move(plan)),
      schedule_(*plan_.schedule),
      element_bytes_(ElementBytes(plan_.combination.type)),
      scratch_(schedule_.scratch * element_bytes_),
      done_(schedule_.steps.size()),
      finished_(schedule_.steps.size()),
      peer_index_(lanes.size(), -1),
      unfinished_(schedule_.steps.size()) {
  for (uint32_t i = 0; i < schedule_.steps.size(); ++i) {
    const Step& step = schedule_.steps[i];
    if (step.peers.empty()) copies_.push_back(i);
    for (const int rank : step.peers) {
      Peer& peer = PeerOf(rank, lanes);
      (step.action == Action::kSend ? peer.sends : peer.receives).push_back(i);
    }
  }
  for (Peer& peer : peers_) {
    const bool both = plan_.answered;
    headers_ +=
        (both || !peer.sends.empty() ? 1 : 0) + (both || !peer.receives.empty() ? 1 : 0);
  }
}

Execution::Peer& Execution::PeerOf(int rank, const std::vector<Lane*>& lanes) {
  const auto at = static_cast<size_t>(rank);
  if (peer_index_[at] < 0) {
    SYNCLINE_CHECK(lanes[at] != nullptr);
    peer_index_[at] = static_cast<int>(peers_.size());
    peers_.push_back({.rank = rank, .lane = lanes[at]});
  }
  return peers_[static_cast<size_t>(peer_index_[at])];
}

bool Execution::Advance() {
  bool moved = false;
  for (Peer& peer : peers_) {
    if (peer.sending()) moved |= Send(peer);
    if (OwesAnswer(peer)) moved |= SendHeader(peer);
    if (peer.receiving()) moved |= Receive(peer);
    if (AwaitsAnswer(peer)) moved |= ReadHeader(peer);
  }
  for (size_t i = 0; i < copies_.size(); ++i) moved |= Copy(copies_[i]);
  std::erase_if(copies_, [&](uint32_t index) {
    if (done_[index] < schedule_.steps[index].count()) return false;
    finished_[index] = true;
    --unfinished_;
    return true;
  });
  return moved;
}

std::vector<int> Execution::WaitingFor() const {
  std::vector<int> ranks;
  for (const Peer& peer : peers_) {
    if (LacksBytesOf(peer) || LacksRoomOf(peer)) ranks.push_back(peer.rank);
  }
  return ranks;
}

bool Execution::OwesAnswer(const Peer& peer) const {
  return plan_.answered && peer.sends.empty() && !peer.header_sent;
}

bool Execution::AwaitsAnswer(const Peer& peer) const {
  return plan_.answered && peer.receives.empty() && !peer.header_read;
}

bool Execution::LacksBytesOf(const Peer& peer) const {
  if (AwaitsAnswer(peer)) return peer.lane->Arrived().empty();
  if (!peer.receiving() || !peer.lane->Arrived().empty()) return false;
  if (!peer.header_read) return true;
  const uint32_t index = peer.receives[peer.next_receive];
  return schedule_.steps[index].count() > 0 && !IsHeldUp(index);
}

bool Execution::LacksRoomOf(const Peer& peer) const {
  if (OwesAnswer(peer)) return peer.lane->Room().empty();
  return peer.sending() && !IsHeldUp(peer.sends[peer.next_send]) &&
         peer.lane->Room().empty();
}

bool Execution::IsHeldUp(uint32_t index) const {
  const Step& step = schedule_.steps[index];
  return step.count() == 0 ? !WaitsAreOver(step) : Allowed(step) == done_[index];
}

size_t Execution::Allowed(const Step& step) const {
  size_t allowed = step.count();
  for (const uint32_t wait : step.waits) {
    const Step& before = schedule_.steps[wait];
    if (finished_[wait]) continue;
    allowed = std::min(allowed, FollowsClosely(step, before) ? done_[wait] : 0);
  }
  return allowed;
}

bool Execution::WaitsAreOver(const Step& step) const {
  return std::all_of(step.waits.begin(), step.waits.end(),
                     [&](uint32_t wait) { return finished_[wait]; });
}

size_t Execution::Whole(const Step& step, size_t done, size_t elements) const {
  if (done + elements == step.count()) return elements;
  return elements - elements % (kLaneAlignment / element_bytes_);
}

CallHeader Execution::HeaderFor(const Peer& peer,
                                const std::vector<size_t>& counts) const {
  CallHeader header = plan_.header;
  if (!counts.empty()) header.count = counts[static_cast<size_t>(peer.rank)];
  return header;
}

std::byte* Execution::At(const Range& range, size_t element) const {
  const size_t offset = (range.first + element) * element_bytes_;
  switch (range.area) {
    case Area::kInput:
      return const_cast<std::byte*>(plan_.input) + offset;  // used only as a source
    case Area::kOutput:
      return plan_.output + offset;
    case Area::kScratch:
      return const_cast<std::byte*>(scratch_.data()) + offset;
  }
  return nullptr;
}

bool Execution::SendHeader(Peer& peer) {
  const MutableByteView room = peer.lane->Room();
  if (room.size() < sizeof(CallHeader)) return false;
  const CallHeader header = HeaderFor(peer, plan_.send_counts);
  std::memcpy(room.data(), &header, sizeof header);
  peer.lane->Commit(sizeof header);
  peer.header_sent = true;
  --headers_;
  return true;
}

bool Execution::ReadHeader(Peer& peer) {
  const ByteView arrived = peer.lane->Arrived();
  if (arrived.size() < sizeof(CallHeader)) return false;
  CallHeader header;
  std::memcpy(&header, arrived.data(), sizeof header);
  const CallHeader own = HeaderFor(peer, plan_.receive_counts);
  if (!(header == own)) {
    status_ = Mismatch(peer.rank, header, own);
    return false;
  }
  peer.lane->Consume(sizeof header);
  peer.header_read = true;
  --headers_;
  return true;
}

bool Execution::Send(Peer& peer) {
  const uint32_t index = peer.sends[peer.next_send];
  const Step& step = schedule_.steps[index];
  // A barrier sends only a header, which must wait for earlier steps too.
  if (step.count() == 0 && !WaitsAreOver(step)) return false;
  if (!peer.header_sent) return SendHeader(peer);
  if (step.count() == 0) {
    Finish(peer, index);
    return true;
  }
  const size_t allowed = Allowed(step);
  const MutableByteView room = peer.lane->Room();
  const size_t fits = std::min(room.size(), kPieceBytes) / element_bytes_;
  const size_t n = Whole(step, done_[index], std::min(fits, allowed - done_[index]));
  if (n == 0) return false;
  std::memcpy(room.data(), At(step.source, done_[index]), n * element_bytes_);
  peer.lane->Commit(LanePadded(n * element_bytes_));
  done_[index] += n;
  if (done_[index] == step.count()) Finish(peer, index);
  return true;
}

bool Execution::Receive(Peer& peer) {
  if (!peer.header_read) return ReadHeader(peer);
  const uint32_t index = peer.receives[peer.next_receive];
  const Step& step = schedule_.steps[index];
  if (step.action == Action::kReduce && step.peers.size() > 1) return Reduce(index);
  if (step.count() == 0) {
    if (!WaitsAreOver(step)) return false;
    Finish(peer, index);
    return true;
  }
  const ByteView arrived = peer.lane->Arrived();
  const size_t there = std::min(arrived.size(), kPieceBytes) / element_bytes_;
  const size_t n =
      Whole(step, done_[index], std::min(there, Allowed(step) - done_[index]));
  if (n == 0) return false;
  std::byte* const target = At(step.target, done_[index]);
  if (step.action == Action::kReduce) {
    const std::byte* operands[] = {At(step.source, done_[index]), arrived.data()};
    if (step.turn > 0) std::swap(operands[0], operands[1]);
    CombineInto(step, done_[index], n, operands);
  } else {
    std::memcpy(target, arrived.data(), n * element_bytes_);
  }
  peer.lane->Consume(LanePadded(n * element_bytes_));
  done_[index] += n;
  if (done_[index] == step.count()) Finish(peer, index);
  return true;
}

bool Execution::IsNext(const Peer& peer, uint32_t index) const {
  return peer.header_read && peer.receiving() &&
         peer.receives[peer.next_receive] == index;
}

bool Execution::Reduce(uint32_t index) {
  const Step& step = schedule_.steps[index];
  size_t n = std::min(kPieceBytes / element_bytes_, Allowed(step) - done_[index]);
  std::vector<const std::byte*> operands;
  operands.reserve(step.peers.size() + 1);
  for (size_t k = 0; k < step.peers.size(); ++k) {
    const Peer& peer =
        peers_[static_cast<size_t>(peer_index_[static_cast<size_t>(step.peers[k])])];
    if (!IsNext(peer, index)) return false;
    const ByteView arrived = peer.lane->Arrived();
    operands.push_back(arrived.data());
    n = std::min(n, arrived.size() / element_bytes_);
  }
  n = Whole(step, done_[index], n);
  if (n == 0 && step.count() > 0) return false;
  operands.insert(operands.begin() + step.turn, At(step.source, done_[index]));
  CombineInto(step, done_[index], n, operands);
  done_[index] += n;
  const bool finished = done_[index] == step.count();
  for (const int rank : step.peers) {
    Peer& peer = peers_[static_cast<size_t>(peer_index_[static_cast<size_t>(rank)])];
    peer.lane->Consume(LanePadded(n * element_bytes_));
    if (finished) ++peer.next_receive;
  }
  if (finished) {
    finished_[index] = true;
    --unfinished_;
  }
  return true;
}

void Execution::CombineInto(const Step& step, size_t first, size_t n,
                            std::span<const std::byte* const> operands) {
  Combination combination = plan_.combination;
  if (!step.completes) combination.divide_by = 0;
  Combine(combination, n, operands.front(), operands.subspan(1), At(step.target, first));
}

bool Execution::Copy(uint32_t index) {
  const Step& step = schedule_.steps[index];
  const size_t n = Allowed(step) - done_[index];
  if (n == 0) return false;
  if (step.action == Action::kFold) {
    std::vector<const std::byte*> operands;
    for (const Range& part : step.parts) operands.push_back(At(part, done_[index]));
    CombineInto(step, done_[index], n, operands);
    done_[index] += n;
    return true;
  }
  std::byte* const target = At(step.target, done_[index]);
  const std::byte* const source = At(step.source, done_[index]);
  if (target != source) std::memmove(target, source, n * element_bytes_);
  done_[index] += n;
  return true;
}

void Execution::Finish(Peer& peer, uint32_t index) {
  if (schedule_.steps[index].action == Action::kSend) {
    ++peer.next_send;
  } else {
    ++peer.next_receive;
  }
  finished_[index] = true;
  --unfinished_;
}

}  // namespace syncline::collective
