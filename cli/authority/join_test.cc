// Tests how a machine joins over real connections, and attempts that must fail.
#include "cli/authority/join.h"

#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/authority/answering_test_util.h"
#include "cli/authority/directory.h"
#include "cli/authority/join_service.h"
#include "cli/authority/token_book.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/address.h"
#include "comm/rpc/authorities.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/issuer.h"
#include "comm/rpc/join_channel.h"
#include "comm/rpc/join_token.h"
#include "comm/rpc/status.h"
#include "comm/rpc/tls.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/join.grpc.pb.h"

namespace syncline::certs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr absl::Duration kPatience = absl::Seconds(30);

Validity AnHour() {
  const absl::Time now = absl::Now();
  return {now - absl::Hours(1), now + absl::Hours(1)};
}

// A server that shows `own`, followed by the certificate of a known authority.
class Impostor final : public v1::Authority::Service {
 public:
  Impostor(const PemPair& own, const Authority& known) {
    grpc::SslServerCredentialsOptions tls(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
    tls.pem_key_cert_pairs.push_back(
        {own.key, absl::StrCat(own.certificate, known.pair.certificate)});
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(tls), &port_);
    builder.RegisterService(this);
    running_ = builder.BuildAndStart();
  }
  ~Impostor() override { running_->Shutdown(); }

  grpc::Status Certify(grpc::ServerContext* /*context*/,
                       const v1::CertifyRequest* /*request*/,
                       v1::CertifyReply* /*reply*/) override {
    asked_ = true;
    return grpc::Status::OK;
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  bool asked() const { return asked_; }

 private:
  int port_ = 0;
  std::atomic<bool> asked_ = false;
  std::unique_ptr<grpc::Server> running_;
};

class Joining : public testing::Test {
 protected:
  void SetUp() override {
    SilenceGrpcLog();
    std::filesystem::create_directory(folder_.File("ca"));
    authority_ = std::make_unique<Answering>(folder_.File("ca"));
  }

  TokenTerms AWorker(uint32_t uses = 1) const {
    return {.who = {Role::kWorker, "bert"},
            .until = absl::Now() + absl::Hours(1),
            .hours = 3,
            .uses = uses};
  }
  absl::StatusOr<std::string> JoinAs(const std::string& name, const JoinToken& token) {
    return Join(
        {.token = Written(token), .directory = folder_.File(name), .limit = kPatience});
  }
  static void ExpectDenied(const absl::Status& status, const std::string& why) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
  void ExpectNothingIsSaidTo(const Impostor& impostor) {
    JoinToken token = authority_->Token(AWorker());
    token.address = impostor.address();
    const auto joined = Join({.token = Written(token),
                              .directory = folder_.File("m"),
                              .limit = absl::Seconds(2)});
    EXPECT_TRUE(absl::IsUnavailable(joined.status())) << joined.status();
    EXPECT_THAT(std::string(joined.status().message()),
                HasSubstr("is too slow, or is not `syncline certs serve`"));
    EXPECT_FALSE(impostor.asked());
    token.address = authority_->address();
    EXPECT_TRUE(JoinAs("m", token).ok());
  }
  std::vector<Json> Audit() {
    std::vector<Json> lines;
    for (const auto& line :
         absl::StrSplit(authority_->audit(), '\n', absl::SkipEmpty())) {
      lines.push_back(Json::parse(std::string(line)));
    }
    return lines;
  }

  TempDirectory folder_;
  std::unique_ptr<Answering> authority_;
};

TEST_F(Joining, ATokenGivesTheCertificateThatItIsFor) {
  const absl::StatusOr<std::string> base = JoinAs("m", authority_->Token(AWorker()));
  ASSERT_TRUE(base.ok()) << base.status();
  EXPECT_EQ(*base, folder_.File("m/worker-bert"));
  const std::string pem = Contents(*base + ".crt");
  const CertificateFacts facts = FactsOf(*ParseCertificate(pem));
  EXPECT_THAT(facts.names.uris,
              ElementsAre("spiffe://d/syncline/c/job/bert/role/worker"));
  EXPECT_TRUE(facts.names.hosts.empty());
  EXPECT_LE(facts.until, absl::Now() + absl::Hours(3));
  EXPECT_GT(facts.until, absl::Now() + absl::Hours(2));
  EXPECT_EQ(VerifyChain(pem, authority_->authority().pair.certificate, absl::Now()),
            absl::OkStatus());
  EXPECT_EQ(CheckTlsOptions({*base + ".crt", *base + ".key", folder_.File("m/ca.crt")}),
            absl::OkStatus());
  struct stat found = {};
  ASSERT_EQ(stat((*base + ".key").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777u, 0600u);
  EXPECT_EQ(Contents(folder_.File("m/ca.crt")), Contents(folder_.File("ca/ca.crt")));
}

TEST_F(Joining, ATokenIsForOneMachine) {
  const JoinToken token = authority_->Token(AWorker());
  ASSERT_TRUE(JoinAs("one", token).ok());
  ExpectDenied(JoinAs("other", token).status(), "was used once");
  EXPECT_FALSE(std::filesystem::exists(folder_.File("other/worker-bert.crt")));
}

// Otherwise the owner of a revoked certificate could repeat the request, and get another
// one with a new serial number.
TEST_F(Joining, ARepeatedRequestIsGivenTheSameCertificate) {
  const JoinToken token = authority_->Token(AWorker());
  const auto link = DialAuthority(token, kPatience);
  ASSERT_TRUE(link.ok()) << link.status();
  const auto stub = v1::Authority::NewStub(link->channel);
  v1::CertifyRequest request;
  request.set_token_id(token.id);
  request.set_secret(token.secret);
  request.set_request(MakeRequest()->request);
  std::set<std::string> certificates;
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    v1::CertifyReply reply;
    ASSERT_TRUE(stub->Certify(&context, request, &reply).ok());
    certificates.insert(reply.certificate());
  }
  EXPECT_EQ(certificates.size(), 1u);
}

TEST_F(Joining, WrongOrEndedTokensGiveNothing) {
  JoinToken token = authority_->Token(AWorker());
  const std::string secret = std::exchange(token.secret, std::string(32, '0'));
  ExpectDenied(JoinAs("m", token).status(), "this token is unknown");
  token.secret = secret;
  const std::string id = std::exchange(token.id, std::string(12, '0'));
  ExpectDenied(JoinAs("m", token).status(), "this token is unknown");
  TokenTerms short_lived = AWorker();
  short_lived.until = absl::Now() - absl::Seconds(1);
  ExpectDenied(JoinAs("m", authority_->Token(short_lived)).status(),
               "this token is unknown");
  token.id = id;
  EXPECT_TRUE(JoinAs("m", token).ok()) << "none of that used it";
}

// Another authority of the same name answers at the token's address.
TEST_F(Joining, AnotherAuthorityLearnsNothingOfTheToken) {
  std::filesystem::create_directory(folder_.File("false"));
  Answering thief(folder_.File("false"));
  JoinToken token = thief.Token(AWorker());
  token.authority = authority_->authority().fingerprint;
  ExpectDenied(JoinAs("m", token).status(), "the token was not sent to it");
  EXPECT_EQ(thief.audit(), "");
}

// The impostor shows the certificate of the true authority, which is public, after its
// own.
TEST_F(Joining, TheTrueAuthoritysCertificateInAFalseChainDoesNotHelp) {
  const PemPair thief = *MakeAuthority({.name = "ca", .validity = AnHour()});
  Impostor impostor(
      *Issue(thief, {.name = "join", .hosts = {kJoinName}, .validity = AnHour()}),
      authority_->authority());
  ExpectNothingIsSaidTo(impostor);
}

// The right authority has signed a member's certificate, but not for this purpose.
TEST_F(Joining, NoMemberCanPlayTheAuthority) {
  Impostor impostor(
      *Issue(authority_->authority().pair, {.name = "coordinator",
                                            .hosts = {"127.0.0.1", "localhost"},
                                            .validity = AnHour()}),
      authority_->authority());
  ExpectNothingIsSaidTo(impostor);
}

TEST_F(Joining, ARequestIsParsedForWhoHasATokenAndMustBeOne) {
  JoinToken token = authority_->Token(AWorker());
  const absl::StatusOr<JoinLink> link = DialAuthority(token, kPatience);
  ASSERT_TRUE(link.ok()) << link.status();
  const auto stub = v1::Authority::NewStub(link->channel);
  const auto ask = [&](const std::string& secret, const std::string& nonsense) {
    v1::CertifyRequest request;
    request.set_token_id(token.id);
    request.set_secret(secret);
    request.set_request(nonsense);
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::CertifyReply reply;
    return FromGrpcStatus(stub->Certify(&context, request, &reply));
  };
  for (const char* nonsense : {"", "nonsense", "-----BEGIN CERTIFICATE REQUEST-----\n"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ask(token.secret, nonsense)));
    EXPECT_TRUE(absl::IsPermissionDenied(ask("", nonsense)));
  }
  EXPECT_FALSE(ask(token.secret, std::string(1 << 20, 'x')).ok());
  EXPECT_TRUE(JoinAs("m", token).ok()) << "that did not use it";
}

TEST_F(Joining, AHostThatAsksTooOftenWaits) {
  JoinToken token = authority_->Token(AWorker());
  token.secret = std::string(32, '0');
  int denied = 0;
  absl::Status status;
  for (int i = 0; i < 100 && !absl::IsResourceExhausted(status); ++i) {
    status = JoinAs("m", token).status();
    if (absl::IsPermissionDenied(status)) ++denied;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_GE(denied, 10);
}

TEST_F(Joining, WritesDownWhoGotWhatAndWhoDidNot) {
  const JoinToken token = authority_->Token(AWorker());
  const absl::StatusOr<std::string> base = JoinAs("m", token);
  ASSERT_TRUE(base.ok()) << base.status();
  for (int i = 0; i < 3; ++i) ExpectDenied(JoinAs("other", token).status(), "was used");
  const std::vector<Json> lines = Audit();
  ASSERT_EQ(lines.size(), 3u) << "of three refusals the first two";
  EXPECT_EQ(lines[0]["msg"], "issued");
  EXPECT_EQ(lines[0]["token"], token.id);
  EXPECT_EQ(lines[0]["identity"], "spiffe://d/syncline/c/job/bert/role/worker");
  EXPECT_EQ(lines[0]["serial"],
            FactsOf(*ParseCertificate(Contents(*base + ".crt"))).serial);
  EXPECT_THAT(std::string(lines[0]["peer"]), HasSubstr("127.0.0.1"));
  EXPECT_EQ(lines[1]["msg"], "refused");
  EXPECT_EQ(lines[2]["refused"], 2);
  for (const Json& line : lines) {
    EXPECT_THAT(line.dump(), Not(HasSubstr(token.secret)));
  }
}

TEST_F(Joining, ADirectoryOfAnotherAuthorityIsLeftAloneAndTheTokenUnused) {
  const JoinToken token = authority_->Token(AWorker());
  std::filesystem::create_directory(folder_.File("m"));
  std::filesystem::create_directory(folder_.File("other"));
  const Answering other(folder_.File("other"));
  std::filesystem::copy(folder_.File("other/ca.crt"), folder_.File("m/ca.crt"));
  const absl::Status status = JoinAs("m", token).status();
  EXPECT_EQ(FailureOf(status), Failure::kUsage) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another authority"));
  EXPECT_TRUE(JoinAs("new", token).ok());
}

TEST_F(Joining, SaysWhatIsWrongWhenNobodyAnswers) {
  const JoinToken token = authority_->Token(AWorker());
  authority_->Stop();
  const absl::Status status = JoinAs("m", token).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("nothing listens there"));
  EXPECT_EQ(FailureOf(JoinAs("m", {}).status()), Failure::kUsage);
  EXPECT_FALSE(std::filesystem::exists(folder_.File("m"))) << "nothing came into it";
  std::filesystem::create_directory(folder_.File("mine"));
  EXPECT_FALSE(JoinAs("mine", token).ok());
  EXPECT_TRUE(std::filesystem::exists(folder_.File("mine")));
}

TEST_F(Joining, SaysSoWhenTheAuthorityIsStopped) {
  JoinToken token = authority_->Token(AWorker());
  HostPort listen{"127.0.0.1", 0};
  const UniqueFd silent = *Listen(listen);  // takes the connection and reads nothing
  token.address = listen.ToString();
  const absl::Status status = DialAuthority(token, absl::Milliseconds(100)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("sends nothing"));
}

}  // namespace
}  // namespace syncline::certs
