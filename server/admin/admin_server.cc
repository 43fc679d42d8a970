#include "server/admin/admin_server.h"

#include <cstdint>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/admin/admin_door.h"
#include "server/admin/dashboard/files.h"
#include "server/admin/history.h"
#include "server/admin/http_loop.h"

namespace syncline {
namespace {

constexpr char kPrometheusText[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kHtml[] = "text/html; charset=utf-8";

HttpReply Json(std::string body) {
  return {.type = "application/json", .body = std::move(body)};
}

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

  absl::Status Start() {
    SYNCLINE_ASSIGN_OR_RETURN(door_, OpenDoor());
    SYNCLINE_ASSIGN_OR_RETURN(address_, ParseHostPort(options_.listen));
    SYNCLINE_ASSIGN_OR_RETURN(UniqueFd listener, Listen(address_));
    SYNCLINE_ASSIGN_OR_RETURN(loop_, HttpLoop::Start(std::move(listener), Pages()));
    return absl::OkStatus();
  }

  void LookAgain() { door_->LookAgain(); }

  const HostPort& address() const { return address_; }

 private:
  absl::StatusOr<std::unique_ptr<AdminDoor>> OpenDoor() const {
    AdminDoorOptions options = {.seals = options_.seals,
                                .tls = options_.tls,
                                .token_file = options_.token_file,
                                .log = options_.log,
                                .audit = options_.audit};
    if (!options_.token_file.empty()) {
      // The same family as for the other doors, whichever is created first.
      prometheus::Counter* refused =
          &prometheus::BuildCounter()
               .Name("syncline_auth_refused_total")
               .Help(
                   "Peers turned away before they had proved who they are, for what they "
                   "sent, or for their role.")
               .Register(registry_)
               .Add({{"door", "admin"}, {"reason", "token"}});
      options.on_refused = [refused] { refused->Increment(); };
    }
    return AdminDoor::Open(std::move(options));
  }

  HttpLoopOptions Pages() {
    HttpLoopOptions options;
    options.new_session = [this] { return door_->NewSession(); };
    options.judge = [this](const HttpRequest& request) { return door_->Judge(request); };
    const auto on_loop = [&](const char* path, auto make,
                             HttpPage::Door door = HttpPage::Door::kGuarded) {
      options.pages[path] = {
          .made = HttpPage::Made::kOnLoop, .make = std::move(make), .door = door};
    };
    const auto aside = [&](const char* path, auto make) {
      options.pages[path] = {.made = HttpPage::Made::kOnSecondThread,
                             .make = std::move(make)};
    };
    on_loop(
        "/livez", [] { return HttpReply{.body = "alive\n"}; }, HttpPage::Door::kProbe);
    on_loop(
        "/readyz", [this] { return Readyz(); }, HttpPage::Door::kProbe);
    if (pages_.history == nullptr) {
      on_loop("/",
              [this] { return HttpReply{.type = kHtml, .body = Links(options_.title)}; });
    } else {
      for (const DashboardFile& file : DashboardFiles()) {
        // The login form uses the style of the dashboard, so it needs no token.
        const bool is_style = std::string_view(file.path).ends_with(".css");
        on_loop(
            file.path,
            [file] {
              return HttpReply{.type = file.type, .body = std::string(file.content)};
            },
            is_style ? HttpPage::Door::kOpen : HttpPage::Door::kGuarded);
      }
      aside("/history",
            [this] { return Json(pages_.history->FiguresJson(History::Span::kAll)); });
      aside("/latest",
            [this] { return Json(pages_.history->FiguresJson(History::Span::kLatest)); });
      aside("/events", [this] { return Json(Events()); });
      aside("/advice", [this] { return Json(Advice()); });
      options.pages["/stream"] = {.made = HttpPage::Made::kOnSecondThread,
                                  .make = [this] { return StreamBegin(); },
                                  .next = [this] { return StreamPart(); }};
    }
    aside("/metrics", [this] {
      if (pages_.refresh_metrics) pages_.refresh_metrics();
      std::ostringstream text;
      prometheus::TextSerializer().Serialize(text, registry_.Collect());
      return HttpReply{.type = kPrometheusText, .body = text.str()};
    });
    aside("/status", [this] { return Json(Status()); });
    return options;
  }

  std::string Status() const { return pages_.status_json ? pages_.status_json() : "{}"; }
  std::string Advice() const { return pages_.advice_json ? pages_.advice_json() : "{}"; }
  std::string Events() const {
    return pages_.events_json ? pages_.events_json() : R"({"events":[]})";
  }

  // Sends everything, so that a reader may return after any interruption. The status is
  // last: a reader that has it has everything.
  HttpReply StreamBegin() const {
    return {.body = absl::StrCat(
                StreamEvent("history", pages_.history->FiguresJson(History::Span::kAll)),
                StreamEvent("events", Events()), StreamEvent("advice", Advice()),
                StreamEvent("status", Status()))};
  }

  // Called on the thread that makes pages.
  HttpReply StreamPart() {
    constexpr uint64_t kAdviceEvery = 5;  // parts; there is one each second
    const bool has_advice = ++stream_parts_ % kAdviceEvery == 0;
    return {.body = absl::StrCat(StreamEvent("latest", pages_.history->FiguresJson(
                                                           History::Span::kLatest)),
                                 has_advice ? StreamEvent("advice", Advice()) : "",
                                 StreamEvent("status", Status()))};
  }

  HttpReply Readyz() const {
    std::vector<std::string> reasons;
    if (pages_.not_ready_because) reasons = pages_.not_ready_because();
    if (reasons.empty()) return {.body = "ready\n"};
    return {.status = 503, .body = absl::StrCat(absl::StrJoin(reasons, "\n"), "\n")};
  }

  const AdminOptions options_;
  prometheus::Registry& registry_;
  const AdminPages pages_;
  HostPort address_;
  uint64_t stream_parts_ = 0;
  std::unique_ptr<AdminDoor> door_;
  std::unique_ptr<HttpLoop> loop_;
};

AdminServer::AdminServer(AdminOptions options, prometheus::Registry& registry,
                         AdminPages pages)
    : impl_(std::make_unique<Impl>(std::move(options), registry, std::move(pages))) {}

AdminServer::~AdminServer() = default;

absl::Status AdminServer::Start() { return impl_->Start(); }
void AdminServer::LookAgain() { impl_->LookAgain(); }
int AdminServer::port() const { return impl_->address().port; }
std::string AdminServer::address() const { return impl_->address().ToString(); }

}  // namespace syncline
