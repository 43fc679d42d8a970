// What arrived on the data plane of a simulated job, beside what had to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>

#include "comm/transport/message.h"

namespace syncline::sim {

class Traffic {
 public:
  void Arrived(const MessageHeader& header, size_t payload_bytes) {
    ++messages_;
    if (payload_bytes == 0) return;
    ++blocks_;
    bytes_ += payload_bytes;
    const bool is_first = seen_
                              .insert({header.kind, header.rank, header.incarnation,
                                       header.block, header.step})
                              .second;
    if (is_first) necessary_bytes_ += payload_bytes;
  }

  // Of payloads: all, and each seed, contribution and view of a worker once.
  uint64_t bytes() const { return bytes_; }
  uint64_t necessary_bytes() const { return necessary_bytes_; }
  uint64_t messages() const { return messages_; }
  uint64_t blocks() const { return blocks_; }  // messages with a payload

 private:
  std::set<std::tuple<uint16_t, uint32_t, uint32_t, uint32_t, uint64_t>> seen_;
  uint64_t bytes_ = 0;
  uint64_t necessary_bytes_ = 0;
  uint64_t messages_ = 0;
  uint64_t blocks_ = 0;
};

}  // namespace syncline::sim
