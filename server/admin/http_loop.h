// A small HTTP/1.1 server for probes, scrapers and people: GET and HEAD of a fixed set of
// pages, one request a connection.
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
// Thread safety: Start and the destructor belong to one thread; pages are called from the
// loop's two threads.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/unique_fd.h"

namespace syncline {

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
};

struct HttpPage {
  enum class Made {
    kOnLoop,  // at once, ahead of all else: for probes. `make` must not block
    kAside,   // on the second thread
  };
  Made made = Made::kOnLoop;
  std::function<HttpReply()> make;
};

struct HttpLoopOptions {
  std::map<std::string, HttpPage> pages;  // by path
  // Far more than probes, scrapers and people need, and a small part of the descriptors
  // that a process may open.
  size_t max_connections = 128;
  // Of a connection as a whole: half of what Prometheus waits by default.
  absl::Duration deadline = absl::Seconds(5);
  // Nobody has anything to send us but a few headers.
  size_t max_request_bytes = 4096;
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
