// Fuzzes names in certificates, and the file of --identities.
//
//   offset  bytes
//   0       1      0: a URI; otherwise a file
//   1       rest   the URI or the file
#include <string>

#include "absl/status/status.h"
#include "comm/base/check.h"
#include "comm/base/printable.h"
#include "comm/rpc/identity.h"
#include "tests/fuzz/fuzz.h"

namespace syncline::fuzz {
namespace {

void CheckUri(const std::string& uri) {
  const absl::StatusOr<Identity> identity = ParseIdentityUri(uri);
  // If its own cluster is known, a URI is accepted exactly if it parses.
  Acquaintances known;
  if (identity.ok()) known.cluster = identity->cluster;
  const absl::StatusOr<Identity> found = Identify({.uris = {uri}}, known);
  SYNCLINE_CHECK(found.ok() == identity.ok());
  if (!identity.ok()) {
    SYNCLINE_CHECK(absl::IsInvalidArgument(identity.status()));
    SYNCLINE_CHECK(IsPrintable(std::string(found.status().message())));
    return;
  }
  // Each identity has only one URI.
  SYNCLINE_CHECK(*UriOf(*identity) == uri);
  SYNCLINE_CHECK(*found == *identity);
  SYNCLINE_CHECK(identity->job.empty() == (identity->role != Role::kWorker));
  known.cluster->name += "x";
  SYNCLINE_CHECK(!Identify({.uris = {uri}}, known).ok());
}

void CheckFile(const std::string& text) {
  const absl::StatusOr<IdentityMap> map = ParseIdentityMap(text);
  if (!map.ok()) {
    SYNCLINE_CHECK(absl::IsInvalidArgument(map.status()));
    SYNCLINE_CHECK(IsPrintable(std::string(map.status().message())));
    return;
  }
  for (const auto& [name, identity] : *map) {
    const std::string bare = name.substr(4);
    const bool is_uri = name[0] == 'U';
    SubjectNames names;
    (is_uri ? names.uris : names.hosts).push_back(bare);
    const absl::StatusOr<Identity> found = Identify(names, {.others = *map});
    SYNCLINE_CHECK(found.ok() && *found == identity);
  }
}

}  // namespace

std::vector<Bytes> Seeds() {
  return {Seed(false, "spiffe://example.org/syncline/prod/role/server"),
          Seed(false, "spiffe://example.org/syncline/prod/job/bert/role/worker"),
          Seed(false, "spiffe://cluster.local/ns/ml/sa/trainer"),
          Seed(true, "# people\nURI:spiffe://d/ns/ml/sa/x worker bert\nDNS:a server\n"),
          Seed(true, "DNS:a operator\r\n\tDNS:b  reader\n")};
}

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncline;  // NOLINT(google-build-using-namespace): C has none
  fuzz::Reader input(std::as_bytes(std::span(data, size)));
  const bool is_file = input.Take(1) != 0;
  const std::string text(reinterpret_cast<const char*>(input.rest().data()),
                         input.rest().size());
  if (is_file) {
    fuzz::CheckFile(text);
  } else {
    fuzz::CheckUri(text);
  }
  return 0;
}
