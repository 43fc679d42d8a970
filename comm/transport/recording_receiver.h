// A Receiver that records what arrives, for tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/transport/transport.h"

namespace syncline {

// Refuses messages whose header begins with 'x'.
class RecordingReceiver : public Receiver {
 public:
  struct Message {
    std::string header;
    Buffer payload;
  };

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override {
    allocated_bytes += payload_bytes;
    if (!header.empty() && header[0] == std::byte{'x'}) {
      ++refused;
      return absl::PermissionDeniedError("refused by the test");
    }
    return Buffer::Allocate(payload_bytes);
  }

  void OnMessage(ByteView header, Buffer payload) override {
    messages.push_back(
        {std::string(reinterpret_cast<const char*>(header.data()), header.size()),
         payload});
    if (on_message) on_message(messages.back());
  }

  std::vector<Message> messages;
  std::function<void(const Message&)> on_message;
  size_t allocated_bytes = 0;
  int refused = 0;
};

}  // namespace syncline
