#include "cli/certs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/audit_log.h"
#include "cli/authority/directory.h"
#include "cli/authority/renewal_book.h"
#include "cli/certs_join.h"
#include "cli/certs_renew.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/host_name.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/identity.h"
#include "comm/rpc/issuer.h"
#include "comm/rpc/revoked.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

using certs::Authority;
using certs::CannotWrite;
using certs::LockDirectory;
using certs::NameOf;
using certs::ReadAuthority;
using certs::ReadFacts;
using certs::ReadFile;
using certs::ReplaceFile;
using certs::ReplacePair;
using certs::ValidFor;
using certs::Wish;
using certs::WriteFile;
using certs::WritePair;
using certs::Written;

// The authority's key stays off the hosts, so its certificate may live longer than those
// that it signs.
constexpr absl::Duration kAuthorityLife = absl::Hours(24 * 3650);
constexpr char kAuthorityName[] = "syncline-ca";
constexpr char kRevokedHead[] = "# Revoked certificates, for serve --revoked FILE\n";

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// Adds this host's own names, because clients on it also connect to the coordinator.
std::vector<std::string> HostsOfCoordinator(std::vector<std::string> hosts) {
  if (hosts.empty()) hosts.push_back(HostName());
  for (const char* local : {"localhost", "127.0.0.1", "::1"}) {
    if (std::find(hosts.begin(), hosts.end(), local) == hosts.end()) {
      hosts.emplace_back(local);
    }
  }
  return hosts;
}

absl::StatusOr<PemPair> Make(const PemPair& authority, const Wish& wish) {
  SYNCLINE_ASSIGN_OR_RETURN(const CertificateOrder order, certs::OrderFor(wish));
  return Issue(authority, order);
}

absl::Status FillDirectory(const CertsInit& order, const std::string& directory) {
  SYNCLINE_ASSIGN_OR_RETURN(const Validity validity, ValidFor(order.hours));
  const Cluster cluster = {order.trust_domain, order.cluster};
  const absl::StatusOr<std::string> uri = UriOf(cluster);
  if (!uri.ok()) return Usage(std::string(uri.status().message()));
  SYNCLINE_ASSIGN_OR_RETURN(
      const PemPair authority,
      MakeAuthority({.name = kAuthorityName,
                     .uri = *uri,
                     .validity = {validity.from, validity.from + kAuthorityLife}}));
  SYNCLINE_RETURN_IF_ERROR(WritePair(directory + "/ca", authority));
  SYNCLINE_RETURN_IF_ERROR(WriteFile({directory + "/revoked", kRevokedHead}));
  for (const Role role : {Role::kCoordinator, Role::kServer, Role::kOperator}) {
    Wish wish = {.who = {role, "", cluster}, .hosts = {}, .validity = validity};
    if (role == Role::kCoordinator) wish.hosts = HostsOfCoordinator(order.hosts);
    const absl::StatusOr<PemPair> pair = Make(authority, wish);
    if (!pair.ok()) return Usage(std::string(pair.status().message()));
    SYNCLINE_RETURN_IF_ERROR(
        WritePair(absl::StrCat(directory, "/", NameOf(wish.who)), *pair));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Init(const CertsInit& order) {
  SYNCLINE_RETURN_IF_ERROR(InitCertificates(order));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string shown,
                            ShowCertificate(order.directory + "/coordinator.crt"));
  std::cout << order.directory << ": an authority (ca), and certificates of coordinator, "
            << "server and operator\n"
            << shown << "Keep " << order.directory
            << "/ca.key to yourself. For workers: syncline certs issue "
            << order.directory << " --role worker --job JOB\n";
  return kExitDone;
}

absl::StatusOr<int> IssueOne(const CertsIssue& order) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string base, IssueCertificate(order));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string shown, ShowCertificate(base + ".crt"));
  std::cout << shown;
  return kExitDone;
}

std::string RoleOf(const CertificateFacts& facts) {
  const bool is_one = facts.names.uris.size() == 1;
  const absl::StatusOr<Identity> who =
      ParseIdentityUri(is_one ? facts.names.uris[0] : "");
  return who.ok() ? Describe(*who) : "of no role";
}

// Returns the lines to add, by serial. Refuses certificates that another authority has
// signed, since the wrong file must have been named.
absl::StatusOr<std::map<std::string, std::string>> WhatToRevoke(
    const CertsRevoke& order, const CertificateFacts& authority) {
  std::map<std::string, std::string> lines;
  const auto add = [&](const std::string& serial, const std::string& what) {
    const absl::StatusOr<std::string> parsed = ParseSerial(serial);
    if (!parsed.ok()) return Usage(std::string(parsed.status().message()));
    lines[*parsed] = absl::StrCat(*parsed, "  ", what, "\n");
    return absl::OkStatus();
  };
  for (const std::string& path : order.files) {
    SYNCLINE_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadFacts(path));
    if (facts.issuer != authority.subject || facts.serial == authority.serial) {
      return Usage(absl::StrCat("'", path,
                                "' is not a member's certificate that the authority in '",
                                order.directory, "' has signed"));
    }
    SYNCLINE_RETURN_IF_ERROR(add(
        facts.serial, absl::StrCat(RoleOf(facts), ", valid to ", Written(facts.until))));
  }
  for (const std::string& serial : order.serials) {
    SYNCLINE_RETURN_IF_ERROR(
        add(serial, absl::StrCat("revoked on ", Written(absl::Now()))));
  }
  return lines;
}

absl::StatusOr<int> Revoke(const CertsRevoke& order) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string added, RevokeCertificates(order));
  const std::string list = order.directory + "/revoked";
  if (added.empty()) {
    std::cout << list << " lists them already\n";
    return kExitDone;
  }
  std::cout << added << "in " << list
            << "; copy it next to the file of `serve --role coordinator --revoked FILE`, "
            << "then mv it over that file: the coordinator checks it every second\n";
  return kExitDone;
}

absl::StatusOr<int> Show(const std::vector<std::string>& paths) {
  if (paths.empty()) return Usage("certs show needs the path of a certificate");
  for (const std::string& path : paths) {
    SYNCLINE_ASSIGN_OR_RETURN(const std::string shown, ShowCertificate(path));
    std::cout << shown;
  }
  return kExitDone;
}

}  // namespace

absl::Status InitCertificates(const CertsInit& order) {
  if (order.directory.empty())
    return Usage("certs init needs the name of a directory to create");
  std::error_code error;
  if (fs::exists(order.directory, error) && !fs::is_empty(order.directory, error)) {
    return Usage(absl::StrCat("'", order.directory,
                              "' exists already; choose another, or remove it, which "
                              "makes all its certificates useless"));
  }
  std::string path = order.directory;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::string fresh = path + ".new-XXXXXX";
  if (mkdtemp(fresh.data()) == nullptr) return CannotWrite(path);
  absl::Status status = FillDirectory(order, fresh);
  if (status.ok() && std::rename(fresh.c_str(), path.c_str()) != 0) {
    status = CannotWrite(path);
  }
  if (!status.ok()) fs::remove_all(fresh, error);
  return status;
}

absl::StatusOr<std::string> IssueCertificate(const CertsIssue& order) {
  if (order.directory.empty()) {
    return Usage("certs issue needs the directory of `syncline certs init`");
  }
  SYNCLINE_ASSIGN_OR_RETURN(Validity validity, ValidFor(order.hours));
  SYNCLINE_ASSIGN_OR_RETURN(const Authority authority, ReadAuthority(order.directory));
  SYNCLINE_ASSIGN_OR_RETURN(Identity who, certs::ParseMember(order.role, order.job));
  who.cluster = authority.cluster;
  const std::string standard = absl::StrCat(order.directory, "/", NameOf(who));
  const std::string base = order.out.empty() ? standard : order.out;
  std::error_code error;
  for (const char* end : {".crt", ".key"}) {
    if (order.overwrite || !fs::exists(base + end, error)) continue;
    return Usage(absl::StrCat(
        "'", base, end, "' exists already; give --overwrite to replace it, or --out"));
  }
  Wish wish = {
      who, order.hosts, {validity.from, std::min(validity.until, authority.until)}};
  if ((who.role == Role::kCoordinator || who.role == Role::kServer) &&
      wish.hosts.empty()) {
    // A replacement is issued for the same hosts as the old certificate.
    const absl::StatusOr<CertificateFacts> old = ReadFacts(standard + ".crt");
    if (old.ok()) {
      wish.hosts = old->names.hosts;
      wish.hosts.insert(wish.hosts.end(), old->addresses.begin(), old->addresses.end());
    }
  }
  if (who.role == Role::kCoordinator) wish.hosts = HostsOfCoordinator(wish.hosts);
  const absl::StatusOr<PemPair> pair = Make(authority.pair, wish);
  if (!pair.ok()) return Usage(std::string(pair.status().message()));
  SYNCLINE_RETURN_IF_ERROR(ReplacePair(base, *pair));
  const CertificateFacts facts = FactsOf(*ParseCertificate(pair->certificate));
  AddAuditLine(order.directory, "issued",
               {{"identity", facts.names.uris.at(0)},
                {"serial", facts.serial},
                {"until", Written(facts.until)}});
  return base;
}

absl::StatusOr<std::string> RevokeCertificates(const CertsRevoke& order) {
  if (order.directory.empty() || (order.files.empty() && order.serials.empty())) {
    return Usage(
        "certs revoke needs the directory of `syncline certs init`, and certificates or "
        "--serial");
  }
  SYNCLINE_ASSIGN_OR_RETURN(const CertificateFacts authority,
                            ReadFacts(order.directory + "/ca.crt"));
  SYNCLINE_ASSIGN_OR_RETURN(const auto wanted, WhatToRevoke(order, authority));
  // With the lock, two commands at the same time keep each other's additions.
  SYNCLINE_ASSIGN_OR_RETURN(const UniqueFd lock, LockDirectory(order.directory));
  const std::string path = order.directory + "/revoked";
  std::string contents = kRevokedHead;
  std::error_code error;
  if (fs::exists(path, error)) {
    SYNCLINE_ASSIGN_OR_RETURN(contents, ReadFile(path));
  }
  const absl::StatusOr<std::set<std::string>> known = ParseRevoked(contents);
  if (!known.ok()) {
    return Usage(absl::StrCat("'", path, "', ", known.status().message()));
  }
  std::map<std::string, std::string> lines = wanted;
  absl::Status damage;  // does not prevent revoking the serials that were named
  for (const auto& [serial, line] : wanted) {
    const auto all = certs::LineOf(order.directory, serial);
    damage.Update(all.status());
    for (const std::string& other : all.value_or(std::vector<std::string>{})) {
      lines.try_emplace(other,
                        absl::StrCat(other, "  renewed from or to ", serial, "\n"));
    }
  }
  std::string added;
  std::erase_if(lines, [&](const auto& line) { return known->contains(line.first); });
  for (const auto& [serial, line] : lines) added += line;
  if (!contents.empty() && contents.back() != '\n') contents += '\n';
  if (!added.empty()) SYNCLINE_RETURN_IF_ERROR(ReplaceFile({path, contents + added}));
  for (const auto& [serial, line] : lines) {
    AddAuditLine(order.directory, "revoked", {{"serial", serial}});
  }
  SYNCLINE_RETURN_IF_ERROR(damage);
  return added;
}

absl::StatusOr<std::string> ShowCertificate(const std::string& path) {
  SYNCLINE_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadFacts(path));
  const std::string uri = facts.names.uris.empty() ? "" : facts.names.uris[0];
  const absl::StatusOr<Identity> who = ParseIdentityUri(uri);
  std::string role = facts.names.uris.size() == 1 && who.ok() ? Describe(*who) : "none";
  if (who.ok()) absl::StrAppend(&role, " of cluster ", who->cluster->name);
  std::vector<std::string> hosts = facts.names.hosts;
  hosts.insert(hosts.end(), facts.addresses.begin(), facts.addresses.end());
  return absl::StrCat(path, "\n  role    ", role, "\n  names   ",
                      Printable(absl::StrJoin(facts.names.uris, ", ")), "\n  hosts   ",
                      hosts.empty() ? "none" : Printable(absl::StrJoin(hosts, ", ")),
                      "\n  issuer  ", Printable(facts.issuer), "\n  serial  ",
                      facts.serial, "\n  valid   from ", Written(facts.from), " to ",
                      Written(facts.until), "\n");
}

void AddCerts(CLI::App& app, Command* selected) {
  CLI::App* certs = app.add_subcommand("certs", "Make certificates for mutual TLS");
  certs->require_subcommand(1);

  auto made = std::make_shared<CertsInit>();
  CLI::App* init = certs->add_subcommand(
      "init", "Make an authority and certificates of the first members");
  init->add_option("directory", made->directory,
                   "Directory to create; it must not exist");
  init->add_option("--cluster", made->cluster, "Name of the cluster")
      ->capture_default_str();
  init->add_option("--trust-domain", made->trust_domain,
                   "SPIFFE trust domain of the identities")
      ->capture_default_str();
  init->add_option("--host", made->hosts,
                   "Name or address of the coordinator; may be repeated; default: this "
                   "host's name")
      ->allow_extra_args(false);
  init->add_option("--hours", made->hours, "How long certificates are valid")
      ->capture_default_str();
  init->callback([=] { *selected = [made] { return Init(*made); }; });

  auto order = std::make_shared<CertsIssue>();
  CLI::App* issue =
      certs->add_subcommand("issue", "Make or replace a member's certificate");
  issue->add_option("directory", order->directory, "Directory of certs init");
  issue->add_option("--role", order->role,
                    "coordinator, server, worker, operator or reader");
  issue->add_option("--job", order->job, "Job of a worker");
  issue
      ->add_option("--host", order->hosts,
                   "Name or address at which it serves; may be repeated")
      ->allow_extra_args(false);
  issue->add_option("--out", order->out, "PATH for PATH.crt and PATH.key");
  issue->add_option("--hours", order->hours, "How long it is valid")
      ->capture_default_str();
  issue->add_flag("--overwrite", order->overwrite, "Replace existing files");
  issue->callback([=] { *selected = [order] { return IssueOne(*order); }; });

  auto revoked = std::make_shared<CertsRevoke>();
  CLI::App* revoke =
      certs->add_subcommand("revoke", "Revoke certificates before they expire");
  revoke->add_option("directory", revoked->directory, "Directory of certs init");
  revoke->add_option("file", revoked->files, "Certificates (PEM)");
  revoke
      ->add_option("--serial", revoked->serials,
                   "Serial number, as in the audit log, of a certificate whose file is "
                   "gone; may be repeated")
      ->allow_extra_args(false);
  revoke->callback([=] { *selected = [revoked] { return Revoke(*revoked); }; });

  AddCertsJoin(*certs, selected);
  AddCertsRenew(*certs, selected);

  auto paths = std::make_shared<std::vector<std::string>>();
  CLI::App* show = certs->add_subcommand("show", "Show the contents of certificates");
  show->add_option("file", *paths, "PEM files");
  show->callback([=] { *selected = [paths] { return Show(*paths); }; });
}

}  // namespace syncline
