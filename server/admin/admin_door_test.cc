#include "server/admin/admin_door.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/rpc/certificates_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "prometheus/registry.h"
#include "server/admin/admin_server.h"
#include "server/admin/history.h"
#include "server/admin/tls_client_test_util.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

class AdminDoorTest : public testing::Test {
 protected:
  AdminDoorTest() {
    files_.MakeCa("ca");
    files_.MakeLeaf("own", "ca");
    files_.Write("token", absl::StrCat(kToken, "\n"));
    pages_.status_json = [] { return R"({"epoch":3})"; };
    pages_.history = &history_;
    log_ = Logger::Create(
        {.function = [this](LogLevel, const std::string& line) { said_ += line; }});
    options_.audit = Logger::Create(
        {.function = [this](LogLevel, const std::string& line) { audited_ += line; }});
  }

  absl::Status TryStart(const std::string& token_file) {
    options_.listen = "127.0.0.1:0";
    options_.tls = files_.Identity("own");
    options_.token_file = token_file.empty() ? "" : files_.Path(token_file);
    options_.log = log_;
    server_ = std::make_unique<AdminServer>(options_, registry_, pages_);
    return server_->Start();
  }

  UniqueFd Connect() const {
    UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address),
                      sizeof(address)),
              0);
    return client;
  }

  // Returns the answer over TLS. Empty: the handshake failed.
  std::string AskSealed(const std::string& request, const std::string& ca = "ca") {
    const UniqueFd socket = Connect();
    TlsClient client(socket, files_.Path(ca + ".crt"));
    if (!client.Connect()) return "";
    shown_ = client.ServersName();
    client.Send(request);
    return client.ReadAll();
  }

  httplib::Result Get(const std::string& path, const httplib::Headers& headers = {}) {
    httplib::Client client("127.0.0.1", server_->port());
    return client.Get(path, headers);
  }

  httplib::Result Login(const std::string& token) {
    httplib::Client client("127.0.0.1", server_->port());
    return client.Post("/login", "token=" + token, "application/x-www-form-urlencoded");
  }

  TestCertificates files_;
  History history_;
  prometheus::Registry registry_;
  std::string said_;  // in the log
  std::string audited_;
  Logger log_;
  AdminOptions options_;
  AdminPages pages_;
  std::unique_ptr<AdminServer> server_;
  std::string shown_;  // name in the certificate
};

TEST_F(AdminDoorTest, ServesEveryPageByTlsToWhoKnowsItsAuthority) {
  options_.seals = true;
  ASSERT_EQ(TryStart(""), absl::OkStatus());
  const std::string reply = AskSealed("GET /status HTTP/1.1\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, EndsWith(R"({"epoch":3})"));
  EXPECT_EQ(shown_, "own");
  files_.MakeCa("other");
  EXPECT_EQ(AskSealed("GET /status HTTP/1.1\r\n\r\n", "other"), "");
}

TEST_F(AdminDoorTest, TellsPlainTextToTakeTlsAndAnswersItsProbes) {
  options_.seals = true;
  ASSERT_TRUE(TryStart("").ok());
  for (const char* path : {"/", "/status", "/metrics", "/dashboard.css", "/x"}) {
    const auto reply = Get(path);
    ASSERT_TRUE(reply) << path;
    EXPECT_EQ(reply->status, 400) << path;
    EXPECT_THAT(reply->body, HasSubstr("https://"));
  }
  EXPECT_EQ(Get("/livez")->body, "alive\n");
  EXPECT_EQ(Get("/readyz")->body, "ready\n");
}

TEST_F(AdminDoorTest, SpeaksNoOlderTls) {
  options_.seals = true;
  ASSERT_TRUE(TryStart("").ok());
  const UniqueFd socket = Connect();
  TlsClient old(socket, files_.Path("ca.crt"), TLS1_2_VERSION);
  EXPECT_FALSE(old.Connect());
  EXPECT_THAT(AskSealed("GET /livez HTTP/1.1\r\n\r\n"), EndsWith("alive\n"));
}

TEST_F(AdminDoorTest, ShowsACertificateThatIsReplacedToThoseWhoComeLater) {
  options_.seals = true;
  ASSERT_TRUE(TryStart("").ok());
  files_.MakeLeaf("next", "ca");
  namespace fs = std::filesystem;
  // A new certificate without its key is not used.
  fs::copy_file(files_.Path("next.crt"), files_.Path("own.crt"),
                fs::copy_options::overwrite_existing);
  server_->LookAgain();
  AskSealed("GET /livez HTTP/1.1\r\n\r\n");
  EXPECT_EQ(shown_, "own");
  EXPECT_THAT(said_, HasSubstr("goes on with the old file"));
  fs::copy_file(files_.Path("next.key"), files_.Path("own.key"),
                fs::copy_options::overwrite_existing);
  server_->LookAgain();
  EXPECT_THAT(AskSealed("GET /livez HTTP/1.1\r\n\r\n"), EndsWith("alive\n"));
  EXPECT_EQ(shown_, "next");
}

TEST_F(AdminDoorTest, RefusesToStartWithoutACertificate) {
  options_.seals = true;
  ASSERT_TRUE(TryStart("").ok());
  options_.tls.cert_file.clear();
  options_.tls.key_file.clear();
  AdminServer server(options_, registry_, pages_);
  const absl::Status status = server.Start();
  EXPECT_EQ(FailureOf(status), Failure::kUsage);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--tls-cert"));
}

TEST_F(AdminDoorTest, TheTokenGuardsAllButProbes) {
  ASSERT_TRUE(TryStart("token").ok());
  for (const char* path : {"/", "/status", "/metrics", "/history", "/latest", "/events",
                           "/advice", "/dashboard.js", "/nothing"}) {
    const auto refused = Get(path);
    EXPECT_EQ(refused->status, 401) << path;
    EXPECT_EQ(refused->get_header_value("WWW-Authenticate"), "Bearer realm=\"syncline\"");
    EXPECT_THAT(refused->body, AllOf(StartsWith("this port requires a token"),
                                     HasSubstr("--admin-token-file")));
    EXPECT_THAT(refused->body, Not(HasSubstr("epoch")));
    const auto wrong = Get(path, {{"Authorization", "Bearer fedcba9876543210"}});
    EXPECT_EQ(wrong->status, 401) << path;
    EXPECT_THAT(wrong->body, StartsWith("the token is not the one of this"));
    EXPECT_THAT(wrong->body, Not(HasSubstr("fedcba9876543210")));
    EXPECT_THAT(wrong->body, Not(HasSubstr(kToken)));
    const auto right = Get(path, {{"Authorization", absl::StrCat("Bearer ", kToken)}});
    EXPECT_EQ(right->status, std::string_view(path) == "/nothing" ? 404 : 200) << path;
  }
  for (const char* open : {"/livez", "/readyz", "/dashboard.css", "/login"}) {
    EXPECT_EQ(Get(open)->status, 200) << open;
  }
  const httplib::Headers knows = {{"Authorization", absl::StrCat("Bearer ", kToken)}};
  EXPECT_THAT(
      Get("/metrics", knows)->body,
      HasSubstr("syncline_auth_refused_total{door=\"admin\",reason=\"token\"} 9\n"));
  EXPECT_THAT(said_, HasSubstr("wrong token"));
  EXPECT_THAT(audited_, AllOf(HasSubstr("a reader of the admin port"),
                              HasSubstr("127.0.0.1"), HasSubstr("refused=8")));
  EXPECT_THAT(said_, Not(HasSubstr(kToken)));
  EXPECT_THAT(said_, Not(HasSubstr("fedcba9876543210")));
}

TEST_F(AdminDoorTest, ABrowserLogsInWithAForm) {
  ASSERT_TRUE(TryStart("token").ok());
  const auto form = Get("/", {{"Accept", "text/html,*/*"}});
  EXPECT_EQ(form->status, 401);
  EXPECT_THAT(form->body, HasSubstr("<form method=\"post\" action=\"/login\">"));
  const auto wrong = Login("0123456789abcdef");
  EXPECT_EQ(wrong->status, 401);
  EXPECT_THAT(wrong->body, HasSubstr("The token is wrong."));
  EXPECT_FALSE(wrong->has_header("Set-Cookie"));
  const auto right = Login(kToken);
  EXPECT_EQ(right->status, 303);
  EXPECT_EQ(right->get_header_value("Location"), "/");
  const std::string cookie = right->get_header_value("Set-Cookie");
  EXPECT_THAT(cookie, HasSubstr("; HttpOnly; SameSite=Lax"));
  EXPECT_THAT(cookie, Not(HasSubstr(kToken)));
  const std::string pair = cookie.substr(0, cookie.find(';'));
  EXPECT_EQ(Get("/status", {{"Cookie", pair}})->status, 200);
  EXPECT_EQ(Get("/status", {{"Cookie", absl::StrCat(pair, "0")}})->status, 401);
  EXPECT_THAT(Get("/", {{"Authorization", "Bearer x"}, {"Accept", "text/html"}})->body,
              HasSubstr("The token is wrong."));
}

TEST_F(AdminDoorTest, ByTlsTheCookieNeverTravelsInTheClear) {
  options_.seals = true;
  ASSERT_TRUE(TryStart("token").ok());
  const std::string body = absl::StrCat("token=", kToken);
  const std::string reply = AskSealed(absl::StrCat(
      "POST /login HTTP/1.1\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 303 "));
  EXPECT_THAT(reply, HasSubstr("\r\nSet-Cookie: __Host-syncline-"));
  EXPECT_THAT(reply, HasSubstr("; Secure\r\n"));
  // Over plain text the port does not even ask for the token.
  EXPECT_EQ(Login(kToken)->status, 400);
}

TEST_F(AdminDoorTest, ATokenThatIsReplacedCountsAtOnce) {
  ASSERT_TRUE(TryStart("token").ok());
  const std::string next = "another-token-0123456789";
  const auto status_with = [&](const std::string& token) {
    return Get("/status", {{"Authorization", absl::StrCat("Bearer ", token)}})->status;
  };
  files_.Write("token", "short");
  server_->LookAgain();
  EXPECT_EQ(status_with(kToken), 200);
  EXPECT_THAT(said_, HasSubstr("holds 5 characters"));
  std::filesystem::remove(files_.Path("token"));
  server_->LookAgain();
  EXPECT_EQ(status_with(kToken), 200);
  files_.Write("token", next);
  server_->LookAgain();
  EXPECT_EQ(status_with(kToken), 401);
  EXPECT_EQ(status_with(next), 200);
}

TEST_F(AdminDoorTest, RefusesToStartWithAFileThatHoldsNoToken) {
  files_.Write("empty", "");
  for (const char* file : {"empty", "missing"}) {
    const absl::Status status = TryStart(file);
    EXPECT_EQ(FailureOf(status), Failure::kUsage);
    EXPECT_THAT(std::string(status.message()), HasSubstr("--admin-token-file"));
  }
}

}  // namespace
}  // namespace syncline
