#include "comm/rpc/certificate.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "comm/base/failure.h"
#include "comm/rpc/freer.h"

namespace syncline {
namespace {

using Bio = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;

absl::Status Wrong(const PemFile& file, absl::string_view what) {
  // What OpenSSL noted along the way is said here in our words.
  ERR_clear_error();
  return WithFailure(
      absl::InvalidArgumentError(absl::StrCat(file.flag, " '", file.path, "' ", what)),
      Failure::kUsage);
}

Bio Open(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Certificate NextCertificate(BIO* bio) {
  return Certificate(PEM_read_bio_X509(bio, nullptr, nullptr, nullptr));
}

// Never asks on the terminal.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*rwflag*/, void* /*user*/) {
  return 0;
}

std::string Written(const ASN1_TIME* time) {
  tm fields = {};
  if (ASN1_TIME_to_tm(time, &fields) != 1) return "an unknown time";
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::FromTM(fields, absl::UTCTimeZone()),
                          absl::UTCTimeZone());
}

}  // namespace

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
  const Certificate certificate = NextCertificate(Open(cert.text).get());
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
  while (const Certificate certificate = NextCertificate(bio.get())) {
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
