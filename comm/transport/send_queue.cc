#include "comm/transport/send_queue.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/base/check.h"

namespace syncline {
namespace {

// Takes the next `bytes` of the rest of the message.
std::vector<ByteView> Cut(SendQueue::Message& message, size_t bytes) {
  std::vector<ByteView> views;
  message.given_bytes += bytes;
  while (bytes > 0) {
    const Slice& slice = message.payload[message.slice];
    const size_t size = std::min(bytes, slice.size - message.slice_offset);
    if (size > 0) views.emplace_back(slice.data + message.slice_offset, size);
    bytes -= size;
    message.slice_offset += size;
    if (message.slice_offset < slice.size) continue;
    ++message.slice;
    message.slice_offset = 0;
  }
  return views;
}

size_t Rest(const SendQueue::Message& message) {
  return message.payload_bytes - message.given_bytes;
}

}  // namespace

const char* TrafficClassName(TrafficClass traffic_class) {
  switch (traffic_class) {
    case TrafficClass::kControl:
      return "control";
    case TrafficClass::kUrgent:
      return "urgent";
    case TrafficClass::kOther:
      return "other";
    case TrafficClass::kBackground:
      return "background";
  }
  return "unknown";
}

void SendQueue::Push(const Traffic& traffic, Outgoing outgoing, absl::Duration now) {
  SYNCLINE_CHECK(outgoing.header.size() <= kMessageHeaderBytes);
  Flow& flow = flows_[traffic.flow];
  // A message goes behind the waiting messages of its flow, into their lane, whatever its
  // own class. Otherwise it could overtake them, because no class always goes first.
  if (flow.messages == 0) flow.lane = static_cast<size_t>(traffic.traffic_class);
  ++flow.messages;
  Message& message = lanes_[flow.lane].messages.emplace_back();
  std::ranges::copy(outgoing.header, message.header_bytes.begin());
  message.header_size = outgoing.header.size();
  message.payload_bytes = PayloadBytes(outgoing.payload);
  message.payload = std::move(outgoing.payload);
  message.done = std::move(outgoing.done);
  message.flow = traffic.flow;
  message.pushed_at = now;
  queued_bytes_[flow.lane] += message.bytes();
  ++waiting_;
}

// Returns the first class that has a message, unless a later class has earned enough
// credit for its next piece.
size_t SendQueue::Choose(size_t piece_bytes) const {
  size_t first = 0;
  while (lanes_[first].messages.empty()) ++first;
  for (size_t lane = first + 1; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].messages.empty()) continue;
    const size_t next = std::min(piece_bytes, Rest(lanes_[lane].messages.front()));
    if (lanes_[lane].credit >= std::max<size_t>(next, 1)) return lane;
  }
  return first;
}

// Gives credit for the sent bytes to the later lanes in which messages wait.
void SendQueue::Credit(size_t sender, size_t bytes) {
  lanes_[sender].credit -= std::min<uint64_t>(lanes_[sender].credit, bytes);
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    uint64_t& credit = lanes_[lane].credit;
    if (lanes_[lane].messages.empty()) {
      credit = 0;
    } else if (lane > sender) {
      // Without this limit the credit could grow into a long burst.
      credit = std::min<uint64_t>(credit + (bytes + kFloor - 1) / kFloor,
                                  kMaxMessagePayloadBytes);
    }
  }
}

SendQueue::Piece SendQueue::Pop(size_t piece_bytes) {
  SYNCLINE_CHECK(!empty() && piece_bytes > 0);
  const size_t lane = Choose(piece_bytes);
  std::deque<Message>& messages = lanes_[lane].messages;
  Message& message = messages.front();
  Piece piece = {.traffic_class = static_cast<TrafficClass>(lane),
                 .begins = !std::exchange(message.has_begun, true),
                 .header_bytes = message.header_bytes,
                 .header_size = message.header_size,
                 .message_payload_bytes = message.payload_bytes};
  piece.payload_bytes = std::min(piece_bytes, Rest(message));
  piece.payload = Cut(message, piece.payload_bytes);
  queued_bytes_[lane] -= piece.bytes();
  if (Rest(message) == 0) {
    Leave(message.flow);
    piece.ended = std::move(message);
    messages.pop_front();
    --waiting_;
  }
  Credit(lane, piece.bytes());
  return piece;
}

void SendQueue::Leave(uint64_t flow) {
  const auto found = flows_.find(flow);
  if (--found->second.messages == 0) flows_.erase(found);
}

uint64_t SendQueue::total_queued_bytes() const {
  return std::accumulate(queued_bytes_.begin(), queued_bytes_.end(), uint64_t{0});
}

void SendQueue::Clear(std::vector<SendDone>& pending) {
  for (Lane& lane : lanes_) {
    for (Message& message : lane.messages) pending.push_back(std::move(message.done));
    lane = {};
  }
  flows_.clear();
  queued_bytes_ = {};
  waiting_ = 0;
}

}  // namespace syncline
