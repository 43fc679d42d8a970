// A SendQueue holds the messages that wait to be sent on one connection, by class
// (traffic.h), and decides what goes next. Pop returns a piece of a message of the first
// class that has one. So that no class starves, each class gets a sixteenth of the bytes
// of each class before it. On a slow link pieces are short: an urgent message then waits
// for the end of a piece, not of a whole block.
//
// Messages of the same class are sent one after the other. At any time at most one
// message of each class is partly sent, which bounds the memory of the receiver.
//
// Pure; no thread safety.
//
//   queue.Push(Traffic::OfBlock(TrafficClass::kUrgent, 3), {header, payload, done}, now);
//   while (!queue.empty()) Put(queue.Pop(window.piece_bytes()));
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "comm/base/limits.h"
#include "comm/transport/traffic.h"
#include "comm/transport/transport.h"

namespace syncline {

class SendQueue {
 public:
  // A class gets 1/kFloor of the bytes of each class before it.
  static constexpr uint64_t kFloor = 16;

  struct Outgoing {
    ByteView header = {};  // copied; at most kMessageHeaderBytes
    Payload payload = {};
    SendDone done = nullptr;
  };

  struct Message {
    std::array<std::byte, kMessageHeaderBytes> header_bytes;
    size_t header_size = 0;
    Payload payload = {};
    SendDone done = nullptr;
    uint64_t flow = Traffic::kOneFlow;
    absl::Duration pushed_at = {};
    size_t payload_bytes = 0;
    size_t given_bytes = 0;  // bytes of the payload that Pop has given out
    // The slice, and the offset in it, at which the rest begins.
    size_t slice = 0;
    size_t slice_offset = 0;

    bool has_begun = false;

    size_t bytes() const { return header_size + payload_bytes; }
  };

  struct Piece {
    TrafficClass traffic_class = TrafficClass::kOther;
    // True for the first piece of a message. The message's header precedes it.
    bool begins = false;
    std::array<std::byte, kMessageHeaderBytes> header_bytes;
    size_t header_size = 0;
    size_t message_payload_bytes = 0;
    std::vector<ByteView> payload = {};  // views into the message's memory
    size_t payload_bytes = 0;
    // Set in the last piece of a message: the message itself. Its memory must be kept
    // until this piece and those before it are sent.
    std::optional<Message> ended = std::nullopt;

    ByteView header() const { return {header_bytes.data(), header_size}; }
    // Returns the bytes of the message in this piece: the payload, and the header if it
    // begins.
    size_t bytes() const { return (begins ? header_size : 0) + payload_bytes; }
  };

  void Push(const Traffic& traffic, Outgoing message, absl::Duration now);

  bool empty() const { return waiting_ == 0; }
  // Returns true if a message of kControl waits.
  bool has_control() const { return !lanes_[0].messages.empty(); }
  // Returns the next piece, of at most `piece_bytes` of payload. REQUIRES: !empty() and
  // piece_bytes > 0.
  Piece Pop(size_t piece_bytes);

  // Bytes that no piece has contained yet.
  const BytesByClass& queued_bytes() const { return queued_bytes_; }
  uint64_t total_queued_bytes() const;

  // Removes all messages, and appends their `done` callbacks to `pending` without calling
  // them.
  void Clear(std::vector<SendDone>& pending);

 private:
  struct Lane {
    std::deque<Message> messages;
    uint64_t credit = 0;  // bytes that it may send ahead of earlier classes
  };
  struct Flow {
    size_t lane = 0;
    size_t messages = 0;
  };

  size_t Choose(size_t piece_bytes) const;
  void Credit(size_t lane, size_t bytes);
  void Leave(uint64_t flow);

  std::array<Lane, kTrafficClasses> lanes_;
  std::unordered_map<uint64_t, Flow> flows_;  // with waiting messages
  BytesByClass queued_bytes_ = {};
  size_t waiting_ = 0;  // messages
};

}  // namespace syncline
