// Measures how fast the wire carries contributions. A measurement lasts from the first
// contribution that is sent to the last acknowledgement. It excludes the time in which
// nothing was under way, and the time in which the sending thread was encoding.
//
//   meter.Sent(now, encoded);
//   const auto carried = meter.Acknowledged({bytes, more}, now, encoded);
//   if (carried) Use(*carried);
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/time/time.h"

namespace syncline {

class WireMeter {
 public:
  struct Carried {
    size_t bytes = 0;
    absl::Duration time = absl::ZeroDuration();
  };

  // Reports that a contribution is sent. `encoding` is the total time that encoding has
  // taken on this thread so far.
  void Sent(absl::Duration now, absl::Duration encoding) {
    if (under_way_++ > 0) return;
    began_ = now;
    encoding_ = encoding;
    if (std::exchange(goes_on_, false)) return;
    bytes_ = 0;
    time_ = absl::ZeroDuration();
  }
  // Reports that a contribution will not be acknowledged, for example because it is sent
  // again. Spoils the present measurement.
  void Lost() {
    if (under_way_ > 0) --under_way_;
    is_spoiled_ = under_way_ > 0;
    goes_on_ = false;
    bytes_ = 0;
  }
  struct Answer {
    size_t bytes = 0;         // of the acknowledged contribution
    bool more_comes = false;  // a contribution is being encoded and is sent next
  };
  // Reports an acknowledgement. Returns the result once nothing is under way, if enough
  // bytes were sent: a few bytes would only measure the time of an answer.
  std::optional<Carried> Acknowledged(const Answer& answer, absl::Duration now,
                                      absl::Duration encoding) {
    if (under_way_ == 0) return std::nullopt;
    bytes_ += answer.bytes;
    if (--under_way_ > 0) return std::nullopt;
    time_ += now - began_ - (encoding - encoding_);
    goes_on_ = answer.more_comes && !is_spoiled_;
    if (goes_on_) return std::nullopt;
    const bool counts = !is_spoiled_ && bytes_ >= kEnoughBytes;
    is_spoiled_ = false;
    if (!counts) return std::nullopt;
    // The time may be 0 or less if encoding took as long as the transfer.
    return Carried{.bytes = bytes_, .time = std::max(time_, kShortest)};
  }

 private:
  static constexpr size_t kEnoughBytes = size_t{256} << 10;
  static constexpr absl::Duration kShortest = absl::Microseconds(1);

  uint32_t under_way_ = 0;
  size_t bytes_ = 0;
  bool is_spoiled_ = false;
  bool goes_on_ = false;  // nothing is under way, but the measurement continues
  absl::Duration began_ = absl::ZeroDuration();
  absl::Duration encoding_ = absl::ZeroDuration();
  absl::Duration time_ = absl::ZeroDuration();  // of finished parts of the measurement
};

}  // namespace syncline
