#include "cli/authority/token_book.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/authority/directory.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/join_token.h"
#include "nlohmann/json.hpp"

namespace syncline::certs {
namespace {

using Json = nlohmann::json;

struct Entry {
  TokenKey key;
  TokenTerms terms;
  // Certificates by key. Empty until KeepCertificate stores one.
  std::map<std::string, std::string> used_by;
};

std::string PathIn(const std::string& directory) { return directory + "/tokens.json"; }

absl::Status Damaged(const std::string& path) {
  return WithFailure(
      absl::InvalidArgumentError(absl::StrCat(
          "'", path,
          "' is not a valid list of tokens; remove it, which makes all tokens invalid")),
      Failure::kUsage);
}

// Checks the types: at() throws if a field is missing, get() if it has another type.
absl::StatusOr<Entry> FromJson(const Json& json, const std::string& path) {
  try {
    Entry entry;
    entry.key = {json.at("id").get<std::string>(),
                 json.at("secret_sha256").get<std::string>()};
    SYNCLINE_ASSIGN_OR_RETURN(entry.terms.who,
                              ParseMember(json.at("role").get<std::string>(),
                                          json.at("job").get<std::string>()));
    entry.terms.until = absl::FromUnixSeconds(json.at("until").get<int64_t>());
    entry.terms.hours = json.at("hours").get<double>();
    entry.terms.uses = json.at("uses").get<uint32_t>();
    entry.used_by = json.at("used_by").get<std::map<std::string, std::string>>();
    return entry;
  } catch (const Json::exception&) {
    return Damaged(path);
  }
}

Json ToJson(const Entry& entry) {
  return {{"id", entry.key.id},
          {"secret_sha256", entry.key.secret_hash},
          {"role", std::string(RoleName(entry.terms.who.role))},
          {"job", entry.terms.who.job},
          {"until", absl::ToUnixSeconds(entry.terms.until)},
          {"hours", entry.terms.hours},
          {"uses", entry.terms.uses},
          {"used_by", entry.used_by}};
}

absl::StatusOr<std::vector<Entry>> Read(const std::string& directory) {
  const std::string path = PathIn(directory);
  std::vector<Entry> entries;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return entries;
  SYNCLINE_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
  const Json json = Json::parse(contents, nullptr, false);
  if (!json.is_array()) return Damaged(path);
  for (const Json& one : json) {
    SYNCLINE_ASSIGN_OR_RETURN(Entry entry, FromJson(one, path));
    entries.push_back(std::move(entry));
  }
  return entries;
}

// Writes the entries, without those that have expired.
absl::Status Keep(const std::string& directory, std::vector<Entry> entries,
                  absl::Time now) {
  std::erase_if(entries, [&](const Entry& entry) { return entry.terms.until <= now; });
  Json json = Json::array();
  for (const Entry& entry : entries) json.push_back(ToJson(entry));
  return ReplaceFile({PathIn(directory), json.dump(1) + "\n", 0600});
}

absl::Status Denied(std::string_view why) {
  return absl::PermissionDeniedError(absl::StrCat(
      absl::string_view(why.data(), why.size()),
      "; ask the operator of the cluster for a new one (`syncline certs token`)"));
}

// Returns the entry whose secret `claim` contains.
absl::StatusOr<Entry*> Find(std::vector<Entry>& entries, const TokenClaim& claim,
                            absl::Time now) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& one) {
    return one.key.id == claim.id;
  });
  const std::string hash = HashOfSecret(claim.secret);
  if (found == entries.end() || !IsSame(found->key.secret_hash, hash)) {
    return Denied("this token is unknown, or it expired and was deleted");
  }
  if (found->terms.until <= now) return Denied("this token has expired");
  return &*found;
}

}  // namespace

absl::Status AddToken(const std::string& directory, const TokenKey& token,
                      const TokenTerms& terms, absl::Time now) {
  SYNCLINE_ASSIGN_OR_RETURN(const UniqueFd lock, LockDirectory(directory));
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Entry> entries, Read(directory));
  const auto live = std::count_if(entries.begin(), entries.end(), [&](const Entry& one) {
    return one.terms.until > now;
  });
  if (static_cast<size_t>(live) >= kMaxTokens) {
    return absl::ResourceExhaustedError(absl::StrCat(
        live, " tokens have not expired yet; wait until one does, or remove '",
        PathIn(directory), "', which makes all of them invalid"));
  }
  entries.push_back({token, terms, {}});
  return Keep(directory, std::move(entries), now);
}

absl::Status CheckToken(const std::string& directory, const TokenClaim& claim,
                        absl::Time now) {
  SYNCLINE_ASSIGN_OR_RETURN(const UniqueFd lock, LockDirectory(directory));
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Entry> entries, Read(directory));
  return Find(entries, claim, now).status();
}

absl::StatusOr<TokenUse> RedeemToken(const std::string& directory,
                                     const TokenClaim& claim, absl::Time now) {
  SYNCLINE_ASSIGN_OR_RETURN(const UniqueFd lock, LockDirectory(directory));
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Entry> entries, Read(directory));
  SYNCLINE_ASSIGN_OR_RETURN(Entry* const entry, Find(entries, claim, now));
  auto& used_by = entry->used_by;
  const TokenTerms terms = entry->terms;
  const auto before = used_by.find(claim.key);
  if (before != used_by.end()) return TokenUse{terms, before->second};
  if (used_by.size() >= terms.uses) {
    const std::string how_often =
        terms.uses == 1 ? "once" : absl::StrCat(terms.uses, " times");
    return Denied(
        absl::StrCat("this token was used ", how_often, ", and is no longer valid"));
  }
  used_by[claim.key] = "";
  SYNCLINE_RETURN_IF_ERROR(Keep(directory, std::move(entries), now));
  return TokenUse{terms, ""};
}

absl::StatusOr<std::string> KeepCertificate(const std::string& directory,
                                            const TokenClaim& claim,
                                            const std::string& certificate,
                                            absl::Time now) {
  SYNCLINE_ASSIGN_OR_RETURN(const UniqueFd lock, LockDirectory(directory));
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Entry> entries, Read(directory));
  SYNCLINE_ASSIGN_OR_RETURN(Entry* const entry, Find(entries, claim, now));
  std::string& kept = entry->used_by[claim.key];
  if (!kept.empty()) return kept;
  kept = certificate;
  SYNCLINE_RETURN_IF_ERROR(Keep(directory, std::move(entries), now));
  return certificate;
}

}  // namespace syncline::certs
