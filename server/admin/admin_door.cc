#include "server/admin/admin_door.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr char kWrongToken[] = "The token is wrong.";
constexpr char kHtml[] = "text/html; charset=utf-8";

// Uses the style of the dashboard. The port of a server has no style sheet, and shows a
// plain form.
std::string LoginPage(std::string_view complaint) {
  return absl::StrCat(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>Syncline: log in</title><link rel=\"icon\" href=\"data:,\">"
      "<link rel=\"stylesheet\" href=\"/dashboard.css\"></head>"
      "<body class=\"login\"><main><h1>Syncline</h1>"
      "<form method=\"post\" action=\"/login\"><label for=\"token\">Read token</label>"
      "<input id=\"token\" name=\"token\" type=\"password\" "
      "autocomplete=\"current-password\" required autofocus>"
      "<button>Log in</button></form><p>It is in the file of <code>--admin-token-file"
      "</code>.</p><p role=\"alert\">",
      std::string(complaint), "</p></main></body></html>\n");
}

HttpReply LoginForm(std::string_view complaint) {
  return {.status = 401,
          .type = kHtml,
          .body = LoginPage(complaint),
          .headers = {"WWW-Authenticate: Bearer realm=\"syncline\""}};
}

HttpReply Refusal(std::string_view complaint) {
  return {.status = 401,
          .body = absl::StrCat(
              std::string(complaint),
              ": send the header 'Authorization: Bearer TOKEN', with what the file of "
              "--admin-token-file holds; browsers log in at /login\n"),
          .headers = {"WWW-Authenticate: Bearer realm=\"syncline\""}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdminDoor>> AdminDoor::Open(AdminDoorOptions options) {
  std::unique_ptr<AdminDoor> door(new AdminDoor(std::move(options)));
  const AdminDoorOptions& is = door->options_;
  // Noted before the files are read, so that a later change is found by LookAgain.
  door->seen_identity_ = Look(is.tls.cert_file) + Look(is.tls.key_file);
  door->seen_token_ = Look(is.token_file);
  absl::MutexLock lock(&door->mutex_);
  if (is.seals) {
    SYNCLINE_ASSIGN_OR_RETURN(door->identity_, TlsIdentity::Load(is.tls));
  }
  if (!is.token_file.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(door->token_, door->ReadTokenFile());
  }
  return door;
}

std::string AdminDoor::Look(const std::string& path) {
  struct stat file = {};
  if (path.empty() || stat(path.c_str(), &file) != 0) return absl::StrCat("no;");
  return absl::StrCat(file.st_dev, ",", file.st_ino, ",", file.st_size, ",",
                      file.st_mtim.tv_sec, ",", file.st_mtim.tv_nsec, ";");
}

absl::StatusOr<ReadToken> AdminDoor::ReadTokenFile() const {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string contents,
                            ReadTlsFile(options_.token_file, "--admin-token-file"));
  absl::StatusOr<ReadToken> token = ReadToken::Parse(contents);
  if (token.ok()) return token;
  return WithFailure(absl::InvalidArgumentError(
                         absl::StrCat("--admin-token-file '", options_.token_file, "' ",
                                      std::string(token.status().message()))),
                     Failure::kUsage);
}

void AdminDoor::LookAgain() {
  const auto keeps_old = [this](const absl::Status& why) {
    options_.log.Warning("the admin port goes on with the old file",
                         {{"reason", std::string(why.message())}});
  };
  const std::string identity_now =
      Look(options_.tls.cert_file) + Look(options_.tls.key_file);
  if (options_.seals && identity_now != seen_identity_) {
    seen_identity_ = identity_now;
    auto identity = TlsIdentity::Load(options_.tls);
    if (identity.ok()) {
      absl::MutexLock lock(&mutex_);
      identity_ = *std::move(identity);
    } else {
      keeps_old(identity.status());
    }
  }
  const std::string token_now = Look(options_.token_file);
  if (options_.token_file.empty() || token_now == seen_token_) return;
  seen_token_ = token_now;
  absl::StatusOr<ReadToken> token = ReadTokenFile();
  if (!token.ok()) return keeps_old(token.status());
  absl::MutexLock lock(&mutex_);
  token_ = *std::move(token);
}

std::unique_ptr<TlsSession> AdminDoor::NewSession() const {
  absl::MutexLock lock(&mutex_);
  return identity_ == nullptr ? nullptr : std::make_unique<TlsSession>(*identity_);
}

std::string AdminDoor::CookieName(const ReadToken& token) const {
  return absl::StrCat(options_.seals ? "__Host-syncline-" : "syncline-", token.mark());
}

void AdminDoor::Refused(const HttpRequest& request) {
  if (options_.on_refused) options_.on_refused();
  const uint64_t times = refused_.ToSay(request.source, "");
  if (times == 0) return;
  options_.log.Warning("the admin port refused a wrong token",
                       {{"peer", request.source}, {"refused", times}});
  options_.audit.Warning("refused", {{"what", "a reader of the admin port"},
                                     {"reason", "a wrong token"},
                                     {"peer", request.source},
                                     {"refused", times}});
}

HttpReply AdminDoor::Login(const HttpRequest& request, const ReadToken& token) {
  if (request.method != "POST") {
    HttpReply form = LoginForm("");
    form.status = 200;
    return form;
  }
  if (!token.IsInForm(request.body)) {
    Refused(request);
    return LoginForm(kWrongToken);
  }
  // Lax, so that links from other sites, such as Grafana, work. Other sites cannot read
  // the answers of this port, and nothing can be changed here.
  return {.status = 303,
          .body = "",
          .headers = {"Location: /",
                      absl::StrCat("Set-Cookie: ", CookieName(token), "=", token.cookie(),
                                   "; Path=/; HttpOnly; SameSite=Lax",
                                   options_.seals ? "; Secure" : "")}};
}

std::optional<HttpReply> AdminDoor::Judge(const HttpRequest& request) {
  std::optional<ReadToken> token;
  {
    absl::MutexLock lock(&mutex_);
    token = token_;
  }
  if (!token.has_value()) return std::nullopt;
  if (request.path == "/login") return Login(request, *token);
  if (token->IsShownBy(request.authorization) ||
      token->IsInCookies(request.cookie, CookieName(*token))) {
    return std::nullopt;
  }
  const bool shows_another = !request.authorization.empty();
  if (shows_another) Refused(request);
  if (absl::StrContains(request.accept, "text/html")) {
    return LoginForm(shows_another ? kWrongToken : "");
  }
  return Refusal(shows_another ? "the token is not the one of this port"
                               : "this port requires a token");
}

}  // namespace syncline
