// A connection that a worker opened to an engine. Used by the engine's thread only.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/transport/tcp/member_key.h"
#include "comm/transport/transport.h"
#include "server/service/engine.h"

namespace syncline {

// Accepts messages that carry the name which the connection has proved. Any other message
// ends the connection.
class Engine::Connection : public Receiver {
 public:
  Connection(Engine& engine, const MemberIdentity& identity, uint64_t number,
             std::shared_ptr<Endpoint> endpoint)
      : engine_(engine),
        identity_(identity),
        number_(number),
        endpoint_(std::move(endpoint)) {}

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override;
  void OnMessage(ByteView header, Buffer payload) override;

  uint64_t number() const { return number_; }
  const std::shared_ptr<Endpoint>& endpoint() const { return endpoint_; }

 private:
  bool IsOwn(const MessageHeader& header) const;

  Engine& engine_;
  const MemberIdentity identity_;
  const uint64_t number_;
  const std::shared_ptr<Endpoint> endpoint_;
  bool is_impostor_ = false;  // a message carried another name
};

}  // namespace syncline
