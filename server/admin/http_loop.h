// A small HTTP/1.1 server for probes, scrapers and people. It answers GET and HEAD for a
// fixed set of pages, one request a connection, in plain text or TLS.
//
//   HttpLoopOptions options;
//   options.pages["/livez"] = {.make = [] { return HttpReply{.body = "alive\n"}; }};
//   SYNCLINE_ASSIGN_OR_RETURN(auto loop, HttpLoop::Start(std::move(listener), options));
//
// Pages made on the loop are answered at once, whatever else is connected. One thread
// waits for all connections, and none of them can block it. Each connection has one
// deadline for the whole time from its acceptance to the last byte of its reply. There
// are at most `max_connections`; a new one closes the oldest. Slower pages are made on a
// second thread, one at a time. All requests that came before a page was begun share it.
//
// A page may be a stream. Each part after the first one is made once for all its readers.
// A reader that has not received the previous part gets no new one, and is disconnected
// after `deadline`. A reader is also disconnected when `judge` no longer admits it.
//
// Thread safety: one thread must call Start and the destructor. Pages are called on the
// two threads of the loop, `new_session` and `judge` on the loop's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/unique_fd.h"
#include "server/admin/http_reply.h"
#include "server/admin/http_request.h"
#include "server/admin/tls_session.h"

namespace syncline {

struct HttpPage {
  enum class Door {
    kGuarded,  // judged by `judge`; if the port has TLS, only over TLS
    kOpen,     // for everybody
    kProbe,    // for everybody, in plain text too if the port has TLS
  };
  enum class Made {
    kOnLoop,          // at once, before all else: for probes; `make` must not block
    kOnSecondThread,  // on the second thread
  };
  Made made = Made::kOnLoop;
  std::function<HttpReply()> make;
  // For a stream: makes the parts that follow the body of `make`, one each
  // `stream_period`. REQUIRES: `made` is kOnSecondThread, and no other page has `next`.
  std::function<HttpReply()> next = nullptr;
  Door door = Door::kGuarded;
};

struct HttpLoopOptions {
  std::map<std::string, HttpPage> pages;  // by path
  // Makes the TLS session of a connection. Null, or a null result: plain text. Must not
  // block, as `judge` must not.
  std::function<std::unique_ptr<TlsSession>()> new_session = nullptr;
  // Returns the reply that replaces a guarded or missing page. Returns nullopt if the
  // reader may have the page. Null: everybody may. Only this function may answer a POST.
  std::function<std::optional<HttpReply>(const HttpRequest&)> judge = nullptr;
  // Far more than probes, scrapers and people need, and few of the descriptors that a
  // process may open.
  size_t max_connections = 128;
  // Limit of connections that read a stream. They are counted separately and are never
  // closed to make room.
  size_t max_streams = 32;
  absl::Duration stream_period = absl::Seconds(1);
  // If nothing is made for this long, readers get a comment, because proxies close silent
  // connections.
  absl::Duration stream_silence = absl::Seconds(15);
  // For a connection as a whole. Half of what Prometheus waits by default.
  absl::Duration deadline = absl::Seconds(5);
  // Peers send only a few headers. Browsers add the cookies of all other ports of the
  // host.
  size_t max_request_bytes = 8192;
};

class HttpLoop {
 public:
  // REQUIRES: `listener` is listening.
  static absl::StatusOr<std::unique_ptr<HttpLoop>> Start(UniqueFd listener,
                                                         HttpLoopOptions options);
  // Closes all connections, and waits for a page that is being made.
  virtual ~HttpLoop() = default;

 protected:
  HttpLoop() = default;
};

}  // namespace syncline
