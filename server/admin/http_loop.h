// A small HTTP/1.1 server for probes, scrapers and people: GET and HEAD of a fixed set of
// pages, one request a connection, in plain text or TLS.
//
//   HttpLoopOptions options;
//   options.pages["/livez"] = {.make = [] { return HttpReply{.body = "alive\n"}; }};
//   SYNCLINE_ASSIGN_OR_RETURN(auto loop, HttpLoop::Start(std::move(listener), options));
//
// Whatever else is connected, a page of the loop answers at once: one thread waits for
// all connections, none of them can block it, each has one deadline from its acceptance
// to the last byte of its reply, and there are never more than `max_connections`, of
// which the oldest gives way to a new one. Pages that take longer are made on a second
// thread, one at a time, each once for all that asked before it was begun.
//
// A page may be a stream, which goes on after its first part: each further one is made once
// for all readers. One that still takes the last part gets no other, and is cut off when
// that lasts longer than `deadline`; so is one whom `judge` does not let in any more.
//
// Thread safety: Start and the destructor belong to one thread; pages are called from the
// loop's two threads, `new_session` and `judge` from the loop's.
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
    kGuarded,  // `judge` says who may read it, and where there is TLS only by TLS
    kOpen,     // for anybody
    kProbe,    // for anybody, also in plain text where there is TLS
  };
  enum class Made {
    kOnLoop,  // at once, ahead of all else: for probes. `make` must not block
    kAside,   // on the second thread
  };
  Made made = Made::kOnLoop;
  std::function<HttpReply()> make;
  // Of a stream: what follows the body of `make`, each `stream_period`, as its body. Made
  // aside, as `make` must be. At most one page has it.
  std::function<HttpReply()> next = nullptr;
  Door door = Door::kGuarded;
};

struct HttpLoopOptions {
  std::map<std::string, HttpPage> pages;  // by path
  // Of a connection; null, or unset: plain text. Must not block, as `judge`.
  std::function<std::unique_ptr<TlsSession>()> new_session = nullptr;
  // What answers in place of a page that is guarded, or of one that is not there; nullopt:
  // who asks may read. Unset: anybody may. The one that may answer a POST.
  std::function<std::optional<HttpReply>(const HttpRequest&)> judge = nullptr;
  // Far more than probes, scrapers and people need, and a small part of the descriptors
  // that a process may open.
  size_t max_connections = 128;
  // Of those that read a stream, which are no others' and give way to nobody.
  size_t max_streams = 32;
  absl::Duration stream_period = absl::Seconds(1);
  // When nothing is made for so long, readers get a comment: proxies end what is silent.
  absl::Duration stream_silence = absl::Seconds(15);
  // Of a connection as a whole: half of what Prometheus waits by default.
  absl::Duration deadline = absl::Seconds(5);
  // Nobody has anything to send us but a few headers; browsers send those cookies, too,
  // that other ports of the host have given them.
  size_t max_request_bytes = 8192;
};

class HttpLoop {
 public:
  // `listener` listens already.
  static absl::StatusOr<std::unique_ptr<HttpLoop>> Start(UniqueFd listener,
                                                         HttpLoopOptions options);
  virtual ~HttpLoop() = default;  // closes all connections, waits for a page being made

 protected:
  HttpLoop() = default;
};

}  // namespace syncline
