#include "cli/authority/renewal_book.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "cli/authority/directory.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/revoked.h"
#include "nlohmann/json.hpp"

namespace syncline::certs {
namespace {

using Json = nlohmann::json;

// Two or three are usual, since a certificate is renewed when a third of its lifetime is
// left.
constexpr auto kMaxOfOneLine = 16;

struct Renewed {
  Renewal renewal;
  std::string first;        // serial of the first certificate of the line
  std::string becomes;      // serial of the new certificate
  std::string certificate;  // the new certificate, PEM
  absl::Time until;         // when both have expired
};

std::string PathIn(const std::string& directory) { return directory + "/renewals.json"; }

// Returns the serial in the form that `revoked` uses.
std::string Normal(const std::string& serial) {
  return ParseSerial(serial).value_or(serial);
}

absl::Status Damaged(const std::string& path) {
  return WithFailure(absl::InvalidArgumentError(absl::StrCat(
                         "'", path,
                         "' is not a valid list of renewals; remove it: each certificate "
                         "may then be renewed once more, and revoking one no longer "
                         "revokes the one that replaced it")),
                     Failure::kUsage);
}

Json ToJson(const Renewed& one) {
  return {{"serial", one.renewal.serial},
          {"key", one.renewal.key},
          {"first", one.first},
          {"becomes", one.becomes},
          {"certificate", one.certificate},
          {"until", absl::ToUnixSeconds(one.until)}};
}

// at() throws if a field is missing, get() if it has another type.
absl::StatusOr<std::vector<Renewed>> Read(const std::string& directory) {
  const std::string path = PathIn(directory);
  std::vector<Renewed> all;
  SYNCLINE_ASSIGN_OR_RETURN(const auto contents, ReadFileIfThere(path));
  if (!contents.has_value()) return all;
  const Json json = Json::parse(*contents, nullptr, false);
  if (!json.is_array()) return Damaged(path);
  try {
    for (const Json& one : json) {
      const auto text = [&one](const char* name) {
        return one.at(name).get<std::string>();
      };
      // Older versions stored serials without a leading 0.
      const auto serial = [&text](const char* name) { return Normal(text(name)); };
      all.push_back({.renewal = {.serial = serial("serial"), .key = text("key")},
                     .first = serial("first"),
                     .becomes = serial("becomes"),
                     .certificate = text("certificate"),
                     .until = absl::FromUnixSeconds(one.at("until").get<int64_t>())});
    }
  } catch (const Json::exception&) {
    return Damaged(path);
  }
  return all;
}

// Returns the serial of the first certificate of the line of `serial`.
std::string FirstOf(const std::vector<Renewed>& all, const std::string& serial) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Renewed& one) {
    return one.becomes == serial || one.renewal.serial == serial;
  });
  return found == all.end() ? serial : found->first;
}

}  // namespace

absl::StatusOr<std::string> RenewOnce(
    const std::string& directory, Renewal renewal,
    const std::function<absl::StatusOr<std::string>()>& sign, absl::Time now) {
  renewal.serial = Normal(renewal.serial);
  SYNCLINE_ASSIGN_OR_RETURN(const UniqueFd lock, LockDirectory(directory));
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Renewed> all, Read(directory));
  const auto before = std::find_if(all.begin(), all.end(), [&](const Renewed& one) {
    return one.renewal.serial == renewal.serial;
  });
  if (before != all.end()) {
    if (before->renewal.key == renewal.key) return before->certificate;
    return absl::PermissionDeniedError(absl::StrCat(
        "this certificate was renewed before, for another key, to the one with serial ",
        before->becomes,
        ": if that was not this machine, its key was stolen, and `syncline certs revoke "
        "DIRECTORY --serial ",
        renewal.serial, "` revokes both; join again with a token"));
  }
  const std::string first = FirstOf(all, renewal.serial);
  std::erase_if(all, [&](const Renewed& one) { return one.until <= now; });
  const auto live = std::count_if(all.begin(), all.end(),
                                  [&](const Renewed& one) { return one.first == first; });
  if (live >= kMaxOfOneLine) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this certificate and its predecessors have ", live,
        " renewals that have not expired; wait, or find out who renews so often"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const std::string certificate, sign());
  const CertificateFacts facts = FactsOf(*ParseCertificate(certificate));
  const absl::Time until = std::max(facts.until, renewal.until);
  all.push_back({renewal, first, Normal(facts.serial), certificate, until});
  Json json = Json::array();
  for (const Renewed& one : all) json.push_back(ToJson(one));
  SYNCLINE_RETURN_IF_ERROR(ReplaceFile({PathIn(directory), json.dump(1) + "\n", 0600}));
  return certificate;
}

absl::StatusOr<std::vector<std::string>> LineOf(const std::string& directory,
                                                const std::string& serial) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Renewed> all, Read(directory));
  const std::string first = FirstOf(all, Normal(serial));
  std::vector<std::string> line = {Normal(serial)};
  const auto add = [&line](const std::string& one) {
    if (std::find(line.begin(), line.end(), one) == line.end()) line.push_back(one);
  };
  for (const Renewed& one : all) {
    if (one.first != first) continue;
    add(one.renewal.serial);
    add(one.becomes);
  }
  return line;
}

}  // namespace syncline::certs
