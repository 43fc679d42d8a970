// `syncline certs`: a cluster's own authority, and certificates with roles.
//
//   syncline certs init certs --host coordinator.example
//   syncline certs issue certs --role worker --job bert
//   syncline certs show certs/*.crt
//   syncline certs revoke certs certs/worker-bert.crt
//
// A directory has ca.crt and ca.key, NAME.crt and NAME.key for each member, and `revoked`
// (comm/rpc/revoked.h). Keys have mode 0600. Files are written completely or not at all:
// a failed command leaves the directory as it was.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/command.h"

namespace syncline {

struct CertsInit {
  std::string directory = {};
  std::string trust_domain = "syncline.internal";
  std::string cluster = "default";
  std::vector<std::string> hosts = {};  // of the coordinator; empty: this host
  double hours = 24;
};

// Creates the directory, with an authority and certificates for a coordinator, a server
// and an operator. Fails with FailedPrecondition (Failure::kUsage) when it exists and is
// not empty.
absl::Status InitCertificates(const CertsInit& order);

struct CertsIssue {
  std::string directory = {};
  std::string role = {};
  std::string job = {};
  std::vector<std::string> hosts = {};
  std::string out = {};  // PATH of PATH.crt and PATH.key; empty: in the directory
  double hours = 24;
  bool overwrite = false;
};

// Returns the path of the new pair, without ".crt". The cluster is that of the directory.
absl::StatusOr<std::string> IssueCertificate(const CertsIssue& order);

struct CertsRevoke {
  std::string directory = {};
  std::vector<std::string> files = {};    // certificates, PEM
  std::vector<std::string> serials = {};  // for certificates whose file is lost
};

// Adds serials to the directory's list, and returns the added lines. Lines that are in it
// already stay as they are.
absl::StatusOr<std::string> RevokeCertificates(const CertsRevoke& order);

// Returns the contents of a PEM file for people, one line per fact.
absl::StatusOr<std::string> ShowCertificate(const std::string& path);

void AddCerts(CLI::App& app, Command* selected);

}  // namespace syncline
