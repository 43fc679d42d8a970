// Traffic says which messages go first on a slow connection, and which must nevertheless
// stay in order. There are four classes of messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace syncline {

// Messages of a class go before those of later classes, except for a sixteenth of the
// bytes, which each later class gets (send_queue.h). The values are part of the wire
// format: they number the lanes of a connection.
enum class TrafficClass : uint8_t {
  kControl = 0,     // small: hello, pull, acknowledgements, refusals
  kUrgent = 1,      // what the next forward pass waits for
  kOther = 2,       // other gradients and views
  kBackground = 3,  // copies for backups, averages, optimizer state
};
inline constexpr size_t kTrafficClasses = 4;

// Returns "control", "urgent", "other" or "background".
const char* TrafficClassName(TrafficClass traffic_class);

// Bytes of headers and payloads, for each class.
using BytesByClass = std::array<uint64_t, kTrafficClasses>;

// The class and the flow of a message. Messages of one flow arrive in the order in which
// they were sent, even if their classes differ: a message that would overtake waiting
// messages of its flow is sent with their class.
struct Traffic {
  static constexpr uint64_t kOneFlow = 0;
  static Traffic OfBlock(TrafficClass traffic_class, uint32_t block) {
    return {traffic_class, uint64_t{block} + 1};
  }

  TrafficClass traffic_class = TrafficClass::kOther;
  uint64_t flow = kOneFlow;
};

// Totals of all connections of a transport, closed ones included.
struct TrafficCounts {
  BytesByClass sent_bytes = {};  // accepted by the network; never decreases
  BytesByClass queued_bytes = {};
  // Sum of the times from Send until the network accepted the last byte of a message, and
  // the number of these messages. Both never decrease.
  std::array<double, kTrafficClasses> waited_seconds = {};
  BytesByClass messages = {};
};

}  // namespace syncline
