// What arrived on the data plane of a simulated job, beside what had to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/message.h"

namespace syncline::sim {

class Traffic {
 public:
  void Arrived(const MessageHeader& header, size_t payload_bytes) {
    ++messages_;
    // A connection delivers or fails: what one brought may come again by the next alone.
    if (header.kind == static_cast<uint16_t>(MessageKind::kHello)) {
      ++connections_[{header.rank, header.incarnation}];
      return;
    }
    if (payload_bytes == 0) return;
    ++blocks_;
    bytes_ += payload_bytes;
    const Member member = {header.rank, header.incarnation};
    const bool is_of_array = header.kind == static_cast<uint16_t>(MessageKind::kState);
    const bool is_first =
        seen_
            .insert({header.kind, member, connections_[member], header.epoch,
                     header.block, header.step, is_of_array ? header.samples : 0})
            .second;
    if (is_first) necessary_bytes_ += payload_bytes;
  }

  // Of payloads: all, and each seed, contribution and view of a worker once in each epoch and
  // for each time that it connects to a shard.
  uint64_t bytes() const { return bytes_; }
  uint64_t necessary_bytes() const { return necessary_bytes_; }
  uint64_t messages() const { return messages_; }
  uint64_t blocks() const { return blocks_; }  // messages with a payload

  struct Circumstances {
    bool is_async = false;
    bool pulls = false;  // averages and state
    int returns = 0;     // of workers that were away
    int absences = 0;    // of anybody
  };
  // Internal when more arrived than such a run needs.
  absl::Status Check(const Circumstances& run) const {
    // In mode asp the newest views are sent anew, twice: before the end and after it, and to
    // each worker that comes back.
    const double factor = !run.is_async ? 1.1 : run.returns == 0 ? 1.3 : 1.5;
    const double most_bytes = factor * static_cast<double>(necessary_bytes_);
    // Beside each block a question, a note and an acknowledgement; greetings, refusals. Those
    // who are away are greeted and asked all the time.
    const uint64_t most_messages =
        (run.pulls ? 8 : 6) * blocks_ + 200 * (1 + static_cast<uint64_t>(run.absences));
    if (static_cast<double>(bytes_) <= most_bytes && messages_ <= most_messages) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat(
        bytes_, " bytes of blocks arrived, and ", necessary_bytes_, " were necessary; ",
        messages_, " messages, ", blocks_, " of them with blocks"));
  }

 private:
  using Member = std::pair<uint32_t, uint32_t>;  // rank, incarnation

  std::map<Member, uint64_t> connections_;  // so many so far, to all shards
  std::set<std::tuple<uint16_t, Member, uint64_t, uint64_t, uint32_t, uint64_t, uint32_t>>
      seen_;
  uint64_t bytes_ = 0;
  uint64_t necessary_bytes_ = 0;
  uint64_t messages_ = 0;
  uint64_t blocks_ = 0;
};

}  // namespace syncline::sim
