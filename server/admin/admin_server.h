// The admin port of a process, over HTTP or HTTPS, for people, probes and scrapers. All
// processes have GET /metrics (Prometheus text), /livez, /readyz, /status (JSON), and /
// with links to them. On a coordinator, / is the dashboard. It reads /stream, which
// contains the same as /status, /history, /latest and /events.
//
// The port is read-only and shows no secrets. If there is a token, readers must show it
// (server/admin/admin_door.h); probes need none.
//
//   AdminServer admin({.listen = "127.0.0.1:7071", .title = "serve"}, registry, pages);
//   SYNCLINE_RETURN_IF_ERROR(admin.Start());
//   ... admin.address() ...
//   admin.LookAgain();  // each second: reads changed certificates and tokens
//
// Probes are answered whatever else is connected, and however busy the process is
// (server/admin/http_loop.h).
//
// Thread safety: has two threads of its own. `not_ready_because` is called on one of them
// and must not block. The other callbacks are called on the other thread. All must be
// thread-safe. Call Start once; the destructor stops the server. The registry and all
// that the callbacks use must outlive the server.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/base/log.h"
#include "comm/rpc/tls.h"

namespace prometheus {
class Registry;
}

namespace syncline {

class History;

struct AdminOptions {
  std::string listen = "127.0.0.1:7071";  // port 0: a free one
  std::string title = "syncline";         // name of the process on the start page
  bool seals = false;                     // use TLS, with the certificate of `tls`
  TlsOptions tls = {};
  std::string token_file = {};  // what readers must show; empty: nothing
  Logger log = {};
  Logger audit = {};  // logs refused readers
};

struct AdminPages {
  // Returns why the process is not ready, one reason an element: "waiting for worker 3 of
  // 4, 12 s". Empty: ready. Null: always ready.
  std::function<std::vector<std::string>()> not_ready_because;
  // Returns a JSON object. Null: "{}".
  std::function<std::string()> status_json;
  // Called before metrics are read. Null: nothing needs to be updated.
  std::function<void()> refresh_metrics;
  // Figures for the dashboard. Null: this process has no dashboard. Must outlive the
  // server.
  const History* history = nullptr;
  // On a coordinator: returns its events (comm/rpc/event_json.h).
  std::function<std::string()> events_json;
  // On a coordinator: returns what limits the speed of its jobs (advisor.h). Called by
  // one thread at a time.
  std::function<std::string()> advice_json;
};

class AdminServer {
 public:
  AdminServer(AdminOptions options, prometheus::Registry& registry, AdminPages pages);
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  // Listens, and serves in the background. Fails with Failure::kPortInUse, which names
  // the address and the fix, or with Failure::kUsage, which names the flag of the wrong
  // file.
  absl::Status Start();

  // Reads the certificate and the token again if they have changed. Call it after Start,
  // from one thread.
  void LookAgain();

  // REQUIRES: Start has succeeded.
  int port() const;
  std::string address() const;  // host:port

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace syncline
