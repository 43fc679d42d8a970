// The implementation of CreateTcpTransport (tcp.h): all connections of one loop, with one
// epoll descriptor.
//
// Progress() first reads from sockets and calls receivers. Then it sends, and last it
// calls the callbacks of failures and completed sends. Send and Connect only queue.
//
// Thread safety: see comm/transport/transport.h.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/base/crowd.h"
#include "comm/base/env.h"
#include "comm/base/unique_fd.h"
#include "comm/transport/tcp/address.h"
#include "comm/transport/tcp/connection.h"
#include "comm/transport/tcp/tcp.h"
#include "comm/transport/tcp/tls_channel.h"

namespace syncline {

class TcpEndpoint;

class TcpLoopTransport final : public TcpTransport {
 public:
  TcpLoopTransport(const TcpOptions& options, Receiver& receiver);
  ~TcpLoopTransport() override;
  absl::Status Open();

  const std::string& address() const override { return address_; }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const std::string& address,
                                                    ConnectOptions options) override;
  int Progress() override;
  void Wait(absl::Duration timeout) override;
  void Wake() override;
  int fd() const override { return epoll_.get(); }
  absl::Duration MaySleep() const override;
  bool HasUnsent() const override;
  TrafficCounts traffic() const override;

 private:
  friend class TcpEndpoint;
  using Shared = std::shared_ptr<TcpConnection>;

  absl::Status Listen();
  Shared Add(UniqueFd fd, TcpConnection::Side side, const std::string& peer);
  std::unique_ptr<Channel> MakeChannel(TcpConnection::Side side, int fd,
                                       const PeerKey& key);
  std::unique_ptr<Endpoint> FailedEndpoint(const SocketAddress& there,
                                           ConnectOptions options,
                                           const absl::Status& status);

  void Accept();
  void TakeIn(UniqueFd fd, const SocketAddress& peer);
  void MakeRoom();
  void PauseAccepting();
  void Serve(const Shared& connection);
  void BeginOn(const Shared& connection);
  void Opened(const Shared& connection);
  void ReadFrom(const Shared& connection);
  void WriteTo(const Shared& connection);
  void ReadTheRest(const Shared& connection, const absl::Status& why);
  void WriteAll();
  void SendPaced();
  void MarkDirty(const Shared& connection);
  void Watch(TcpConnection& connection);
  void CheckDeadlines();
  void Forget(TcpConnection& connection);  // removes its deadline

  void Broken(const Shared& connection, const absl::Status& status);
  void Refuse(TcpConnection& connection, Refusal refusal, const absl::Status& status);
  // Closes the connection and completes its unsent messages with `status`.
  void Close(TcpConnection& connection, const absl::Status& status);
  void Complete(SendDone done, const absl::Status& status);
  int RunCallbacks();

  const SteadyClock own_clock_;
  TcpOptions options_;
  Receiver& receiver_;
  const Clock& clock_;
  std::string address_;
  UniqueFd epoll_, wake_, listener_;
  std::unique_ptr<TlsContext> tls_;  // null for kPlain

  uint64_t next_id_;
  std::map<uint64_t, Shared> connections_;  // by id, so the oldest is first
  Crowd pending_;                           // accepted connections in their handshake
  std::set<std::pair<absl::Duration, uint64_t>> deadlines_;
  // Have something new to send, or stopped sending in the middle.
  std::vector<Shared> dirty_;
  std::vector<Shared> unread_;  // stopped reading in the middle
  std::vector<Shared> paced_;   // their messages wait for room in the window
  TrafficCounts closed_;        // totals of closed connections
  absl::Duration accept_again_ = absl::InfiniteDuration();
  uint64_t shortages_ = 0;

  struct Completion {
    SendDone done;
    absl::Status status;
  };
  std::deque<Completion> completed_;
  std::deque<Shared> failed_;  // their on_failure must still be called
  std::vector<SendDone> done_;
  std::set<TcpEndpoint*> endpoints_;  // they may outlive the transport
};

// An endpoint is one end of a connection. It may outlive the transport.
class TcpEndpoint final : public Endpoint {
 public:
  TcpEndpoint(TcpLoopTransport& transport, std::shared_ptr<TcpConnection> connection);
  ~TcpEndpoint() override;

  void Send(ByteView header, Payload payload, SendDone done) override {
    SendAs({}, header, std::move(payload), std::move(done));
  }
  void SendAs(const Traffic& traffic, ByteView header, Payload payload,
              SendDone done) override;
  SendState send_state() const override { return connection_->send_state(); }
  uint64_t received_bytes() const override { return connection_->received_bytes(); }
  bool IsLocal() const override { return false; }
  bool IsIntact() const override;
  bool IsTwoWay() const override { return true; }
  std::string Describe() const override;

 private:
  friend class TcpLoopTransport;

  TcpLoopTransport* transport_;  // null once the transport is gone
  const TcpSecurity security_;
  const std::shared_ptr<TcpConnection> connection_;
};

}  // namespace syncline
