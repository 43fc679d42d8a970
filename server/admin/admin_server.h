// The admin port of a process, by HTTP or HTTPS: GET /metrics (Prometheus text), /livez, /readyz, /status
// (JSON) and / with links to them; of a coordinator / is the dashboard, which reads
// /status, /history, /latest and /events, or has it all told by /stream. Read-only, no secrets, for people, probes and scrapers,
// who show a token where there is one (server/admin/admin_door.h); probes need none.
//
//   AdminServer admin({.listen = "127.0.0.1:7071", .title = "serve"}, registry, pages);
//   SYNCLINE_RETURN_IF_ERROR(admin.Start());
//   ... admin.address() ...
//   admin.LookAgain();  // each second: certificates and token may have changed
//
// Probes answer whatever else is connected and however busy the process is
// (server/admin/http_loop.h). Runs two threads of its own: `not_ready_because` is called
// from one and must not block, `status_json` from the other; both must be thread-safe.
// Start once; the destructor stops. Registry and what the callbacks use are borrowed and
// must outlive the server.
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
  std::string listen = "127.0.0.1:7071";  // port 0 takes a free one
  std::string title = "syncline";         // what the start page says this process is
  bool seals = false;                     // speaks TLS, with the certificate of `tls`
  TlsOptions tls = {};
  std::string token_file = {};  // what readers must show; empty: anybody may read
  Logger log = {};
  Logger audit = {};  // whom it refused
};

struct AdminPages {
  // Why the process is not ready yet, one reason an element: "waiting for worker 3 of 4,
  // 12 s". Empty means ready. Unset means always ready.
  std::function<std::vector<std::string>()> not_ready_because;
  // A JSON object. Unset means "{}".
  std::function<std::string()> status_json;
  // Called before metrics are read. Unset: they are as they should be.
  std::function<void()> refresh_metrics;
  // What the dashboard shows besides; null: this process has none. Outlives the server.
  const History* history = nullptr;
  // Of a coordinator: what happened (comm/rpc/event_json.h).
  std::function<std::string()> events_json;
  // Of a coordinator: what its jobs are bound by (advisor.h). Called by one thread at a time.
  std::function<std::string()> advice_json;
};

class AdminServer {
 public:
  AdminServer(AdminOptions options, prometheus::Registry& registry, AdminPages pages);
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  // Listens and serves in the background. Failure::kPortInUse names the address and the
  // fix, Failure::kUsage the flag of a file that is wrong.
  absl::Status Start();

  // After Start, from one thread: reads certificate and token again if they have changed.
  void LookAgain();

  // After Start.
  int port() const;
  std::string address() const;  // host:port

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace syncline
