// Shared by tests of the TCP transport. For tests only.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "comm/transport/recording_receiver.h"
#include "comm/transport/tcp/tcp.h"

namespace syncline {

inline SecretKey KeyOf(int number) {
  std::array<std::byte, SecretKey::kBytes> bytes;
  bytes.fill(static_cast<std::byte>(number));
  return *SecretKey::From(bytes);
}

inline PeerKey Alice() { return {"alice", KeyOf(1)}; }

// Accepts peers whose keys it has, and keeps all connections.
class RecordingAcceptor : public Acceptor {
 public:
  explicit RecordingAcceptor(RecordingReceiver& receiver) : receiver_(receiver) {
    keys["alice"] = KeyOf(1);
  }

  const SecretKey* FindKey(std::string_view identity) override {
    const auto found = keys.find(std::string(identity));
    return found == keys.end() ? nullptr : &found->second;
  }

  ConnectOptions OnAccepted(const std::string& identity,
                            std::unique_ptr<Endpoint> endpoint) override {
    identities.push_back(identity);
    endpoints.push_back(std::move(endpoint));
    return {.on_failure = [this](const absl::Status& status) { ended.push_back(status); },
            .receiver = &receiver_};
  }

  void OnRefused(const RefusedPeer& peer) override {
    ++refused[peer.refusal];
    last_refused = peer;
  }

  std::map<std::string, SecretKey> keys;
  std::vector<std::string> identities;
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  std::vector<absl::Status> ended;
  std::map<Refusal, int> refused;
  RefusedPeer last_refused;

 private:
  RecordingReceiver& receiver_;
};

// A transport that listens on this host, with its receiver and acceptor.
struct TcpNode {
  explicit TcpNode(TcpOptions options) : acceptor(receiver) {
    options.listen_host = "127.0.0.1";
    options.acceptor = &acceptor;
    auto created = CreateTcpTransport(options, receiver);
    transport = *std::move(created);
  }

  std::unique_ptr<Endpoint> Dial(const std::string& address,
                                 ConnectOptions connect = {}) {
    if (connect.key.identity.empty()) connect.key = Alice();
    return *transport->Connect(address, std::move(connect));
  }

  RecordingReceiver receiver;
  RecordingAcceptor acceptor;
  std::unique_ptr<TcpTransport> transport;
};

// Calls `pump` until `done`, for at most 20 s. Returns false if the time ran out.
inline bool RunUntil(const std::function<void()>& pump,
                     const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!done()) {
    if (absl::Now() > deadline) return false;
    pump();
  }
  return true;
}

}  // namespace syncline
