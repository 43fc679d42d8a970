// How fast the wire carries contributions: from the first that goes out to the last that
// is acknowledged, without the time that went into encoding meanwhile.
//
//   meter.Sent(now, encoded);
//   if (const auto carried = meter.Acknowledged(bytes, now, encoded)) Tell(*carried);
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

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
    bytes_ = 0;
  }
  // It is to be sent again, or somebody else answered: this run says nothing.
  void Lost() {
    if (under_way_ > 0) --under_way_;
    is_spoiled_ = under_way_ > 0;
    bytes_ = 0;
  }
  // What was measured, once nothing is under way and it was enough to fill the wire: few
  // bytes would only measure how long an answer takes.
  std::optional<Carried> Acknowledged(size_t bytes, absl::Duration now,
                                      absl::Duration encoding) {
    if (under_way_ == 0) return std::nullopt;
    bytes_ += bytes;
    if (--under_way_ > 0) return std::nullopt;
    const absl::Duration time = now - began_ - (encoding - encoding_);
    const bool counts = !is_spoiled_ && bytes_ >= kEnoughBytes;
    is_spoiled_ = false;
    if (!counts) return std::nullopt;
    // What is encoded while earlier blocks travel may hide the wire altogether.
    return Carried{.bytes = bytes_, .time = std::max(time, kShortest)};
  }

 private:
  static constexpr size_t kEnoughBytes = size_t{256} << 10;
  static constexpr absl::Duration kShortest = absl::Microseconds(1);

  uint32_t under_way_ = 0;
  size_t bytes_ = 0;
  bool is_spoiled_ = false;
  absl::Duration began_ = absl::ZeroDuration();
  absl::Duration encoding_ = absl::ZeroDuration();
};

}  // namespace syncline
