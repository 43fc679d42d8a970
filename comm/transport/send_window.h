// A SendWindow says how many bytes may be on their way to a peer. This is the sum of
// three amounts: what the link carries in a round trip, what it carries until the sender
// looks at it again, and a fixed share. The share is 64 KiB, or 8 KiB and what the link
// carries in 45 ms if that is less. With more than this, queues would fill up that an
// urgent message must then wait in; with less, the link would be idle at times.
//
// The share must not grow with the sender's rate. If several senders share a cable, each
// gets a part of its bandwidth in proportion to the bytes that it has waiting there. If
// these were proportional to its rate alone, the first sender would keep most of the
// bandwidth.
//
// The rate is measured over recent time in which the link was busy. If less than the
// limit is on its way, the next message may exceed it.
//
// Thread safety: none.
//
//   window.Observe(endpoint.send_state(), clock.Now());
//   if (window.Room(endpoint.send_state()) > 0) endpoint.Send(...);
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "comm/transport/transport.h"

namespace syncline {

class SendWindow {
 public:
  // Updates the measurement. Call it after every event that may have moved bytes, and
  // about 100 times a second.
  void Observe(const SendState& state, absl::Duration now);

  // Returns how many bytes may be added to those on their way. 0: none. The last message
  // may have more bytes than this.
  size_t Room(const SendState& state) const;
  // Returns the same for messages of a class, which overtake waiting messages of later
  // classes. If messages of earlier classes wait and none of this class does, there is
  // always room for one message, so that the class can use its share (send_queue.h).
  size_t Room(const SendState& state, TrafficClass traffic_class) const;

  // For a transport that has a queue of its own (send_queue.h): returns whether it may
  // hand over more bytes, which nothing can overtake from then on. `in_hands` must not
  // include what is queued.
  bool HasRoomInHands(const SendState& in_hands) const;

  // Returns how much of a message should be sent in one piece: what the link carries in
  // 10 ms, but at least 8 KiB.
  size_t piece_bytes() const;

  size_t limit_bytes() const { return limit_; }
  // Returns the measured bandwidth. 0: not known yet.
  double bytes_per_second() const { return rate_; }

 private:
  void MeasureRate(const SendState& state, absl::Duration now);

  double rate_ = 0;
  double seen_bytes_ = 0;  // in recent busy time
  double seen_seconds_ = 0;
  size_t limit_ = kUnknown;

  SendState last_ = {};
  // The period that is being measured. The link was busy all the time.
  bool is_measuring_ = false;
  uint64_t gone_at_start_ = 0;
  absl::Duration started_at_ = {};

  static constexpr size_t kUnknown = size_t{1} << 20;  // the limit until a rate is known
};

}  // namespace syncline
