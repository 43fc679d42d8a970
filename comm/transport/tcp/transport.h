// What CreateTcpTransport (tcp.h) makes: all connections of one loop, by one epoll.
//
// Progress() first takes what sockets have, calling receivers; then sends, and last calls
// what is to be told: failures and completed sends. Send and Connect only queue.
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
  void LookAtPaced();
  void MarkDirty(const Shared& connection);
  void Watch(TcpConnection& connection);
  void CheckDeadlines();
  void Remember(TcpConnection& connection);  // its deadline
  void Forget(TcpConnection& connection);    // likewise

  void Broken(const Shared& connection, const absl::Status& status);
  void Refuse(TcpConnection& connection, Refusal refusal, const absl::Status& status);
  // Closes the connection and completes what it still had to send.
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
  std::map<uint64_t, Shared> connections_;  // by age
  Crowd pending_;                           // accepted ones that have proved nothing
  std::set<std::pair<absl::Duration, uint64_t>> deadlines_;
  std::vector<Shared> dirty_;   // have something new to send, or were cut off sending
  std::vector<Shared> unread_;  // were cut off reading
  std::vector<Shared> paced_;   // let their messages wait for room on the way
  TrafficCounts closed_;        // of connections that are closed
  absl::Duration accept_again_ = absl::InfiniteDuration();
  uint64_t shortages_ = 0;

  struct Completion {
    SendDone done;
    absl::Status status;
  };
  std::deque<Completion> completed_;
  std::deque<Shared> failed_;  // their on_failure is still to be called
  std::vector<SendDone> done_;
  std::set<TcpEndpoint*> endpoints_;  // may outlive this
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

  TcpLoopTransport* transport_;  // null once it is gone
  const TcpSecurity security_;
  const std::shared_ptr<TcpConnection> connection_;
};

}  // namespace syncline
