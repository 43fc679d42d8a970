// What a process can know about its own TLS files before anyone connects: a certificate
// that has expired or a key of another certificate otherwise shows as a peer that does not
// answer.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

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

}  // namespace syncline
