// What waits to be sent on one connection, by class (traffic.h), and what goes next: a piece
// of a message of the first class that has one. Each class behind gets a sixteenth of what
// goes before it, so that none starves. Pieces are short where the way is slow, so that
// what is urgent waits for the end of a piece, not of a block.
//
// The messages of a class follow each other, so at most one of each class is cut at any
// time, which bounds what a receiver holds.
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
  // What a lower class gets of the bytes of each class before it.
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
    size_t given_bytes = 0;  // of the payload, in pieces
    // Where the rest begins.
    size_t slice = 0;
    size_t slice_offset = 0;

    bool has_begun = false;

    size_t bytes() const { return header_size + payload_bytes; }
  };

  struct Piece {
    TrafficClass traffic_class = TrafficClass::kOther;
    // The message's header goes before the piece, which is its first.
    bool begins = false;
    std::array<std::byte, kMessageHeaderBytes> header_bytes;
    size_t header_size = 0;
    size_t message_payload_bytes = 0;
    std::vector<ByteView> payload = {};  // in memory of the message
    size_t payload_bytes = 0;
    // The last one of its message, which comes with it: its memory must stay until
    // this piece and those before it are out.
    std::optional<Message> ended = std::nullopt;

    ByteView header() const { return {header_bytes.data(), header_size}; }
    // Of the message that it is a piece of.
    size_t bytes() const { return (begins ? header_size : 0) + payload_bytes; }
  };

  void Push(const Traffic& traffic, Outgoing message, absl::Duration now);

  bool empty() const { return waiting_ == 0; }
  // What must not wait for anything waits.
  bool has_control() const { return !lanes_[0].messages.empty(); }
  // REQUIRES: !empty(), piece_bytes > 0.
  Piece Pop(size_t piece_bytes);

  // Not in a piece yet.
  const BytesByClass& queued_bytes() const { return queued_bytes_; }
  uint64_t total_queued_bytes() const;

  // Forgets all.
  void Clear(std::vector<SendDone>& pending);

 private:
  struct Lane {
    std::deque<Message> messages;
    uint64_t credit = 0;  // bytes that it may send before the classes before it
  };
  struct Flow {
    size_t lane = 0;
    size_t messages = 0;
  };

  size_t Choose(size_t piece_bytes) const;
  void Credit(size_t lane, size_t bytes);
  void Leave(uint64_t flow);

  std::array<Lane, kTrafficClasses> lanes_;
  std::unordered_map<uint64_t, Flow> flows_;  // that wait
  BytesByClass queued_bytes_ = {};
  size_t waiting_ = 0;  // messages
};

}  // namespace syncline
