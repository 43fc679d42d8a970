#include "comm/rpc/authorities.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/failure.h"
#include "comm/rpc/certificates_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

class SetClock final : public Clock {
 public:
  absl::Duration Now() const override { return now; }
  absl::Duration now = absl::Seconds(100);
};

class AuthoritiesTest : public testing::Test {
 protected:
  void SetUp() override {
    files_.MakeCa("old");
    files_.MakeCa("new");
    files_.MakeLeaf("of-old", "old");
    files_.MakeLeaf("of-new", "new");
    files_.Write("ca.crt", Pem("old"));
  }

  std::string Pem(const std::string& name) const { return files_.Read(name + ".crt"); }
  std::unique_ptr<Authorities> Open() {
    auto authorities =
        Authorities::Open({.path = files_.Path("ca.crt"), .clock = &clock_});
    EXPECT_TRUE(authorities.ok()) << authorities.status();
    return *std::move(authorities);
  }
  // Replaces the file one second later.
  void Replace(const std::string& pem) {
    files_.Write("ca.crt", pem);
    clock_.now += absl::Seconds(1);
  }

  TestCertificates files_;
  SetClock clock_;
};

TEST_F(AuthoritiesTest, AChainLeadsToOneOfThem) {
  const absl::Time now = absl::Now();
  EXPECT_EQ(VerifyChain(Pem("of-old"), Pem("old"), now), absl::OkStatus());
  EXPECT_EQ(VerifyChain(Pem("of-new"), Pem("old") + Pem("new"), now), absl::OkStatus());
  const absl::Status refused = VerifyChain(Pem("of-new"), Pem("old"), now);
  EXPECT_TRUE(absl::IsUnauthenticated(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("signed by 'new'"));
  EXPECT_TRUE(
      absl::IsUnauthenticated(VerifyChain(Pem("of-new") + Pem("new"), Pem("old"), now)))
      << "what it shows beside it is not believed";
  EXPECT_TRUE(absl::IsUnauthenticated(
      VerifyChain(Pem("of-old"), Pem("old"), now + absl::Hours(72))));
  EXPECT_FALSE(VerifyChain("", Pem("old"), now).ok());
}

TEST_F(AuthoritiesTest, WhoseAuthorityIsGoneIsNotBelievedAnyMore) {
  const auto authorities = Open();
  PeerProof old(Pem("of-old"));
  PeerProof fresh(Pem("of-new"));
  EXPECT_EQ(authorities->Check(old), absl::OkStatus());
  EXPECT_TRUE(absl::IsUnauthenticated(authorities->Check(fresh)));
  Replace(Pem("old") + Pem("new"));
  EXPECT_EQ(authorities->Check(old), absl::OkStatus()) << "both, while members renew";
  EXPECT_EQ(authorities->Check(fresh), absl::OkStatus());
  Replace(Pem("new"));
  EXPECT_TRUE(absl::IsUnauthenticated(authorities->Check(old)));
  EXPECT_EQ(authorities->Check(fresh), absl::OkStatus());
}

TEST_F(AuthoritiesTest, TheFileIsLookedAtOnceASecond) {
  const auto authorities = Open();
  PeerProof old(Pem("of-old"));
  files_.Write("ca.crt", Pem("new"));
  clock_.now += absl::Milliseconds(900);
  EXPECT_EQ(authorities->Check(old), absl::OkStatus());
  clock_.now += absl::Milliseconds(100);
  EXPECT_TRUE(absl::IsUnauthenticated(authorities->Check(old)));
}

TEST_F(AuthoritiesTest, AFileThatIsOfNoUseChangesNothing) {
  const auto authorities = Open();
  PeerProof old(Pem("of-old"));
  PeerProof fresh(Pem("of-new"));
  const std::string cut = Pem("new");
  for (const std::string& pem :
       {std::string(), std::string("nonsense"), cut.substr(0, cut.size() / 2),
        Pem("new") + cut.substr(0, cut.size() / 2)}) {
    Replace(pem);
    EXPECT_EQ(authorities->Check(old), absl::OkStatus());
    EXPECT_FALSE(authorities->Check(fresh).ok());
  }
  Replace(Pem("new"));
  EXPECT_FALSE(authorities->Check(old).ok());
}

TEST_F(AuthoritiesTest, AFileWithoutCertificatesIsRefusedAtStart) {
  files_.Write("ca.crt", "nonsense");
  const absl::Status status = Authorities::Open({.path = files_.Path("ca.crt")}).status();
  EXPECT_EQ(FailureOf(status), Failure::kUsage);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--tls-ca"));
}

}  // namespace
}  // namespace syncline
