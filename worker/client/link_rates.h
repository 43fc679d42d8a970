// Measures how fast a worker's link is, each way, over all its connections to other
// hosts. The advisor compares this with the bytes of a step (server/admin/advice.h).
//
//   LinkRates rates;
//   rates.Observe(sent_by_all, received_by_all, clock.Now());  // about 100 times a second
//   rates.received_bytes_per_second();
//
// The way out is measured while bytes wait for it (SendWindow). Nobody knows whether
// bytes wait at the other end of the way in: it is measured while bytes arrive without a
// pause, in stretches of 20 ms that lie between others. A link on which nothing takes
// that long stays unknown, which means that it is fast enough.
//
// Thread safety: none.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "comm/transport/send_window.h"
#include "comm/transport/transport.h"

namespace syncline {

class ArrivalRate {
 public:
  // `received`: bytes so far.
  void Observe(uint64_t received, absl::Duration now);
  // Returns 0 if it is not known yet.
  double bytes_per_second() const { return rate_; }

 private:
  double rate_ = 0;
  double seen_bytes_ = 0;  // in recent stretches
  double seen_seconds_ = 0;
  absl::Duration began_at_ = absl::ZeroDuration();  // of this stretch
  uint64_t began_with_ = 0;
  // Of the last stretch, if bytes arrived in it and in the one before. It counts if bytes
  // arrive in this one, too.
  uint64_t pending_bytes_ = 0;
  absl::Duration pending_ = absl::ZeroDuration();
  bool was_arriving_ = false;
};

class LinkRates {
 public:
  // Both are sums over the present connections to other hosts; they may go back when
  // connections are replaced.
  void Observe(const SendState& sent, uint64_t received, absl::Duration now);

  // Return 0 if they are not known.
  double sent_bytes_per_second() const { return sent_rate_; }
  double received_bytes_per_second() const { return arrivals_.bytes_per_second(); }

 private:
  SendWindow window_;
  SendState sent_ = {};
  double sent_rate_ = 0;
  ArrivalRate arrivals_;
};

}  // namespace syncline
