// A TCP relay in this process, which can break and stall real streams. Clients connect to
// address() instead of the server.
//
//   Relay relay(server.address);
//   relay.Break();       // resets every connection; new ones work
//   relay.Stall();       // the present connections carry nothing any more; new ones work
//   relay.Refuse(true);  // new connections are reset at once
//
// Thread safety: any thread. It has one thread that accepts, and two for each connection.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/check.h"
#include "comm/rpc/address.h"

namespace syncline {

class Relay {
 public:
  explicit Relay(const std::string& target) : port_(ParseHostPort(target)->port) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in any = Loopback(0);
    SYNCLINE_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0);
    SYNCLINE_CHECK(listen(listener_, 64) == 0);
    socklen_t size = sizeof(any);
    SYNCLINE_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&any), &size) == 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(any.sin_port));
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~Relay() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    close(listener_);
    Break();
    for (const auto& connection : connections_) {
      for (std::thread& pump : connection->pumps) pump.join();
      for (const int fd : connection->fds) close(fd);
    }
  }

  const std::string& address() const { return address_; }

  void Break() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (const auto& connection : connections_) {
      connection->stalled = false;
      for (const int fd : connection->fds) shutdown(fd, SHUT_RDWR);
    }
  }
  void Stall() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (const auto& connection : connections_) connection->stalled = true;
  }
  void Refuse(bool refuse) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    refuses_ = refuse;
  }
  size_t connections() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return connections_.size();
  }

 private:
  struct Connection {
    std::array<int, 2> fds = {};
    bool stalled = false;  // under mutex_
    std::array<std::thread, 2> pumps;
  };

  static sockaddr_in Loopback(uint16_t port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }

  void Accept() ABSL_LOCKS_EXCLUDED(mutex_) {
    for (;;) {
      const int from = accept(listener_, nullptr, nullptr);
      if (from < 0) return;
      const int to = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in target = Loopback(port_);
      const bool is_up =
          connect(to, reinterpret_cast<sockaddr*>(&target), sizeof(target)) == 0;
      absl::MutexLock lock(&mutex_);
      if (!is_up || refuses_) {
        close(from);
        close(to);
        continue;
      }
      connections_.push_back(std::make_unique<Connection>());
      Connection& connection = *connections_.back();
      connection.fds = {from, to};
      for (size_t i : {0, 1}) {
        connection.pumps[i] = std::thread([this, &connection, i] {
          Pump(connection, connection.fds[i], connection.fds[1 - i]);
        });
      }
    }
  }

  void Pump(const Connection& connection, int from, int to) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::array<char, 65536> buffer;
    for (;;) {
      const ssize_t got = recv(from, buffer.data(), buffer.size(), 0);
      {
        absl::MutexLock lock(&mutex_);
        const auto flows = [&connection] { return !connection.stalled; };
        mutex_.Await(absl::Condition(&flows));
      }
      if (got <= 0) break;
      for (ssize_t done = 0; done < got;) {
        const ssize_t sent =
            send(to, buffer.data() + done, static_cast<size_t>(got - done), MSG_NOSIGNAL);
        if (sent <= 0) return;
        done += sent;
      }
    }
    shutdown(to, SHUT_WR);
  }

  const uint16_t port_;
  int listener_ = -1;
  std::string address_;
  absl::Mutex mutex_;
  bool refuses_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Connection>> connections_;  // grows under mutex_
  std::thread acceptor_;
};

}  // namespace syncline
