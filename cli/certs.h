// `syncline certs`: an authority of one's own, and certificates with roles.
//
//   syncline certs init certs --host coordinator.example
//   syncline certs issue certs --role worker --job bert
//   syncline certs show certs/*.crt
//   syncline certs revoke certs certs/worker-bert.crt
//
// A directory has ca.crt, ca.key, NAME.crt with NAME.key for each member, and `revoked`
// (comm/rpc/revoked.h). Keys have mode 0600. Nothing is half written: what fails leaves
// what was there.
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

// Makes the directory, with an authority and certificates of a coordinator, a server and
// an operator. FailedPrecondition (Failure::kUsage) when it is there and not empty.
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

// The path of what was made, without ".crt". The cluster is that of the directory.
absl::StatusOr<std::string> IssueCertificate(const CertsIssue& order);

struct CertsRevoke {
  std::string directory = {};
  std::vector<std::string> files = {};    // certificates, PEM
  std::vector<std::string> serials = {};  // of those whose file is gone
};

// Adds lines to the directory's list, and returns those that it added. What is in it
// already stays as it is.
absl::StatusOr<std::string> RevokeCertificates(const CertsRevoke& order);

// What a PEM file says, a line each.
absl::StatusOr<std::string> ShowCertificate(const std::string& path);

void AddCerts(CLI::App& app, Command* selected);

}  // namespace syncline
