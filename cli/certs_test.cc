#include "cli/certs.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/app.h"
#include "cli/authority/directory.h"
#include "cli/authority/renewal_book.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/revoked.h"
#include "comm/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

namespace fs = std::filesystem;

class Certs : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.File(name); }

  std::set<std::string> NamesIn(const std::string& directory) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  CertificateFacts Facts(const std::string& name) const {
    std::ifstream file(Path(name));
    const std::string pem{std::istreambuf_iterator<char>(file), {}};
    const CertificatePtr certificate = ParseCertificate(pem);
    EXPECT_NE(certificate, nullptr) << name;
    return FactsOf(*certificate);
  }

  TlsOptions Files(const std::string& name) const {
    return {Path("c/" + name + ".crt"), Path("c/" + name + ".key"), Path("c/ca.crt")};
  }

  absl::StatusOr<std::string> IssueInC(CertsIssue order) const {
    order.directory = Path("c");
    return IssueCertificate(order);
  }

  std::vector<std::string> Audit(const std::string& directory) const {
    std::ifstream file(Path(directory + "/audit.log"));
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  static void ExpectUsage(const absl::Status& status, const std::string& word) {
    EXPECT_EQ(FailureOf(status), Failure::kUsage) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }

  TempDirectory folder_;
};

TEST_F(Certs, InitMakesAnAuthorityAndThreeMembers) {
  ASSERT_EQ(InitCertificates({.directory = Path("c"),
                              .trust_domain = "example.org",
                              .cluster = "prod",
                              .hosts = {"coordinator.example", "192.0.2.7"}}),
            absl::OkStatus());
  EXPECT_THAT(NamesIn(Path("c")),
              UnorderedElementsAre("ca.crt", "ca.key", "coordinator.crt",
                                   "coordinator.key", "server.crt", "server.key",
                                   "operator.crt", "operator.key", "revoked"));
  for (const std::string& name : NamesIn(Path("c"))) {
    struct stat found = {};
    ASSERT_EQ(stat(Path("c/" + name).c_str(), &found), 0);
    const bool is_key = fs::path(name).extension() == ".key";
    EXPECT_EQ(found.st_mode & (is_key ? 0777u : 0722u), 0600u) << name;
  }
  const CertificateFacts coordinator = Facts("c/coordinator.crt");
  EXPECT_THAT(coordinator.names.uris,
              ElementsAre("spiffe://example.org/syncline/prod/role/coordinator"));
  EXPECT_THAT(coordinator.names.hosts, ElementsAre("coordinator.example", "localhost"));
  EXPECT_THAT(coordinator.addresses, ElementsAre("192.0.2.7", "127.0.0.1", "::1"));
  EXPECT_LE(coordinator.until, absl::Now() + absl::Hours(24));
  EXPECT_GT(coordinator.until, absl::Now() + absl::Hours(23));
  EXPECT_THAT(Facts("c/server.crt").names.uris,
              ElementsAre("spiffe://example.org/syncline/prod/role/server"));
  EXPECT_TRUE(Facts("c/server.crt").names.hosts.empty());
  EXPECT_GT(Facts("c/ca.crt").until, absl::Now() + absl::Hours(24 * 3000));
}

TEST_F(Certs, WhatItMakesIsWhatTheControlPlaneTakes) {
  ASSERT_EQ(InitCertificates({.directory = Path("c")}), absl::OkStatus());
  ASSERT_TRUE(IssueInC({.role = "worker", .job = "bert"}).ok());
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.tls = Files("coordinator");
  auto running = StartServer(options);
  ASSERT_TRUE(running.ok()) << running.status();
  for (const char* name : {"server", "operator", "worker-bert"}) {
    const TlsOptions tls = Files(name);
    const auto channel = CreateChannel(running->address, tls, RpcTimeouts::Default());
    ASSERT_TRUE(channel.ok()) << channel.status();
    EXPECT_EQ(WaitUntilConnected(**channel, running->address, tls, absl::Seconds(10)),
              absl::OkStatus())
        << name;
  }
}

TEST_F(Certs, InitLeavesAloneWhatIsThere) {
  fs::create_directory(Path("c"));
  EXPECT_EQ(InitCertificates({.directory = Path("c")}), absl::OkStatus()) << "empty";
  const std::string serial = Facts("c/ca.crt").serial;
  ExpectUsage(InitCertificates({.directory = Path("c")}), "exists already");
  EXPECT_EQ(Facts("c/ca.crt").serial, serial);
}

TEST_F(Certs, AFailureLeavesNothingBehind) {
  ExpectUsage(InitCertificates({.directory = Path("c"), .hosts = {"a host"}}), "a host");
  ExpectUsage(InitCertificates({.directory = Path("c"), .cluster = "my cluster"}),
              "the cluster 'my cluster' cannot be used in a certificate");
  ExpectUsage(InitCertificates({.directory = Path("c"), .hours = 0}), "--hours 0");
  EXPECT_EQ(InitCertificates({.directory = Path("missing/c")}).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(NamesIn(folder_.path()).empty());
}

TEST_F(Certs, IssueMakesOneAndReplacesItOnlyWhenTold) {
  ASSERT_EQ(InitCertificates({.directory = Path("c"), .hosts = {"coordinator.example"}}),
            absl::OkStatus());
  const auto made = IssueInC({.role = "worker", .job = "bert", .hours = 2});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(*made, Path("c/worker-bert"));
  EXPECT_THAT(
      Facts("c/worker-bert.crt").names.uris,
      ElementsAre("spiffe://syncline.internal/syncline/default/job/bert/role/worker"));
  EXPECT_LE(Facts("c/worker-bert.crt").until, absl::Now() + absl::Hours(2));
  ExpectUsage(IssueInC({.role = "worker", .job = "bert"}).status(), "--overwrite");
  const CertificateFacts before = Facts("c/coordinator.crt");
  ASSERT_TRUE(IssueInC({.role = "coordinator", .overwrite = true}).ok());
  const CertificateFacts after = Facts("c/coordinator.crt");
  EXPECT_NE(after.serial, before.serial);
  EXPECT_EQ(after.names.hosts, before.names.hosts) << "renewed for the same hosts";
  EXPECT_EQ(after.addresses, before.addresses);
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"server-0", "server-1"}, {}}) {
    ASSERT_TRUE(IssueInC({.role = "server", .hosts = hosts, .overwrite = true}).ok());
    EXPECT_THAT(Facts("c/server.crt").names.hosts, ElementsAre("server-0", "server-1"));
  }
  ASSERT_TRUE(IssueInC({.role = "reader", .out = Path("grafana")}).ok());
  EXPECT_THAT(NamesIn(folder_.path()),
              UnorderedElementsAre("c", "grafana.crt", "grafana.key"));
  EXPECT_EQ(NamesIn(Path("c")).size(), 12u) << "no temporary files";
}

TEST_F(Certs, IssueRefusesWhatNobodyCouldUse) {
  ASSERT_EQ(InitCertificates({.directory = Path("c")}), absl::OkStatus());
  ExpectUsage(IssueInC({.role = "root"}).status(), "--role: 'root' is not a role");
  ExpectUsage(IssueInC({.role = "worker"}).status(), "give --job");
  ExpectUsage(IssueInC({.role = "server", .job = "bert"}).status(),
              "--job is for --role worker");
  ExpectUsage(IssueInC({.role = "worker", .job = "../x"}).status(),
              "cannot be used in a certificate");
  ExpectUsage(IssueInC({.role = "server", .hours = 1e9}).status(), "--hours 1e+09");
  ExpectUsage(IssueCertificate({.directory = Path("none"), .role = "server"}).status(),
              "ca.crt");
}

TEST_F(Certs, RevokeAddsSerialsToTheList) {
  ASSERT_EQ(InitCertificates({.directory = Path("c")}), absl::OkStatus());
  ASSERT_TRUE(IssueInC({.role = "worker", .job = "bert"}).ok());
  const auto revoke = [&](CertsRevoke order) {
    order.directory = Path("c");
    return RevokeCertificates(order);
  };
  const auto listed = [&] {
    std::ifstream file(Path("c/revoked"));
    return *ParseRevoked(std::string{std::istreambuf_iterator<char>(file), {}});
  };
  EXPECT_THAT(listed(), IsEmpty());
  const std::string worker = *ParseSerial(Facts("c/worker-bert.crt").serial);
  EXPECT_THAT(*revoke({.files = {Path("c/worker-bert.crt")}}),
              AllOf(HasSubstr(worker), HasSubstr("worker of job 'bert', valid to ")));
  EXPECT_THAT(listed(), ElementsAre(worker));
  EXPECT_EQ(*revoke({.files = {Path("c/worker-bert.crt")}}), "") << "it is there";
  EXPECT_TRUE(revoke({.serials = {"0a:1b"}}).ok());
  EXPECT_THAT(listed(), UnorderedElementsAre(worker, "0A1B"));
  ExpectUsage(revoke({}).status(), "certs revoke needs");
  ExpectUsage(revoke({.serials = {"bert"}}).status(), "'bert'");
  ExpectUsage(revoke({.files = {Path("c/ca.crt")}}).status(), "c/ca.crt");
  EXPECT_THAT(listed(), UnorderedElementsAre(worker, "0A1B"));
  EXPECT_THAT(
      Audit("c"),
      ElementsAre(AllOf(HasSubstr("\"issued\""), HasSubstr("/job/bert/role/worker"),
                        HasSubstr(Facts("c/worker-bert.crt").serial)),
                  AllOf(HasSubstr("\"revoked\""), HasSubstr(worker)),
                  AllOf(HasSubstr("\"revoked\""), HasSubstr("0A1B"))));
}

// The owner of an authority's key could sign without this command anyway.
TEST_F(Certs, WithoutItsAuditLogAnAuthorityWorksAndSaysSo) {
  ASSERT_EQ(InitCertificates({.directory = Path("c")}), absl::OkStatus());
  std::filesystem::create_directory(Path("c/audit.log"));
  testing::internal::CaptureStderr();
  EXPECT_TRUE(IssueInC({.role = "worker", .job = "bert"}).ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("warning: cannot write a line to " + Path("c/audit.log")));
}

TEST_F(Certs, WhatACertificateWasRenewedToIsTakenBackWithIt) {
  ASSERT_EQ(InitCertificates({.directory = Path("c")}), absl::OkStatus());
  ASSERT_TRUE(IssueInC({.role = "worker", .job = "bert"}).ok());
  ASSERT_TRUE(IssueInC({.role = "worker", .job = "next"}).ok());
  const std::string old = Facts("c/worker-bert.crt").serial;
  const std::string next = Facts("c/worker-next.crt").serial;
  const auto renewed = certs::RenewOnce(
      Path("c"), {.serial = old, .key = "its key"},
      [&]() -> absl::StatusOr<std::string> {
        return certs::ReadFile(Path("c/worker-next.crt"));
      },
      absl::Now());
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  const auto added = RevokeCertificates({.directory = Path("c"), .serials = {old}});
  ASSERT_TRUE(added.ok()) << added.status();
  const std::set<std::string> serials = *ParseRevoked(*added);
  EXPECT_THAT(serials, UnorderedElementsAre(*ParseSerial(old), *ParseSerial(next)));
}

TEST_F(Certs, SeveralThatRevokeAtOnceLoseNothing) {
  ASSERT_EQ(InitCertificates({.directory = Path("c")}), absl::OkStatus());
  constexpr int kAtOnce = 8;
  std::vector<absl::Status> revoked(kAtOnce);
  std::vector<std::thread> threads;
  for (int i = 0; i < kAtOnce; ++i) {
    threads.emplace_back([&, i] {
      const CertsRevoke order = {.directory = Path("c"),
                                 .serials = {absl::StrCat("A", i)}};
      revoked[i] = RevokeCertificates(order).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(revoked, Each(absl::OkStatus()));
  std::ifstream file(Path("c/revoked"));
  const std::string contents{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(ParseRevoked(contents)->size(), kAtOnce);
}

TEST_F(Certs, CommandsPrintWhatTheyMade) {
  const auto run = [](const std::vector<std::string>& words) {
    std::vector<const char*> argv = {"syncline"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    const AddCommand commands[] = {AddCerts};
    testing::internal::CaptureStdout();
    const int code = RunApp(argv, commands);
    return absl::StrCat(code, ": ", testing::internal::GetCapturedStdout());
  };
  EXPECT_THAT(run({"certs", "init", Path("c"), "--host", "a.example", "--cluster", "x"}),
              AllOf(HasSubstr("0: "), HasSubstr("coordinator of cluster x"),
                    HasSubstr("a.example, localhost"), HasSubstr("--role worker")));
  EXPECT_THAT(run({"certs", "issue", Path("c"), "--role", "worker", "--job", "bert"}),
              AllOf(HasSubstr("0: "), HasSubstr("worker of job 'bert' of cluster x")));
  EXPECT_THAT(run({"certs", "show", Path("c/ca.crt"), Path("c/server.crt")}),
              AllOf(HasSubstr("role    none"), HasSubstr("server of cluster x")));
  EXPECT_THAT(run({"certs", "show", Path("c/ca.key")}), HasSubstr("2: "));
}

}  // namespace
}  // namespace syncline
