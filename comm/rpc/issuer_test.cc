#include "comm/rpc/issuer.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <set>
#include <string>

#include "absl/time/clock.h"
#include "comm/base/failure.h"
#include "comm/rpc/certificate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

// In whole seconds, as in certificates.
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

TEST(Issuer, ARequestGetsACertificateForItsKeyWithTheNamesThatWereOrdered) {
  const Validity validity = ADay();
  const PemPair ca = *MakeAuthority({.name = "ca", .validity = validity});
  const CertificateOrder order = {
      .name = "worker", .uri = "spiffe://d/syncline/c/role/server", .validity = validity};
  const auto own = MakeRequest();
  ASSERT_TRUE(own.ok()) << own.status();
  const auto pem = Certify(ca, order, own->request);
  ASSERT_TRUE(pem.ok()) << pem.status();
  EXPECT_EQ(CheckIdentity({"c", "c", *pem}, {"k", "k", own->key}, absl::Now()),
            absl::OkStatus());
  const CertificatePtr certificate = ParseCertificate(*pem);
  EXPECT_THAT(FactsOf(*certificate).names.uris, ElementsAre(order.uri));
  EXPECT_EQ(*KeyOfRequest(own->request), *KeyOfRequest(own->request));
  EXPECT_NE(*KeyOfRequest(own->request), *KeyOfRequest(MakeRequest()->request));
  EXPECT_EQ(FingerprintOf(*certificate).size(), 64u);
}

TEST(Issuer, RequestsThatProveNothingAreRefused) {
  const PemPair ca = *MakeAuthority({.name = "ca", .validity = ADay()});
  const std::string good = MakeRequest()->request;
  const size_t last = good.rfind("-----END") - 8;
  std::string forged = good;
  forged[last] = forged[last] == 'A' ? 'B' : 'A';
  for (const std::string& request : {std::string(), std::string("nonsense"), forged,
                                     good.substr(0, good.size() / 2), ca.certificate}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        Certify(ca, {.name = "x", .validity = ADay()}, request).status()))
        << request;
    EXPECT_FALSE(KeyOfRequest(request).ok());
  }
}

std::string RequestFor(EVP_PKEY* key) {
  X509_REQ* const request = X509_REQ_new();
  X509_REQ_set_pubkey(request, key);
  X509_REQ_sign(request, key, EVP_sha256());
  BIO* const bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509_REQ(bio, request);
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio, &bytes);
  std::string pem(bytes, static_cast<size_t>(size));
  BIO_free_all(bio);
  X509_REQ_free(request);
  EVP_PKEY_free(key);
  return pem;
}

TEST(Issuer, OnlyKeysOfOurCurveAreSigned) {
  EXPECT_TRUE(KeyOfRequest(RequestFor(EVP_EC_gen("P-256"))).ok());
  for (EVP_PKEY* const key :
       {EVP_EC_gen("P-384"), EVP_EC_gen("secp256k1"), EVP_RSA_gen(1024)}) {
    const absl::Status status = KeyOfRequest(RequestFor(key)).status();
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("P-256"));
  }
}

TEST(Issuer, MembersAreNoAuthorities) {
  const PemPair ca = *MakeAuthority({.name = "ca", .validity = ADay()});
  const CertificateOrder order = {.name = "x", .validity = ADay()};
  const PemPair leaf = *Issue(ca, order);
  for (const std::string& pem :
       {leaf.certificate, *Certify(ca, order, MakeRequest()->request)}) {
    const CertificatePtr certificate = ParseCertificate(pem);
    EXPECT_EQ(X509_get_extension_flags(certificate.get()) & EXFLAG_CA, 0u);
    EXPECT_EQ(X509_get_key_usage(certificate.get()), uint32_t{KU_DIGITAL_SIGNATURE});
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Issue(leaf, order).status()));
}

}  // namespace
}  // namespace syncline
