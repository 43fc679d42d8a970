// How fast the wire carries contributions: from the first that goes out to the last that
// is acknowledged, without the time in which nothing was under way, and without that for
// which encoding held up the thread that sends.
//
//   meter.Sent(now, encoded);
//   if (const auto carried = meter.Acknowledged({bytes, more}, now, encoded)) Tell(*carried);
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

  // A contribution goes out; `encoding` is what encoding took so far, in all.
  void Sent(absl::Duration now, absl::Duration encoding) {
    if (under_way_++ > 0) return;
    began_ = now;
    encoding_ = encoding;
    if (std::exchange(goes_on_, false)) return;
    bytes_ = 0;
    time_ = absl::ZeroDuration();
  }
  // It is to be sent again, or somebody else answered: this run says nothing.
  void Lost() {
    if (under_way_ > 0) --under_way_;
    is_spoiled_ = under_way_ > 0;
    goes_on_ = false;
    bytes_ = 0;
  }
  // What was measured, once nothing is under way and it was enough to fill the wire: few
  // bytes would only measure how long an answer takes.
  struct Answer {
    size_t bytes = 0;
    bool more_comes = false;  // something is encoded, and goes out next
  };
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
    // What is encoded while earlier blocks travel may hide the wire altogether.
    return Carried{.bytes = bytes_, .time = std::max(time_, kShortest)};
  }

 private:
  static constexpr size_t kEnoughBytes = size_t{256} << 10;
  static constexpr absl::Duration kShortest = absl::Microseconds(1);

  uint32_t under_way_ = 0;
  size_t bytes_ = 0;
  bool is_spoiled_ = false;
  bool goes_on_ = false;  // nothing is under way, and more comes
  absl::Duration began_ = absl::ZeroDuration();
  absl::Duration encoding_ = absl::ZeroDuration();
  absl::Duration time_ = absl::ZeroDuration();  // in which something was under way
};

}  // namespace syncline
