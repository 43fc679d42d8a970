// Creates certificates for the control plane: an authority, and certificates that it
// signs. Uses EC P-256 and SHA-256; serial numbers are 127 random bits.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const PemPair ca, MakeAuthority(
//       {.name = "my-ca", .validity = validity}));
//   SYNCLINE_ASSIGN_OR_RETURN(const PemPair server, Issue(ca, {
//       .name = "server", .uri = "spiffe://…/role/server", .validity = validity}));
//
// A machine that creates its own key sends a request for it (PKCS#10). Only the public
// key in the request is used:
//
//   SYNCLINE_ASSIGN_OR_RETURN(const KeyRequest own, MakeRequest());        // machine
//   SYNCLINE_ASSIGN_OR_RETURN(std::string pem, Certify(ca, order, own.request));  // CA
//
// Thread safety: any thread. Keys are PEM text in memory; a caller that writes them to a
// file must use mode 0600.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct x509_st;  // X509 of OpenSSL

namespace syncline {

struct PemPair {
  std::string certificate;
  std::string key;
};

struct Validity {
  absl::Time from;
  absl::Time until;
};

struct CertificateOrder {
  std::string name = {};                // the subject's common name, for people
  std::string uri = {};                 // empty: none
  std::vector<std::string> hosts = {};  // names and addresses; none for an authority
  Validity validity;
};

absl::StatusOr<PemPair> MakeAuthority(const CertificateOrder& order);

// Fails with InvalidArgument when `authority` is not the pair of a CA, or a name cannot
// be part of a certificate. Every certificate is valid for clients; one with hosts also
// for servers.
absl::StatusOr<PemPair> Issue(const PemPair& authority, const CertificateOrder& order);

struct KeyRequest {
  std::string key;      // PEM; never leaves the machine
  std::string request;  // PEM
};

absl::StatusOr<KeyRequest> MakeRequest();
// Creates a request for an existing key. InvalidArgument when `key` is not a private key in
// PEM.
absl::StatusOr<KeyRequest> RequestFor(const std::string& key);

// Signs a certificate with the names of `order`. Fails with InvalidArgument unless
// `request` is signed by the key that it contains, and that is a P-256 key.
absl::StatusOr<std::string> Certify(const PemPair& authority,
                                    const CertificateOrder& order,
                                    const std::string& request);

// Returns the SHA-256, in hexadecimal, of the public key in a request that Certify
// accepts.
absl::StatusOr<std::string> KeyOfRequest(const std::string& request);
// Returns the same digest for a certificate's key.
absl::StatusOr<std::string> KeyOfCertificate(const x509_st& certificate);

// Sign a message with a certificate's key (PEM) and SHA-256, and verify the signature. It
// proves that the sender holds the key.
absl::StatusOr<std::string> SignWith(const std::string& key, std::string_view message);
bool IsSignedBy(const x509_st& certificate, std::string_view message,
                std::string_view signature);

}  // namespace syncline
