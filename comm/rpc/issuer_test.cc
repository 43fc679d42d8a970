#include "comm/rpc/issuer.h"

#include <set>

#include "absl/time/clock.h"
#include "comm/base/failure.h"
#include "comm/rpc/certificate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

// Whole seconds, as certificates have them.
Validity ADay() {
  const absl::Time now = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()));
  return {now - absl::Minutes(5), now + absl::Hours(24)};
}

TEST(Issuer, CertificatesSayWhatWasOrdered) {
  const Validity validity = ADay();
  const auto ca = MakeAuthority({.name = "my-ca", .validity = validity});
  ASSERT_TRUE(ca.ok()) << ca.status();
  const auto leaf =
      Issue(*ca, {.name = "coordinator",
                  .uri = "spiffe://d/syncline/c/role/coordinator",
                  .hosts = {"coordinator.example", "192.0.2.7", "2001:db8::1"},
                  .validity = validity});
  ASSERT_TRUE(leaf.ok()) << leaf.status();
  const CertificatePtr certificate = ParseCertificate(leaf->certificate);
  ASSERT_NE(certificate, nullptr);
  const CertificateFacts facts = FactsOf(*certificate);
  EXPECT_EQ(facts.subject, "coordinator");
  EXPECT_EQ(facts.issuer, "my-ca");
  EXPECT_EQ(facts.from, validity.from);
  EXPECT_EQ(facts.until, validity.until);
  EXPECT_THAT(facts.names.uris, ElementsAre("spiffe://d/syncline/c/role/coordinator"));
  EXPECT_THAT(facts.names.hosts, ElementsAre("coordinator.example"));
  EXPECT_THAT(facts.addresses, ElementsAre("192.0.2.7", "2001:db8::1"));
  EXPECT_TRUE(IsForHost(*certificate, "192.0.2.7"));
  EXPECT_TRUE(IsForHost(*certificate, "coordinator.example"));
  EXPECT_FALSE(IsForHost(*certificate, "example"));
  EXPECT_EQ(CheckIdentity({"--tls-cert", "c", leaf->certificate},
                          {"--tls-key", "k", leaf->key}, absl::Now()),
            absl::OkStatus());
}

TEST(Issuer, SerialNumbersDiffer) {
  const auto ca = MakeAuthority({.name = "ca", .validity = ADay()});
  ASSERT_TRUE(ca.ok());
  std::set<std::string> serials;
  for (int i = 0; i < 20; ++i) {
    const auto leaf = Issue(*ca, {.name = "a", .validity = ADay()});
    ASSERT_TRUE(leaf.ok()) << leaf.status();
    serials.insert(FactsOf(*ParseCertificate(leaf->certificate)).serial);
  }
  EXPECT_EQ(serials.size(), 20u);
}

TEST(Issuer, RefusesWhatIsNoAuthorityAndNamesThatNobodyHas) {
  const auto ca = MakeAuthority({.name = "ca", .validity = ADay()});
  const auto other = MakeAuthority({.name = "ca", .validity = ADay()});
  const auto leaf = Issue(*ca, {.name = "a", .validity = ADay()});
  const auto code = [](const PemPair& authority, const CertificateOrder& order) {
    return Issue(authority, order).status().code();
  };
  const CertificateOrder order = {.name = "b", .validity = ADay()};
  using absl::StatusCode;
  EXPECT_EQ(code(*leaf, order), StatusCode::kInvalidArgument) << "no CA";
  EXPECT_EQ(code({ca->certificate, other->key}, order), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"", ""}, order), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(*ca, {.name = "", .validity = ADay()}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(*ca, {.name = "b", .hosts = {"a b"}, .validity = ADay()}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(*ca, {.name = "b", .hosts = {"a\nb"}, .validity = ADay()}),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace syncline
