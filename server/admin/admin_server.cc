#include "server/admin/admin_server.h"

#include <sys/socket.h>

#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "httplib.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace syncline {
namespace {

// One scrape, one probe and one person at a time is what an admin port sees.
constexpr size_t kThreads = 3;
constexpr time_t kTimeoutSeconds = 5;
// Nobody has anything to send us.
constexpr size_t kMaxRequestBytes = 4096;

constexpr char kText[] = "text/plain; charset=utf-8";
constexpr char kPrometheusText[] = "text/plain; version=0.0.4; charset=utf-8";

std::string Links(const std::string& title) {
  std::string page =
      absl::StrCat("<!doctype html><title>", title, "</title><h1>Syncline: ", title,
                   "</h1><p>Version ", SYNCLINE_VERSION, "</p><ul>");
  const std::pair<const char*, const char*> links[] = {
      {"/status", "jobs, members and servers as JSON"},
      {"/metrics", "for Prometheus"},
      {"/readyz", "whether it is ready, and if not, why"},
      {"/livez", "whether it is alive"}};
  for (const auto& [path, what] : links) {
    absl::StrAppend(&page, "<li><a href=\"", path, "\">", path, "</a>: ", what, "</li>");
  }
  return page + "</ul>\n";
}

}  // namespace

class AdminServer::Impl {
 public:
  Impl(AdminOptions options, prometheus::Registry& registry, AdminPages pages)
      : options_(std::move(options)), registry_(registry), pages_(std::move(pages)) {}

  ~Impl() {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  absl::Status Start() {
    SYNCLINE_ASSIGN_OR_RETURN(address_, ParseHostPort(options_.listen));
    SYNCLINE_RETURN_IF_ERROR(CheckCanListen(address_));
    Configure();
    AddPages();
    if (address_.port == 0) {
      const int port = server_.bind_to_any_port(address_.host);
      if (port <= 0) return CannotListen();
      address_.port = static_cast<uint16_t>(port);
    } else if (!server_.bind_to_port(address_.host, address_.port)) {
      return CannotListen();
    }
    // stop() before the loop runs would be lost, so Start returns only when it does.
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
    return absl::OkStatus();
  }

  const HostPort& address() const { return address_; }

 private:
  absl::Status CannotListen() const {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address_.ToString(),
                                               "; choose another --admin-listen"));
  }

  void Configure() {
    // httplib's default, SO_REUSEPORT, lets two processes share the port without an
    // error.
    server_.set_socket_options([](socket_t socket) {
      const int on = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.set_read_timeout(kTimeoutSeconds);
    server_.set_write_timeout(kTimeoutSeconds);
    // An idle connection holds one of the threads.
    server_.set_keep_alive_timeout(1);
    server_.set_payload_max_length(kMaxRequestBytes);
  }

  void AddPages() {
    using httplib::Request;
    using httplib::Response;
    server_.Get("/", [this](const Request&, Response& response) {
      response.set_content(Links(options_.title), "text/html; charset=utf-8");
    });
    server_.Get("/livez", [](const Request&, Response& response) {
      response.set_content("alive\n", kText);
    });
    server_.Get("/readyz",
                [this](const Request&, Response& response) { Readyz(response); });
    server_.Get("/metrics", [this](const Request&, Response& response) {
      std::ostringstream text;
      prometheus::TextSerializer().Serialize(text, registry_.Collect());
      response.set_content(text.str(), kPrometheusText);
    });
    server_.Get("/status", [this](const Request&, Response& response) {
      response.set_content(pages_.status_json ? pages_.status_json() : "{}",
                           "application/json");
    });
    server_.set_error_handler([](const Request& request, Response& response) {
      if (!response.body.empty()) return;
      response.set_content(absl::StrCat("no page ", request.path, "; see /\n"), kText);
    });
  }

  void Readyz(httplib::Response& response) const {
    std::vector<std::string> reasons;
    if (pages_.not_ready_because) reasons = pages_.not_ready_because();
    if (reasons.empty()) {
      response.set_content("ready\n", kText);
      return;
    }
    response.status = 503;
    response.set_content(absl::StrCat(absl::StrJoin(reasons, "\n"), "\n"), kText);
  }

  const AdminOptions options_;
  prometheus::Registry& registry_;
  const AdminPages pages_;
  HostPort address_;
  httplib::Server server_;
  std::thread thread_;
};

AdminServer::AdminServer(AdminOptions options, prometheus::Registry& registry,
                         AdminPages pages)
    : impl_(std::make_unique<Impl>(std::move(options), registry, std::move(pages))) {}

AdminServer::~AdminServer() = default;

absl::Status AdminServer::Start() { return impl_->Start(); }
int AdminServer::port() const { return impl_->address().port; }
std::string AdminServer::address() const { return impl_->address().ToString(); }

}  // namespace syncline
