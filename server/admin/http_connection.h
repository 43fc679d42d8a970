// One connection of an admin port: a socket that never blocks, with TLS or without.
//
//   HttpConnection connection(std::move(socket), std::make_unique<TlsSession>(*identity));
//   if (!connection.Receive(received)) ... it is over ...
//   connection.Send(reply);
//   if (!connection.Flush()) ... it is over ...
//   if (connection.has_unsent()) ... Flush again when the socket takes more ...
//
// Where TLS is spoken, a peer that begins with plain text is heard and answered so, and
// is_plain_text() says it: for probes, and to tell people what to write instead.
//
// Thread safety: belongs to one thread.
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
  // "10.0.0.7" (comm/base/crowd.h); empty once it has gone.
  std::string Source() const;

  // Appends what has come to `received`. False when the peer ended it, or it broke.
  bool Receive(std::string& received);
  // For a peer that has nothing more to say: what comes is dropped unread.
  bool Discard();

  void Send(std::string bytes);
  // False when it broke.
  bool Flush();
  bool has_unsent() const { return !outgoing_.empty() || plain_sent_ < plain_.size(); }
  size_t unsent_bytes() const { return outgoing_.size() + plain_.size() - plain_sent_; }

  // Says that nothing follows; the peer may still read what it has.
  // REQUIRES: !has_unsent()
  void EndSending();

  // TLS is wanted, and the peer speaks plain text.
  bool is_plain_text() const { return wants_tls_ && tls_ == nullptr; }

 private:
  UniqueFd socket_;
  std::unique_ptr<TlsSession> tls_;
  const bool wants_tls_;
  bool is_first_ = true;
  std::string plain_;  // to send
  size_t plain_sent_ = 0;
  std::string outgoing_;  // sealed, or plain_'s turn: what the socket takes next
};

}  // namespace syncline
