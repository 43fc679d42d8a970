// Reads certificates, and checks a process's own TLS files before it connects. Otherwise
// an expired certificate, or a key of another one, looks like a peer that does not
// answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/rpc/identity.h"

struct x509_st;  // X509 of OpenSSL

namespace syncline {

// A PEM file, with its flag and path for messages.
struct PemFile {
  std::string flag;  // "--tls-cert"
  std::string path;
  std::string text;
};

// Fails with InvalidArgument (Failure::kUsage) unless the first certificate of `cert` is
// valid at `now` and `key` is its private key, without a passphrase.
absl::Status CheckIdentity(const PemFile& cert, const PemFile& key, absl::Time now);

// Returns why `certificate` is not valid at `now`, and advice: "expired on 2026-01-31
// 10:00 UTC; renew it". Empty if it is valid.
std::string WhyNotValid(const x509_st& certificate, absl::Time now);

// Fails with InvalidArgument (Failure::kUsage) unless `ca` contains a certificate that is
// valid at `now`.
absl::Status CheckAuthorities(const PemFile& ca, absl::Time now);

// The contents of a certificate.
struct CertificateFacts {
  std::string subject;  // the subject's common name
  std::string issuer;   // the issuer's common name
  std::string serial;   // hexadecimal
  SubjectNames names = {};
  std::vector<std::string> addresses = {};
  absl::Time from;
  absl::Time until;
};

CertificateFacts FactsOf(const x509_st& certificate);

// Returns the SHA-256 of the DER bytes in lower-case hexadecimal, like `openssl x509
// -fingerprint -sha256` without colons.
std::string FingerprintOf(const x509_st& certificate);

struct FreeCertificate {
  void operator()(x509_st* certificate) const;
};
using CertificatePtr = std::unique_ptr<x509_st, FreeCertificate>;

// Parses the first certificate; null when there is none.
CertificatePtr ParseCertificate(const std::string& pem);

std::string ToPem(const x509_st& certificate);

// Returns true if a server at `host`, a name or an address, may present this certificate.
bool IsForHost(x509_st& certificate, const std::string& host);

}  // namespace syncline
