// One connection of an admin port: a non-blocking socket, with or without TLS.
//
//   HttpConnection connection(std::move(socket), std::make_unique<TlsSession>(*identity));
//   if (!connection.Receive(received)) ... it is over ...
//   connection.Send(reply);
//   if (!connection.Flush()) ... it is over ...
//   if (connection.has_unsent()) ... Flush again when the socket takes more ...
//
// If TLS is expected and the peer begins with plain text, the connection uses plain text,
// and is_plain_text() returns true. Probes may do that; other readers are told to use
// https.
//
// Thread safety: none; one thread owns it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "comm/base/unique_fd.h"
#include "server/admin/tls_session.h"

namespace syncline {

class HttpConnection {
 public:
  // `tls` is null for plain text.
  HttpConnection(UniqueFd socket, std::unique_ptr<TlsSession> tls);

  int fd() const { return socket_.get(); }
  // Returns the peer's address, such as "10.0.0.7" (comm/base/crowd.h). Empty: it is
  // gone.
  std::string Source() const;

  // Appends the data that has arrived to `received`. Returns false if the connection has
  // ended or failed.
  bool Receive(std::string& received);
  // Drops data that arrives after the request. Returns false as Receive does.
  bool Discard();

  // Adds bytes to send. Flush sends them.
  void Send(std::string bytes);
  // Returns false if the connection has failed.
  bool Flush();
  bool has_unsent() const { return !outgoing_.empty() || plain_sent_ < plain_.size(); }
  size_t unsent_bytes() const { return outgoing_.size() + plain_.size() - plain_sent_; }

  // Ends the sending direction. The peer may still read what was sent. REQUIRES:
  // !has_unsent()
  void EndSending();

  // Returns true if TLS is expected and the peer speaks plain text.
  bool is_plain_text() const { return wants_tls_ && tls_ == nullptr; }

 private:
  UniqueFd socket_;
  std::unique_ptr<TlsSession> tls_;
  const bool wants_tls_;
  bool is_first_ = true;
  std::string plain_;  // to send
  size_t plain_sent_ = 0;
  std::string outgoing_;  // next for the socket: encrypted, or a piece of plain_
};

}  // namespace syncline
