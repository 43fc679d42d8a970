#include "comm/rpc/server.h"

#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/env.h"
#include "comm/base/failure.h"
#include "comm/rpc/address.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/certificates_test_util.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/diagnosis.h"
#include "comm/rpc/status.h"
#include "gmock/gmock.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/support/byte_buffer.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

// A real call without generated code: the health service answers an empty request.
absl::Status Ping(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(5));
  const grpc::Slice empty("");
  grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  // Uses a queue of its own: a callback would run on a thread of gRPC, which
  // ThreadSanitizer cannot see.
  grpc::CompletionQueue answers;
  grpc::Status status;
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &answers);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  answers.Next(&tag, &ok);
  return FromGrpcStatus(status);
}

ServerOptions LoopbackOptions() {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  return options;
}

TEST(RpcServer, AnswersTheHealthCheckOnTheBoundPort) {
  auto running = StartServer(LoopbackOptions());
  ASSERT_TRUE(running.ok()) << running.status();
  EXPECT_GT(running->port, 0);
  EXPECT_EQ(running->address, absl::StrCat("127.0.0.1:", running->port));
  auto channel = CreateChannel(running->address, {}, RpcTimeouts::Default());
  ASSERT_TRUE(channel.ok());
  EXPECT_EQ(WaitUntilConnected(**channel, running->address, {}, absl::Seconds(5)),
            absl::OkStatus());
  EXPECT_EQ(Ping(*channel), absl::OkStatus());
  running->Shutdown(absl::Seconds(1));
}

// By `grpc.health.v1.Health`, a standby does not serve.
TEST(RpcServer, OfSeveralTheOneThatServesIsChosen) {
  auto standby = StartServer(LoopbackOptions());
  auto leader = StartServer(LoopbackOptions());
  ASSERT_TRUE(standby.ok() && leader.ok());
  standby->server->GetHealthCheckService()->SetServingStatus(false);
  const std::string nobody = absl::StrCat("127.0.0.1:", *PickFreePort("127.0.0.1"));
  const std::string all =
      absl::StrCat(nobody, ",", standby->address, ",", leader->address);
  const auto peer_of = [&](const std::string& addresses) -> std::string {
    const auto channel = CreateChannel(addresses, {}, RpcTimeouts::Default());
    if (!channel.ok()) return std::string(channel.status().message());
    grpc::GenericStub stub(*channel);
    grpc::ClientContext context;
    SetDeadline(context, absl::Seconds(60));
    context.set_wait_for_ready(true);
    grpc::CompletionQueue queue;
    const grpc::ByteBuffer nothing(nullptr, 0);
    auto reader =
        stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", nothing, &queue);
    grpc::ByteBuffer reply;
    grpc::Status status;
    reader->StartCall();
    reader->Finish(&reply, &status, &reply);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return context.peer();
  };
  // On a very slow machine no server answers in time.
  const auto choice = [&](const std::string& wanted) {
    std::string peer;
    for (int i = 0; i < 20 && !absl::StrContains(peer, wanted); ++i) peer = peer_of(all);
    return peer;
  };
  EXPECT_THAT(choice(leader->address), HasSubstr(leader->address));
  leader->Shutdown(absl::ZeroDuration());
  EXPECT_THAT(choice(standby->address), HasSubstr(standby->address))
      << "which says who leads";
  EXPECT_THAT(peer_of("a:1,b"), HasSubstr("'b' is not an address"));
  standby->Shutdown(absl::ZeroDuration());
}

// A connection that was admitted earlier would stay among the waiting ones.
TEST(RpcServer, TakesNobodyInBeforeItsServicesKnowTheDoor) {
  ServerOptions options = LoopbackOptions();
  absl::StatusOr<UniqueFd> early = absl::UnknownError("not asked");
  options.on_listening = [&](const RunningServer& running) {
    early = ConnectTo(*ParseHostPort(running.address), absl::Seconds(10));
    // The server would need only a moment.
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_EQ(running.door->waiting(), 0u);
  };
  RunningServer running = *StartServer(options);
  ASSERT_TRUE(early.ok()) << early.status();
  while (running.door->waiting() == 0) absl::SleepFor(absl::Milliseconds(1));
  running.Shutdown(absl::ZeroDuration());
}

TEST(RpcServer, RefusesAPortThatIsInUse) {
  auto first = StartServer(LoopbackOptions());
  ASSERT_TRUE(first.ok());
  ServerOptions same = LoopbackOptions();
  same.listen = first->address;
  const absl::Status second = StartServer(same).status();
  EXPECT_EQ(FailureOf(second), Failure::kPortInUse);
  EXPECT_THAT(std::string(second.message()), HasSubstr(first->address));
}

TEST(RpcServer, RefusesPlainTextBeyondLoopbackUnlessAsked) {
  ServerOptions open = LoopbackOptions();
  open.listen = "0.0.0.0:0";
  const absl::Status refused = StartServer(open).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  for (const char* flag : {"--tls-cert", "--tls-key", "--tls-ca", "--insecure"}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(flag));
  }
  open.tls.insecure = true;
  EXPECT_TRUE(StartServer(open).ok());
}

TEST(RpcChannel, SaysWhoIsUnreachable) {
  std::string address;
  {
    auto running = StartServer(LoopbackOptions());
    ASSERT_TRUE(running.ok());
    address = running->address;
    running->Shutdown(absl::ZeroDuration());
  }
  auto channel = CreateChannel(address, {}, RpcTimeouts::Default());
  ASSERT_TRUE(channel.ok());
  const absl::Status status =
      WaitUntilConnected(**channel, address, {}, absl::Milliseconds(300));
  EXPECT_EQ(FailureOf(status), Failure::kUnreachable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
}

// Six seconds, because gRPC sends at most one ping a second, and a server without our
// settings answers the fourth with GOAWAY "too_many_pings".
TEST(RpcChannel, SurvivesFastKeepaliveOnAnIdleConnection) {
  auto running = StartServer(LoopbackOptions());
  ASSERT_TRUE(running.ok());
  RpcTimeouts fast = RpcTimeouts::Default();
  fast.keepalive_interval = absl::Milliseconds(100);
  auto channel = CreateChannel(running->address, {}, fast);
  ASSERT_TRUE(channel.ok());
  ASSERT_TRUE(WaitUntilConnected(**channel, running->address, {}, absl::Seconds(5)).ok());
  const bool changed = (*channel)->WaitForStateChange(
      GRPC_CHANNEL_READY, absl::ToChronoTime(absl::Now() + absl::Seconds(6)));
  EXPECT_FALSE(changed) << "state " << (*channel)->GetState(false);
  EXPECT_EQ(Ping(*channel), absl::OkStatus());
}

class RpcTls : public testing::Test {
 protected:
  void SetUp() override {
    SilenceGrpcLog();
    files_.MakeCa("ca");
    files_.MakeLeaf("server", "ca", {.who = {Role::kCoordinator}});
    files_.MakeLeaf("client", "ca");
    files_.MakeCa("stranger");
    files_.MakeLeaf("intruder", "stranger", {.who = {Role::kCoordinator}});
  }

  std::string Path(const std::string& name) const { return files_.Path(name); }
  TlsOptions Identity(const std::string& name) const { return files_.Identity(name); }

  absl::Status Connect(const std::string& address, const TlsOptions& tls) {
    auto channel = CreateChannel(address, tls, RpcTimeouts::Default());
    if (!channel.ok()) return channel.status();
    absl::Status connected =
        WaitUntilConnected(**channel, address, tls, absl::Seconds(1));
    return connected.ok() ? Ping(*channel) : connected;
  }

  TestCertificates files_;
};

TEST_F(RpcTls, LetsInOnlyClientsThatTheCaSigned) {
  ServerOptions options = LoopbackOptions();
  options.tls = Identity("server");
  auto running = StartServer(options);
  ASSERT_TRUE(running.ok()) << running.status();

  EXPECT_EQ(Connect(running->address, Identity("client")), absl::OkStatus());
  EXPECT_FALSE(Connect(running->address, Identity("intruder")).ok());
  EXPECT_FALSE(Connect(running->address, {"", "", Path("ca.crt")}).ok())
      << "no certificate";
  EXPECT_FALSE(Connect(running->address, {}).ok()) << "plain text";
}

TEST_F(RpcTls, ClientsRefuseAServerOfAnotherCa) {
  ServerOptions options = LoopbackOptions();
  options.tls = {Path("intruder.crt"), Path("intruder.key"), Path("ca.crt")};
  auto running = StartServer(options);
  ASSERT_TRUE(running.ok()) << running.status();
  EXPECT_FALSE(Connect(running->address, Identity("client")).ok());
}

// Clients check both the name and the role: any server certificate of the CA must not do
// for a coordinator.
TEST_F(RpcTls, ClientsRefuseAnyoneButTheCoordinatorTheyDialled) {
  files_.MakeLeaf("elsewhere", "ca",
                  {.who = {Role::kCoordinator}, .hosts = {"192.0.2.7"}});
  files_.MakeLeaf("parameters", "ca", {.who = {Role::kServer}});
  files_.MakeLeaf("nobody", "ca", {.uri = "-"});
  const std::pair<const char*, const char*> cases[] = {
      {"elsewhere", "is for 192.0.2.7, not for '127.0.0.1'"},
      {"parameters", "is that of the server, not of a coordinator"},
      {"nobody", "names no role"}};
  for (const auto& [name, reason] : cases) {
    ServerOptions options = LoopbackOptions();
    options.tls = Identity(name);
    auto running = StartServer(options);
    ASSERT_TRUE(running.ok()) << running.status();
    EXPECT_THAT(std::string(Connect(running->address, Identity("client")).message()),
                HasSubstr(reason));
  }
}

TEST_F(RpcTls, ClientsOfAClusterTakeItsCoordinatorOnly) {
  ServerOptions options = LoopbackOptions();
  options.tls = Identity("server");
  auto running = StartServer(options);
  ASSERT_TRUE(running.ok()) << running.status();
  files_.MakeLeaf("neighbour", "ca",
                  {.uri = "spiffe://test/syncline/other/role/operator"});
  EXPECT_THAT(std::string(Connect(running->address, Identity("neighbour")).message()),
              HasSubstr("is of cluster test/c, this one is test/other"));
  files_.MakeLeaf("foreign", "ca", {.uri = "-"});
  EXPECT_EQ(Connect(running->address, Identity("foreign")), absl::OkStatus())
      << "it is of no cluster, and leaves that to the CA";
}

TEST_F(RpcTls, ListsMakeACoordinatorOfACertificateOfAnotherMaker) {
  files_.MakeLeaf("foreign", "ca",
                  {.uri = "spiffe://k8s/ns/ml/sa/boss", .hosts = {"127.0.0.1"}});
  files_.Write("list", "URI:spiffe://k8s/ns/ml/sa/boss coordinator\n");
  ServerOptions options = LoopbackOptions();
  options.tls = Identity("foreign");
  auto running = StartServer(options);
  ASSERT_TRUE(running.ok()) << running.status();
  TlsOptions client = Identity("client");
  EXPECT_FALSE(Connect(running->address, client).ok());
  client.identities_file = Path("list");
  EXPECT_EQ(Connect(running->address, client), absl::OkStatus());
}

TEST_F(RpcTls, AServerServesNobodyWithoutACertificate) {
  ServerOptions options = LoopbackOptions();
  options.tls = Identity("server");
  options.tls.ca_file = "";
  const absl::Status status = StartServer(options).status();
  EXPECT_EQ(FailureOf(status), Failure::kUsage);
  EXPECT_THAT(std::string(status.message()), HasSubstr("syncline certs init"));
}

// The server is not restarted, and existing connections stay open.
TEST_F(RpcTls, ServesReplacedCertificatesAndJudgesByTheNewCa) {
  ServerOptions options = LoopbackOptions();
  options.tls = Identity("server");
  auto running = StartServer(options);
  ASSERT_TRUE(running.ok()) << running.status();
  const auto early =
      CreateChannel(running->address, Identity("client"), RpcTimeouts::Default());
  ASSERT_TRUE(early.ok()) << early.status();
  ASSERT_EQ(Ping(*early), absl::OkStatus());

  files_.MakeLeaf("yesterdays", "ca");
  files_.MakeCa("ca");
  files_.MakeLeaf("server", "ca", {.who = {Role::kCoordinator}});
  files_.MakeLeaf("client", "ca");
  const SteadyClock clock;
  absl::Status renewed = absl::UnknownError("never tried");
  while (!renewed.ok() && clock.Now() < absl::Seconds(60)) {
    renewed = Connect(running->address, Identity("client"));
  }
  EXPECT_EQ(renewed, absl::OkStatus());
  EXPECT_FALSE(Connect(running->address, Identity("yesterdays")).ok());
  EXPECT_EQ(Ping(*early), absl::OkStatus()) << "it was connected before";
  EXPECT_EQ((*early)->GetState(false), GRPC_CHANNEL_READY);
}

TEST_F(RpcTls, ListensBeyondLoopbackWithoutBeingAsked) {
  ServerOptions options = LoopbackOptions();
  options.listen = "0.0.0.0:0";
  options.tls = Identity("server");
  EXPECT_TRUE(StartServer(options).ok());
}

TEST_F(RpcTls, KnowsWhatIsWrongWithItsOwnFiles) {
  const auto file = [this](const char* flag, const std::string& name) {
    std::ifstream stream(Path(name));
    return PemFile{flag, name, {std::istreambuf_iterator<char>(stream), {}}};
  };
  const PemFile cert = file("--tls-cert", "server.crt");
  const PemFile key = file("--tls-key", "server.key");
  const PemFile ca = file("--tls-ca", "ca.crt");
  const absl::Time now = absl::Now();
  EXPECT_EQ(CheckIdentity(cert, key, now), absl::OkStatus());
  EXPECT_EQ(CheckAuthorities(ca, now), absl::OkStatus());
  const auto expect = [](const absl::Status& status, const char* what) {
    EXPECT_EQ(FailureOf(status), Failure::kUsage) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  const absl::Duration days = absl::Hours(24 * 5);
  expect(CheckIdentity(cert, key, now + days), "--tls-cert 'server.crt' expired on 2");
  expect(CheckIdentity(cert, key, now - days), "is not valid before 2");
  expect(CheckAuthorities(ca, now + days), "--tls-ca 'ca.crt' expired on 2");
  expect(CheckIdentity(cert, file("--tls-key", "client.key"), now),
         "--tls-key 'client.key' is not the key of --tls-cert 'server.crt'");
  expect(CheckIdentity(key, key, now), "holds no certificate");
  expect(CheckIdentity(cert, cert, now), "holds no private key");
  expect(CheckAuthorities(key, now), "holds no certificate");
}

TEST_F(RpcTls, AServerWithTheKeyOfAnotherDoesNotStart) {
  ServerOptions options = LoopbackOptions();
  options.tls = {Path("server.crt"), Path("client.key"), Path("ca.crt")};
  const absl::Status status = StartServer(options).status();
  EXPECT_EQ(FailureOf(status), Failure::kUsage);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not the key of"));
}

TEST_F(RpcTls, NamesTheFlagOfAWrongFile) {
  TlsOptions missing = Identity("server");
  missing.key_file = Path("nowhere.key");
  EXPECT_THAT(std::string(CheckTlsOptions(missing).message()), HasSubstr("--tls-key"));
  TlsOptions half;
  half.cert_file = Path("server.crt");
  EXPECT_EQ(FailureOf(CheckTlsOptions(half)), Failure::kUsage);
  TlsOptions both = Identity("server");
  both.insecure = true;
  EXPECT_THAT(std::string(CheckTlsOptions(both).message()), HasSubstr("--insecure"));
  TlsOptions no_pem = Identity("server");
  no_pem.ca_file = "/dev/null";
  EXPECT_THAT(std::string(CheckTlsOptions(no_pem).message()),
              HasSubstr("is not a PEM file"));
}

}  // namespace
}  // namespace syncline
