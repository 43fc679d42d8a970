// Real handshakes on loopback. Each cause has its own message.
#include "comm/rpc/diagnosis.h"

#include <sys/socket.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/base/eventually.h"
#include "comm/rpc/address.h"
#include "comm/rpc/certificates_test_util.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/handshake_log.h"
#include "comm/rpc/server.h"
#include "gmock/gmock.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::Duration kLimit = absl::Seconds(20);

// A server that is not started by StartServer, which refuses invalid certificates.
class AnyServer {
 public:
  explicit AnyServer(const TlsOptions& tls) {
    grpc::SslServerCredentialsOptions ssl(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    ssl.pem_root_certs = Read(tls.ca_file);
    ssl.pem_key_cert_pairs.push_back({Read(tls.key_file), Read(tls.cert_file)});
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(ssl), &port_);
    server_ = builder.BuildAndStart();
  }
  ~AnyServer() { server_->Shutdown(DeadlineIn(absl::ZeroDuration())); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Sends `words` to the first peer that connects, and closes the connection.
class Stranger {
 public:
  explicit Stranger(std::string words) {
    HostPort listen{"127.0.0.1", 0};
    listener_ = *Listen(listen);
    address_ = listen.ToString();
    thread_ = std::thread([this, words = std::move(words)] {
      const UniqueFd peer(accept(listener_.get(), nullptr, nullptr));
      send(peer.get(), words.data(), words.size(), MSG_NOSIGNAL);
      char question = 0;
      recv(peer.get(), &question, 1, 0);
    });
  }
  ~Stranger() { thread_.join(); }
  const std::string& address() const { return address_; }

 private:
  UniqueFd listener_;
  std::string address_;
  std::thread thread_;
};

TEST(Diagnosis, NamesWhatIsWrongBelowTls) {
  const std::string address = absl::StrCat("127.0.0.1:", *PickFreePort("127.0.0.1"));
  EXPECT_THAT(DiagnoseConnection(address, {}, kLimit).cause,
              HasSubstr("nothing listens there"));
  EXPECT_THAT(DiagnoseConnection("no-such-host.invalid:7070", {}, kLimit).cause,
              HasSubstr("no host is called 'no-such-host.invalid'"));
  EXPECT_THAT(DiagnoseConnection("nonsense", {}, kLimit).cause, HasSubstr("nonsense"));
}

TEST(Diagnosis, KnowsAServerOfAnotherProtocol) {
  EXPECT_THAT(
      DiagnoseConnection(Stranger("HTTP/1.1 400 Bad Request\r\n").address(), {}, kLimit)
          .cause,
      HasSubstr("HTTP/1"));
  EXPECT_THAT(
      DiagnoseConnection(Stranger("220 mail.example").address(), {}, kLimit).cause,
      HasSubstr("not Syncline"));
}

TEST(Diagnosis, SaysSoWhenNothingIsWrong) {
  auto running = StartServer({.listen = "127.0.0.1:0", .tls = {}, .services = {}});
  ASSERT_TRUE(running.ok()) << running.status();
  EXPECT_THAT(DiagnoseConnection(running->address, {}, kLimit).cause,
              HasSubstr("nothing is wrong with it now"));
}

// This is like a name with several addresses, none of which answers.
TEST(Diagnosis, SaysWhatHoldsItUp) {
  HostPort listen{"127.0.0.1", 0};
  const UniqueFd silent = *Listen(listen);  // takes the connection and reads nothing
  const Inquiry inquiry(listen.ToString(), {}, absl::Minutes(1));
  ASSERT_TRUE(Eventually([&] {
    return !absl::StrContains(inquiry.SoFar().cause, "still being looked up");
  }));
  EXPECT_THAT(inquiry.Within(absl::ZeroDuration()).cause,
              HasSubstr("was looked up, but nothing has answered there so far"));
  EXPECT_FALSE(inquiry.found().has_value());
}

class TlsDiagnosis : public testing::Test {
 protected:
  void SetUp() override {
    SilenceGrpcLog();
    for (const char* ca : {"ca", "stranger"}) files_.MakeCa(ca);
    const Identity coordinator = {Role::kCoordinator};
    files_.MakeLeaf("server", "ca", {.who = coordinator});
    files_.MakeLeaf("client", "ca");
    files_.MakeLeaf("intruder", "stranger", {.who = coordinator});
    files_.MakeLeaf("old", "ca", {.who = coordinator, .days = -1});
    files_.MakeLeaf("elsewhere", "ca",
                    {.who = coordinator, .hosts = {"coordinator.example", "192.0.2.7"}});
  }

  // Returns what a client is told about a server that was started with `server`.
  std::string Diagnose(const TlsOptions& server, const TlsOptions& client) {
    const AnyServer running(server);
    return DiagnoseConnection(running.address(), client, kLimit).cause;
  }
  std::string DiagnoseServer(const std::string& name) {
    return Diagnose(files_.Identity(name), files_.Identity("client"));
  }
  std::string DiagnoseClient(const TlsOptions& client) {
    return Diagnose(files_.Identity("server"), client);
  }

  TestCertificates files_;
};

TEST_F(TlsDiagnosis, NamesWhatIsWrongWithTheServersCertificate) {
  EXPECT_THAT(DiagnoseServer("server"), HasSubstr("nothing is wrong with it now"));
  EXPECT_THAT(DiagnoseServer("old"), StartsWith("its certificate ('old') expired on 2"));
  EXPECT_THAT(DiagnoseServer("intruder"),
              AllOf(HasSubstr("is signed by 'stranger', which is not in --tls-ca"),
                    HasSubstr("ca.crt'; give the CA that signed it")));
  EXPECT_THAT(DiagnoseServer("elsewhere"),
              HasSubstr("is for coordinator.example, 192.0.2.7, not for '127.0.0.1'"));
  EXPECT_THAT(DiagnoseServer("client"),
              HasSubstr("is that of the operator, not of a coordinator"));
}

TEST_F(TlsDiagnosis, NamesWhatIsWrongWithOurCertificate) {
  EXPECT_THAT(
      DiagnoseClient(files_.Identity("intruder")),
      AllOf(HasSubstr("it refuses --tls-cert"),
            HasSubstr("intruder.crt', signed by 'stranger'; give a certificate of")));
  EXPECT_THAT(DiagnoseClient(files_.Identity("old")),
              AllOf(HasSubstr("old.crt', which expired on 2"), HasSubstr("renew it")));
  EXPECT_THAT(DiagnoseClient({"", "", files_.Path("ca.crt")}),
              HasSubstr("it asks for a certificate"));
}

TEST_F(TlsDiagnosis, KnowsThatOnlyOneSideSpeaksTls) {
  EXPECT_THAT(DiagnoseClient({}), HasSubstr("seems to speak TLS"));
  auto plain = StartServer({.listen = "127.0.0.1:0", .tls = {}, .services = {}});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_THAT(DiagnoseConnection(plain->address, files_.Identity("client"), kLimit).cause,
              HasSubstr("it speaks plain text"));
}

// Other causes may pass, because a server starts later or a certificate is renewed.
TEST_F(TlsDiagnosis, KnowsWhatDoesNotPass) {
  const auto lasts = [&](const std::string& server, const TlsOptions& client) {
    const AnyServer running(files_.Identity(server));
    return DiagnoseConnection(running.address(), client, kLimit).is_lasting;
  };
  EXPECT_TRUE(lasts("intruder", files_.Identity("client")));
  EXPECT_TRUE(lasts("server", files_.Identity("intruder")));
  EXPECT_TRUE(lasts("server", {}));
  EXPECT_FALSE(lasts("server", files_.Identity("client")));
  EXPECT_FALSE(lasts("old", files_.Identity("client")));
  EXPECT_FALSE(lasts("server", files_.Identity("old")));
  // A proxy without a running server behind it does this.
  const Stranger proxy("");
  EXPECT_FALSE(
      DiagnoseConnection(proxy.address(), {}, absl::Milliseconds(300)).is_lasting);
  const std::string nobody = absl::StrCat("127.0.0.1:", *PickFreePort("127.0.0.1"));
  EXPECT_FALSE(DiagnoseConnection(nobody, {}, kLimit).is_lasting);
}

TEST_F(TlsDiagnosis, OperatorsSeeWhatTheirServerRefuses) {
  std::ostringstream lines;
  std::atomic<int> heard = 0;
  {
    const RefusedHandshakes refused(Logger::Create({.stream = &lines}),
                                    [&](const std::string&) { ++heard; });
    const AnyServer running(files_.Identity("server"));
    for (const char* name : {"intruder", "client", "intruder"}) {
      DiagnoseConnection(running.address(), files_.Identity(name), kLimit);
    }
  }
  EXPECT_THAT(lines.str(), AllOf(HasSubstr("a TLS handshake was refused"),
                                 HasSubstr("not signed by --tls-ca"),
                                 HasSubstr("refused=1"), HasSubstr("refused=2")));
  EXPECT_THAT(lines.str(), Not(HasSubstr("refused=3")));
  EXPECT_GE(heard, 2);
}

TEST(RefusedHandshakes, KnowTheLinesOfGrpc) {
  const auto reason = [](const char* what) {
    return ReasonOfRefusal(absl::StrCat(
        "Handshake failed with fatal error SSL_ERROR_SSL: error:0A000086:SSL routines::",
        what, "."));
  };
  EXPECT_THAT(reason("certificate verify failed"), HasSubstr("has expired, or is not"));
  EXPECT_THAT(reason("peer did not return a certificate"), HasSubstr("no certificate"));
  EXPECT_THAT(reason("wrong version number"), HasSubstr("plain text"));
  EXPECT_THAT(reason("something new"), HasSubstr("something new"));
  EXPECT_EQ(ReasonOfRefusal("No match found for server name: 127.0.0.1."), "");
}

// Users see this message.
TEST_F(TlsDiagnosis, IsPartOfTheErrorOfAChannel) {
  const AnyServer running(files_.Identity("intruder"));
  const TlsOptions tls = files_.Identity("client");
  const auto channel = CreateChannel(running.address(), tls, RpcTimeouts::Default());
  ASSERT_TRUE(channel.ok()) << channel.status();
  const absl::Status status =
      WaitUntilConnected(**channel, running.address(), tls, absl::Seconds(1));
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith(absl::StrCat("cannot reach ", running.address())),
                    HasSubstr("is signed by 'stranger'")));
}

}  // namespace
}  // namespace syncline
