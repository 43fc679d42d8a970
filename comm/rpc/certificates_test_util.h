// Makes certificates for tests, in a folder that is deleted with this object.
#pragma once

#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/check.h"
#include "comm/base/temp_directory.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/identity.h"
#include "comm/rpc/issuer.h"
#include "comm/rpc/tls.h"

namespace syncline {

struct TestLeaf {
  Identity who = {.role = Role::kOperator};
  std::string uri = {};  // used instead of the URI of `who`; "-": none
  int days = 2;          // expired yesterday when negative
  std::vector<std::string> hosts = {"127.0.0.1"};
};

class TestCertificates {
 public:
  std::string Path(const std::string& name) const {
    return absl::StrCat(directory_.path(), "/", name);
  }

  // Returns the options with which a process of this name is started.
  TlsOptions Identity(const std::string& name, const std::string& ca = "ca") const {
    return {Path(name + ".crt"), Path(name + ".key"), Path(ca + ".crt")};
  }

  // Makes NAME.crt and NAME.key.
  void MakeCa(const std::string& name) {
    authorities_[name] = Checked(MakeAuthority({.name = name, .validity = ValidFor(2)}));
    Keep(name, authorities_[name]);
  }

  void MakeLeaf(const std::string& name, const std::string& ca,
                const TestLeaf& leaf = {}) const {
    syncline::Identity who = leaf.who;
    who.cluster = Cluster{"test", "c"};
    const std::string uri = leaf.uri.empty() ? Checked(UriOf(who)) : leaf.uri;
    Keep(name, Checked(Issue(authorities_.at(ca), {.name = name,
                                                   .uri = uri == "-" ? "" : uri,
                                                   .hosts = leaf.hosts,
                                                   .validity = ValidFor(leaf.days)})));
  }

  std::string SerialOf(const std::string& name) const {
    const CertificatePtr certificate = ParseCertificate(Read(name + ".crt"));
    SYNCLINE_CHECK(certificate != nullptr);
    return FactsOf(*certificate).serial;
  }

  std::string Read(const std::string& name) const {
    std::ifstream file(Path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  void Write(const std::string& name, const std::string& contents) const {
    std::ofstream(Path(name)) << contents;
  }

 private:
  static Validity ValidFor(int days) {
    const absl::Time now = absl::Now();
    if (days < 0) return {now - absl::Hours(240), now - absl::Hours(24)};
    return {now - absl::Minutes(1), now + absl::Hours(24 * days)};
  }

  template <typename T>
  static T Checked(absl::StatusOr<T> result) {
    SYNCLINE_CHECK(result.ok());
    return *std::move(result);
  }

  void Keep(const std::string& name, const PemPair& pair) const {
    Write(name + ".crt", pair.certificate);
    Write(name + ".key", pair.key);
  }

  TempDirectory directory_;
  std::map<std::string, PemPair> authorities_;
};

}  // namespace syncline
