// Makes certificates for the control plane: an authority, and what it signs. EC P-256 and
// SHA-256; serial numbers are 127 random bits.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const PemPair ca, MakeAuthority(
//       {.name = "my-ca", .validity = validity}));
//   SYNCLINE_ASSIGN_OR_RETURN(const PemPair server, Issue(ca, {
//       .name = "server", .uri = "spiffe://…/role/server", .validity = validity}));
//
// A machine that makes its own key sends a request for it (PKCS#10), of which nothing but
// the public key is believed:
//
//   SYNCLINE_ASSIGN_OR_RETURN(const KeyRequest own, MakeRequest());        // there
//   SYNCLINE_ASSIGN_OR_RETURN(std::string pem, Certify(ca, order, own.request));  // here
//
// Thread safety: any thread. Keys are in memory as PEM; whoever writes them to a file
// gives it mode 0600.
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
  std::string name = {};                // for people: the subject's common name
  std::string uri = {};                 // empty: none
  std::vector<std::string> hosts = {};  // names and addresses; an authority has none
  Validity validity;
};

absl::StatusOr<PemPair> MakeAuthority(const CertificateOrder& order);

// InvalidArgument when `authority` is no pair of a CA, or a name cannot stand in a
// certificate. With hosts it may be shown by a server, always by a client.
absl::StatusOr<PemPair> Issue(const PemPair& authority, const CertificateOrder& order);

struct KeyRequest {
  std::string key;      // PEM; it stays where it was made
  std::string request;  // PEM
};

absl::StatusOr<KeyRequest> MakeRequest();
// For a key that is there. InvalidArgument when it is no private key in PEM.
absl::StatusOr<KeyRequest> RequestFor(const std::string& key);

// InvalidArgument unless `request` is signed by the key that it names, and that is one of
// P-256. The names are those of `order`.
absl::StatusOr<std::string> Certify(const PemPair& authority,
                                    const CertificateOrder& order,
                                    const std::string& request);

// SHA-256 of the public key in a request that Certify takes, hexadecimal.
absl::StatusOr<std::string> KeyOfRequest(const std::string& request);
// The same of a certificate's.
absl::StatusOr<std::string> KeyOfCertificate(const x509_st& certificate);

// That whoever has a certificate says something: by its key (PEM), with SHA-256.
absl::StatusOr<std::string> SignWith(const std::string& key, std::string_view message);
bool IsSignedBy(const x509_st& certificate, std::string_view message,
                std::string_view signature);

}  // namespace syncline
