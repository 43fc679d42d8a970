// How much may be on its way to a peer: what its link carries in about 100 ms, and the
// time that a byte takes to get there. More would fill queues that an urgent message has
// to wait in; less would leave the link idle.
//
// The bandwidth is what went while the link was busy, the highest of late. A message may
// exceed the limit when less than that is on its way, so a slow link carries one whole
// message at a time.
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

  size_t limit_bytes() const { return limit_; }
  // 0: not known yet.
  double bytes_per_second() const { return rate_; }

 private:
  void MeasureDelay(const SendState& state, absl::Duration now);
  void MeasureRate(const SendState& state, absl::Duration now);

  double rate_ = 0;
  absl::Duration rated_at_ = {};
  // Of a small message that nothing was before; the least of all.
  absl::Duration delay_ = absl::InfiniteDuration();
  size_t limit_ = kUnknown;

  SendState last_ = {};
  absl::Duration last_at_ = {};
  // The stretch that is measured: the link was busy all the time.
  bool is_measuring_ = false;
  uint64_t gone_at_start_ = 0;
  absl::Duration started_at_ = {};
  // The small message under way; 0: none.
  uint64_t marked_bytes_ = 0;
  absl::Duration marked_at_ = {};

  static constexpr size_t kUnknown = size_t{1} << 20;  // the limit until a rate is known
};

}  // namespace syncline
