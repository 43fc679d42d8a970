#include "comm/rpc/certificate.h"

#include <arpa/inet.h>
#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <array>
#include <ctime>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "comm/base/check.h"
#include "comm/base/failure.h"
#include "comm/rpc/freer.h"

namespace syncline {
namespace {

void FreeHexadecimal(char* text) { OPENSSL_free(text); }

using Bio = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freer<GENERAL_NAMES_free>>;
using Number = std::unique_ptr<BIGNUM, Freer<BN_free>>;
using Hexadecimal = std::unique_ptr<char, Freer<FreeHexadecimal>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;

absl::Status Wrong(const PemFile& file, absl::string_view what) {
  // The caller gets our own message, so OpenSSL's queued errors are dropped.
  ERR_clear_error();
  return WithFailure(
      absl::InvalidArgumentError(absl::StrCat(file.flag, " '", file.path, "' ", what)),
      Failure::kUsage);
}

Bio Open(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

CertificatePtr NextCertificate(BIO* bio) {
  return CertificatePtr(PEM_read_bio_X509(bio, nullptr, nullptr, nullptr));
}

// Keeps OpenSSL from asking for a passphrase on the terminal.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*rwflag*/, void* /*user*/) {
  return 0;
}

std::string Written(const ASN1_TIME* time) {
  tm fields = {};
  if (ASN1_TIME_to_tm(time, &fields) != 1) return "an unknown time";
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::FromTM(fields, absl::UTCTimeZone()),
                          absl::UTCTimeZone());
}

std::string CommonName(const X509_NAME* name) {
  std::array<char, 256> text = {};
  const int length = X509_NAME_get_text_by_NID(name, NID_commonName, text.data(),
                                               static_cast<int>(text.size()));
  return length > 0 ? std::string(text.data()) : "no name";
}

std::string Ip(const ASN1_OCTET_STRING& bytes) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const int family = ASN1_STRING_length(&bytes) == 4 ? AF_INET : AF_INET6;
  const char* written =
      inet_ntop(family, ASN1_STRING_get0_data(&bytes), text.data(), text.size());
  return written == nullptr ? "?" : written;
}

std::string Bytes(const ASN1_STRING& string) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(&string)),
          static_cast<size_t>(ASN1_STRING_length(&string))};
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm fields = {};
  return ASN1_TIME_to_tm(time, &fields) == 1 ? absl::FromTM(fields, absl::UTCTimeZone())
                                             : absl::UniversalEpoch();
}

std::string SerialOf(const X509& certificate) {
  const Number number(ASN1_INTEGER_to_BN(X509_get0_serialNumber(&certificate), nullptr));
  const Hexadecimal text(number == nullptr ? nullptr : BN_bn2hex(number.get()));
  return text == nullptr ? "" : text.get();
}

}  // namespace

void FreeCertificate::operator()(x509_st* certificate) const { X509_free(certificate); }

CertificatePtr ParseCertificate(const std::string& pem) {
  CertificatePtr certificate = NextCertificate(Open(pem).get());
  ERR_clear_error();
  return certificate;
}

CertificateFacts FactsOf(const x509_st& certificate) {
  CertificateFacts facts = {.subject = CommonName(X509_get_subject_name(&certificate)),
                            .issuer = CommonName(X509_get_issuer_name(&certificate)),
                            .serial = SerialOf(certificate),
                            .from = TimeOf(X509_get0_notBefore(&certificate)),
                            .until = TimeOf(X509_get0_notAfter(&certificate))};
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_IPADD) facts.addresses.push_back(Ip(*name->d.iPAddress));
    if (name->type == GEN_DNS) facts.names.hosts.push_back(Bytes(*name->d.dNSName));
    if (name->type == GEN_URI) {
      facts.names.uris.push_back(Bytes(*name->d.uniformResourceIdentifier));
    }
  }
  ERR_clear_error();
  return facts;
}

std::string FingerprintOf(const x509_st& certificate) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  SYNCLINE_CHECK(X509_digest(&certificate, EVP_sha256(), digest.data(), &size) == 1);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

std::string ToPem(const x509_st& certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  char* bytes = nullptr;
  SYNCLINE_CHECK(PEM_write_bio_X509(bio.get(), &certificate) == 1);
  const long size = BIO_get_mem_data(bio.get(), &bytes);
  return {bytes, static_cast<size_t>(size)};
}

bool IsForHost(x509_st& certificate, const std::string& host) {
  return X509_check_ip_asc(&certificate, host.c_str(), 0) == 1 ||
         X509_check_host(&certificate, host.c_str(), host.size(), 0, nullptr) == 1;
}

std::string WhyNotValid(const x509_st& certificate, absl::Time now) {
  time_t seconds = absl::ToTimeT(now);
  const ASN1_TIME* until = X509_get0_notAfter(&certificate);
  if (X509_cmp_time(until, &seconds) < 0) {
    return absl::StrCat("expired on ", Written(until), "; renew it");
  }
  const ASN1_TIME* from = X509_get0_notBefore(&certificate);
  if (X509_cmp_time(from, &seconds) > 0) {
    return absl::StrCat("is not valid before ", Written(from),
                        "; check this host's clock");
  }
  return "";
}

absl::Status CheckIdentity(const PemFile& cert, const PemFile& key, absl::Time now) {
  const CertificatePtr certificate = NextCertificate(Open(cert.text).get());
  if (certificate == nullptr) return Wrong(cert, "holds no certificate");
  const std::string why = WhyNotValid(*certificate, now);
  if (!why.empty()) return Wrong(cert, why);
  const Key private_key(
      PEM_read_bio_PrivateKey(Open(key.text).get(), nullptr, NoPassphrase, nullptr));
  if (private_key == nullptr) {
    return Wrong(key,
                 "holds no private key that can be read without a passphrase; decrypt it "
                 "with openssl pkey");
  }
  if (X509_check_private_key(certificate.get(), private_key.get()) != 1) {
    return Wrong(key, absl::StrCat("is not the key of ", cert.flag, " '", cert.path,
                                   "'; give the pair that was made together"));
  }
  return absl::OkStatus();
}

absl::Status CheckAuthorities(const PemFile& ca, absl::Time now) {
  const Bio bio = Open(ca.text);
  std::string first_reason;
  while (const CertificatePtr certificate = NextCertificate(bio.get())) {
    const std::string why = WhyNotValid(*certificate, now);
    if (why.empty()) {
      ERR_clear_error();
      return absl::OkStatus();
    }
    if (first_reason.empty()) first_reason = why;
  }
  return Wrong(ca, first_reason.empty() ? "holds no certificate" : first_reason);
}

}  // namespace syncline
