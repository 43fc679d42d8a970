// Which messages go first where the way to a peer is slow: four classes, and what must
// nevertheless stay in order.
//
//   endpoint.SendAs(Traffic::OfBlock(TrafficClass::kUrgent, block), header, payload, done);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace syncline {

// A message of a class goes before all of the classes behind it, but for a sixteenth of the
// bytes that each of these has (send_queue.h). Part of the wire format, as lanes of a
// connection.
enum class TrafficClass : uint8_t {
  kControl = 0,     // small: hello, pull, acknowledgements, refusals
  kUrgent = 1,      // what the next forward waits for
  kOther = 2,       // other gradients and views
  kBackground = 3,  // copies for backups, averages, optimizer state
};
inline constexpr size_t kTrafficClasses = 4;

// "control", "urgent", "other", "background".
const char* TrafficClassName(TrafficClass traffic_class);

// Bytes of headers and payloads, for each class.
using BytesByClass = std::array<uint64_t, kTrafficClasses>;

// Messages of one flow arrive in the order in which they were sent, whatever their classes:
// one that would overtake joins the class of those of its flow that wait.
struct Traffic {
  static constexpr uint64_t kOneFlow = 0;
  static Traffic OfBlock(TrafficClass traffic_class, uint32_t block) {
    return {traffic_class, uint64_t{block} + 1};
  }

  TrafficClass traffic_class = TrafficClass::kOther;
  uint64_t flow = kOneFlow;
};

// What a transport's connections had to send, those that are closed included.
struct TrafficCounts {
  BytesByClass sent_bytes = {};  // taken by the wire; only growing
  BytesByClass queued_bytes = {};
  // From Send until the wire had the last byte of a message, in all, and of how many
  // messages that is; both only grow.
  std::array<double, kTrafficClasses> waited_seconds = {};
  BytesByClass messages = {};
};

}  // namespace syncline
