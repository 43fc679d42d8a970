// What certificates say, and what a process can know about its own TLS files before
// anyone connects: one that has expired or a key of another certificate otherwise shows as
// a peer that does not answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/rpc/identity.h"

struct x509_st;  // X509 of OpenSSL

namespace syncline {

// A PEM file: its path and flag are for messages.
struct PemFile {
  std::string flag;  // "--tls-cert"
  std::string path;
  std::string text;
};

// InvalidArgument (Failure::kUsage) unless the first certificate of `cert` is valid at
// `now` and `key` is its private key, without a passphrase.
absl::Status CheckIdentity(const PemFile& cert, const PemFile& key, absl::Time now);

// Why `certificate` is not valid at `now`, and what to do: "expired on 2026-01-31 10:00
// UTC; renew it". Empty while it is.
std::string WhyNotValid(const x509_st& certificate, absl::Time now);

// InvalidArgument (Failure::kUsage) unless `ca` holds a certificate that is valid at `now`.
absl::Status CheckAuthorities(const PemFile& ca, absl::Time now);

// What a certificate says.
struct CertificateFacts {
  std::string subject;  // its common name, and that of its issuer
  std::string issuer;
  std::string serial;  // hexadecimal
  SubjectNames names = {};
  std::vector<std::string> addresses = {};
  absl::Time from;
  absl::Time until;
};

CertificateFacts FactsOf(const x509_st& certificate);

// SHA-256 of its bytes (DER), hexadecimal in lower case, as `openssl x509 -fingerprint
// -sha256` has it but for colons.
std::string FingerprintOf(const x509_st& certificate);

struct FreeCertificate {
  void operator()(x509_st* certificate) const;
};
using CertificatePtr = std::unique_ptr<x509_st, FreeCertificate>;

// The first one; null when there is none.
CertificatePtr ParseCertificate(const std::string& pem);

std::string ToPem(const x509_st& certificate);

// Whether a server at `host`, a name or an address, may show it.
bool IsForHost(x509_st& certificate, const std::string& host);

}  // namespace syncline
