// How much may be on its way to a peer: what its link holds between sending a byte and
// hearing that it came, what it carries while the sender looks away, and 64 KiB, or 8 KiB
// and 45 ms where that is less. More would fill queues that an urgent message has to wait
// in; less would leave the link idle.
//
// The 64 or 8 KiB are the same for everybody: of the bytes that wait at a cable each sender has
// the share that it has of the cable, so what grew with the sender's rate alone would
// leave whoever came first with most of it, and the others without.
//
// The bandwidth is what went while the link was busy, of late. A message may exceed the
// limit when less than that is on its way.
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
  // After every event that may have moved bytes, and some 100 times a second.
  void Observe(const SendState& state, absl::Duration now);

  // Bytes that may be added to what is on its way; the last message may have more.
  size_t Room(const SendState& state) const;
  // The same for messages of that class, which overtake those of the classes behind
  // that wait. What would be overtaken has room for one message in any case, so that its
  // share (send_queue.h) is of use.
  size_t Room(const SendState& state, TrafficClass traffic_class) const;

  // Of a transport that keeps what waits in a queue of its own (send_queue.h): whether more
  // may be put where nothing overtakes it. `in_hands` is without what is queued.
  bool HasRoomInHands(const SendState& in_hands) const;

  // As much of a message as should leave in one piece: what the link carries in 10 ms, but
  // 8 KiB at least.
  size_t piece_bytes() const;

  size_t limit_bytes() const { return limit_; }
  // 0: not known yet.
  double bytes_per_second() const { return rate_; }

 private:
  void MeasureRate(const SendState& state, absl::Duration now);

  double rate_ = 0;
  double seen_bytes_ = 0;  // of busy time, of late
  double seen_seconds_ = 0;
  size_t limit_ = kUnknown;

  SendState last_ = {};
  // The stretch that is measured: the link was busy all the time.
  bool is_measuring_ = false;
  uint64_t gone_at_start_ = 0;
  absl::Duration started_at_ = {};

  static constexpr size_t kUnknown = size_t{1} << 20;  // the limit until a rate is known
};

}  // namespace syncline
