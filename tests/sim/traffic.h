// Counts the bytes and messages on the data plane of a simulated job, and those that were
// necessary.
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
    // A connection delivers or fails. So a repetition is allowed only on a new one.
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

  // Return the bytes of all payloads, and of the necessary ones. Each seed, contribution
  // and view of a worker is necessary once per epoch and per connection.
  uint64_t bytes() const { return bytes_; }
  uint64_t necessary_bytes() const { return necessary_bytes_; }
  uint64_t messages() const { return messages_; }
  uint64_t blocks() const { return blocks_; }  // messages with a payload

  struct Circumstances {
    bool is_async = false;
    bool pulls = false;  // workers pull averages and state
    int returns = 0;     // number of times that a worker came back
    int absences = 0;    // number of times that any process was away
  };
  // Fails with Internal if more arrived than such a run needs.
  absl::Status Check(const Circumstances& run) const {
    // In mode asp the newest views are sent two more times, before the end and after it,
    // and once more to each worker that comes back.
    const double factor = !run.is_async ? 1.1 : run.returns == 0 ? 1.3 : 1.5;
    const double most_bytes = factor * static_cast<double>(necessary_bytes_);
    // Each block also has a request, a note and an acknowledgement. There are greetings
    // and refusals. Processes that are away are greeted and asked all the time.
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

  std::map<Member, uint64_t> connections_;  // number so far, to all shards
  std::set<std::tuple<uint16_t, Member, uint64_t, uint64_t, uint32_t, uint64_t, uint32_t>>
      seen_;
  uint64_t bytes_ = 0;
  uint64_t necessary_bytes_ = 0;
  uint64_t messages_ = 0;
  uint64_t blocks_ = 0;
};

}  // namespace syncline::sim
