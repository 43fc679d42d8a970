#include "cli/certs_join.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/app.h"
#include "cli/authority/directory.h"
#include "cli/certs.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "comm/rpc/join_token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CertsJoin : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(InitCertificates({.directory = folder_.File("c")}), absl::OkStatus());
  }
  absl::StatusOr<std::string> Make(CertsToken order) const {
    order.directory = folder_.File("c");
    return MakeToken(order);
  }
  static void ExpectUsage(const absl::Status& status, const std::string& word) {
    EXPECT_EQ(FailureOf(status), Failure::kUsage) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
  std::string Run(const std::vector<std::string>& words) const {
    std::vector<const char*> argv = {"syncline", "certs"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    const AddCommand commands[] = {AddCerts};
    testing::internal::CaptureStdout();
    const int code = RunApp(argv, commands);
    return absl::StrCat(code, ": ", testing::internal::GetCapturedStdout());
  }

  TempDirectory folder_;
};

TEST_F(CertsJoin, ATokenNamesTheAuthorityAndWhereItAnswers) {
  const auto made = Make({.role = "server", .address = "ca.example:1234"});
  ASSERT_TRUE(made.ok()) << made.status();
  const auto token = ParseJoinToken(*made);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(token->address, "ca.example:1234");
  const auto other = Make({.role = "worker", .job = "bert"});
  EXPECT_NE(ParseJoinToken(*other)->secret, token->secret);
  EXPECT_EQ(ParseJoinToken(*other)->authority, token->authority);
  EXPECT_THAT(ParseJoinToken(*other)->address, HasSubstr(":7073"));
  const std::string audit = *certs::ReadFile(folder_.File("c/audit.log"));
  EXPECT_THAT(audit, AllOf(HasSubstr("\"made a token\""), HasSubstr(token->id),
                           HasSubstr("worker of job 'bert'")));
  EXPECT_THAT(audit, Not(HasSubstr(token->secret)));
}

TEST_F(CertsJoin, TokensForNobodyAreRefused) {
  ExpectUsage(Make({.role = "root"}).status(), "--role: 'root' is not a role");
  ExpectUsage(Make({.role = "worker"}).status(), "give --job");
  ExpectUsage(Make({.role = "worker", .job = "../x"}).status(), "cannot be used in");
  ExpectUsage(Make({.role = "coordinator"}).status(), "--role coordinator --host");
  ExpectUsage(Make({.role = "server", .ttl = "0s"}).status(), "1s to 168h");
  ExpectUsage(Make({.role = "server", .ttl = "169h"}).status(), "1s to 168h");
  ExpectUsage(Make({.role = "server", .ttl = "soon"}).status(), "--ttl");
  ExpectUsage(Make({.role = "server", .uses = 0}).status(), "1 to 1024");
  ExpectUsage(Make({.role = "server", .uses = 1025}).status(), "1 to 1024");
  ExpectUsage(Make({.role = "server", .hours = 0}).status(), "--hours");
  ExpectUsage(Make({.role = "server", .address = "nowhere"}).status(), "HOST:PORT");
  ExpectUsage(MakeToken({.directory = folder_.File("none"), .role = "server"}).status(),
              "ca.crt");
}

TEST_F(CertsJoin, CommandsSayWhatTheyNeed) {
  const std::string directory = folder_.File("c");
  EXPECT_THAT(Run({"token", directory, "--role", "server"}), StartsWith("0: sl1."));
  EXPECT_THAT(Run({"token", directory}), StartsWith("2: "));
  EXPECT_THAT(Run({"join"}), StartsWith("2: "));
  EXPECT_THAT(Run({"join", "sl1.nonsense", "--out", folder_.File("m")}),
              StartsWith("2: "));
  EXPECT_THAT(Run({"serve"}), StartsWith("2: "));
}

}  // namespace
}  // namespace syncline
