#include "cli/authority/token_book.h"

#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "comm/rpc/join_token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace syncline::certs {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

class TokenBook : public testing::Test {
 protected:
  absl::Status Add(const std::string& id, uint32_t uses = 1) const {
    const TokenTerms terms = {.who = {Role::kWorker, "bert"},
                              .until = kNow + absl::Hours(1),
                              .hours = 12,
                              .uses = uses};
    return AddToken(folder_.path(), {id, HashOfSecret("secret")}, terms, kNow);
  }
  absl::StatusOr<TokenUse> Redeem(const TokenClaim& claim, absl::Time now = kNow) const {
    return RedeemToken(folder_.path(), claim, now);
  }
  std::string Contents() const {
    std::ifstream file(folder_.File("tokens.json"));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void ExpectDenied(const absl::StatusOr<TokenUse>& use, const std::string& why) {
    EXPECT_TRUE(absl::IsPermissionDenied(use.status())) << use.status();
    EXPECT_THAT(std::string(use.status().message()), HasSubstr(why));
  }

  TempDirectory folder_;
};

TEST_F(TokenBook, ATokenIsGoodForWhatItWasMadeForAndOnce) {
  ASSERT_EQ(Add("a"), absl::OkStatus());
  const auto use = Redeem({"a", "secret", "key 1"});
  ASSERT_TRUE(use.ok()) << use.status();
  EXPECT_EQ(use->terms.who, (Identity{Role::kWorker, "bert"}));
  EXPECT_EQ(use->terms.hours, 12);
  ExpectDenied(Redeem({"a", "secret", "key 2"}), "was used once");
  EXPECT_TRUE(Redeem({"a", "secret", "key 1"}).ok()) << "the answer was lost";
  ExpectDenied(Redeem({"a", "secret", "key 3"}), "was used once");
}

TEST_F(TokenBook, AnyoneWhoAsksAgainIsGivenWhatItWasGiven) {
  ASSERT_EQ(Add("a", 2), absl::OkStatus());
  const TokenClaim claim = {"a", "secret", "key 1"};
  EXPECT_EQ(Redeem(claim)->certificate, "");
  EXPECT_EQ(*KeepCertificate(folder_.path(), claim, "first", kNow), "first");
  EXPECT_EQ(*KeepCertificate(folder_.path(), claim, "of a second request", kNow),
            "first");
  EXPECT_EQ(Redeem(claim)->certificate, "first");
  EXPECT_EQ(Redeem({"a", "secret", "key 2"})->certificate, "");
}

TEST_F(TokenBook, SeveralMachinesWhereItWasMadeForThem) {
  ASSERT_EQ(Add("a", 2), absl::OkStatus());
  EXPECT_TRUE(Redeem({"a", "secret", "key 1"}).ok());
  EXPECT_TRUE(Redeem({"a", "secret", "key 2"}).ok());
  ExpectDenied(Redeem({"a", "secret", "key 3"}), "was used 2 times");
}

TEST_F(TokenBook, AStrangerHearsTheSameForAnyIdAndUsesNothingUp) {
  ASSERT_EQ(Add("a"), absl::OkStatus());
  const auto unknown = Redeem({"b", "secret", "key"});
  const auto wrong = Redeem({"a", "another", "key"});
  ExpectDenied(unknown, "this token is unknown");
  EXPECT_EQ(unknown.status(), wrong.status());
  ExpectDenied(Redeem({"a", "", "key"}), "this token is unknown");
  ExpectDenied(Redeem({"a", HashOfSecret("secret"), "key"}), "this token is unknown");
  EXPECT_TRUE(Redeem({"a", "secret", "key"}).ok());
}

TEST_F(TokenBook, ATokenEnds) {
  ASSERT_EQ(Add("a"), absl::OkStatus());
  ExpectDenied(Redeem({"a", "secret", "key"}, kNow + absl::Hours(1)), "has expired");
  EXPECT_TRUE(Redeem({"a", "secret", "key"}, kNow + absl::Minutes(59)).ok());
  ExpectDenied(Redeem({"a", "secret", "key"}, kNow + absl::Hours(1)), "has expired");
}

TEST_F(TokenBook, HasNoSecretAndIsForItsUserAlone) {
  ASSERT_EQ(Add("a"), absl::OkStatus());
  struct stat found = {};
  ASSERT_EQ(stat(folder_.File("tokens.json").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777u, 0600u);
  EXPECT_THAT(Contents(), Not(HasSubstr("\"secret\"")));
  EXPECT_THAT(Contents(), HasSubstr(HashOfSecret("secret")));
}

TEST_F(TokenBook, IsBoundedAndForgetsWhatHasEnded) {
  ASSERT_EQ(Add("a"), absl::OkStatus());
  nlohmann::json tokens = nlohmann::json::parse(Contents());
  while (tokens.size() + 1 < kMaxTokens) tokens.push_back(tokens[0]);
  std::ofstream(folder_.File("tokens.json")) << tokens;
  ASSERT_EQ(Add("the last"), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(Add("one more")));
  const absl::Time later = kNow + absl::Hours(1);
  ASSERT_EQ(AddToken(folder_.path(), {"new", HashOfSecret("secret")},
                     {.who = {Role::kServer}, .until = later + absl::Hours(1)}, later),
            absl::OkStatus());
  EXPECT_LT(Contents().size(), 1000u);
}

TEST_F(TokenBook, SaysWhichFileIsDamaged) {
  for (const char* contents : {"", "{}", "[1]", "[{\"id\": 1}]", "[{\"id\": \"a\"}]"}) {
    std::ofstream(folder_.File("tokens.json")) << contents;
    const absl::Status status = Redeem({"a", "secret", "key"}).status();
    EXPECT_EQ(FailureOf(status), Failure::kUsage) << contents;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokens.json"));
  }
}

TEST_F(TokenBook, OfMachinesThatAskAtOnceAsManyGetInAsMay) {
  ASSERT_EQ(Add("a", 3), absl::OkStatus());
  std::atomic<int> taken = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      if (Redeem({"a", "secret", absl::StrCat("key ", i)}).ok()) ++taken;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, 3);
}

}  // namespace
}  // namespace syncline::certs
