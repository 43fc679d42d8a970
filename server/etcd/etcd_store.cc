#include "server/etcd/etcd_store.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

// A stored value begins with one of these, followed by the token of the change that wrote
// it.
constexpr char kWhole = 'w';    // then comes the value
constexpr char kInParts = 'p';  // then comes the number of bytes, in decimal
constexpr size_t kTokenBytes = 16;
constexpr size_t kHeadBytes = 1 + kTokenBytes;

// Limit of one call. After each it checks whether this coordinator still leads.
constexpr absl::Duration kSlice = absl::Seconds(2);
// An overloaded member refuses at once, so the next attempt waits a little.
constexpr absl::Duration kPause = absl::Milliseconds(100);
// Limit of a read that fails again and again, although this coordinator leads.
constexpr absl::Duration kReadLimit = absl::Minutes(1);
// Each may have 1 MiB. A slow member must be able to send them within one attempt.
constexpr int64_t kKeysAtOnce = 4;
constexpr int64_t kPartsAtOnce = 4;
// A read is tried again if etcd has compacted its revision, because of a newer write.
constexpr int kReadAttempts = 5;

std::string DrawToken() {
  std::random_device random;
  std::string token;
  while (token.size() < kTokenBytes / 2) {
    token.push_back(static_cast<char>(random() & 0xff));
  }
  return absl::BytesToHexString(token);
}

// Returns the first key after all keys that begin with `prefix`. REQUIRES: the last byte
// of `prefix` is less than 0xff.
std::string EndOf(std::string prefix) {
  ++prefix.back();
  return prefix;
}

etcdserverpb::RangeRequest AllFrom(const std::string& begin, const std::string& end,
                                   int64_t limit, int64_t revision) {
  etcdserverpb::RangeRequest request;
  request.set_key(begin);
  request.set_range_end(end);
  request.set_limit(limit);
  request.set_revision(revision);
  return request;
}

void AddDelete(const std::string& begin, const std::string& end,
               etcdserverpb::TxnRequest& change) {
  auto* range = change.add_success()->mutable_request_delete_range();
  range->set_key(begin);
  range->set_range_end(end);
}

std::string TokenOf(std::string_view stored) {
  return std::string(stored.substr(std::min<size_t>(1, stored.size()), kTokenBytes));
}

}  // namespace

std::string EtcdStore::ValueKey(std::string_view key) const {
  return absl::StrCat(etcd_.address().prefix, "/state/", std::string(key));
}

// The length of the key comes first, so that the prefix of one key's parts is not a
// prefix of another's.
std::string EtcdStore::PartsKey(std::string_view key, std::string_view token) const {
  const std::string all = absl::StrCat(etcd_.address().prefix, "/parts/", key.size(), "/",
                                       std::string(key), "/");
  return token.empty() ? all : absl::StrCat(all, std::string(token), "/");
}

absl::Status EtcdStore::DoesNotLead() const {
  return WithFailure(
      absl::UnavailableError(absl::StrCat(
          "this coordinator does not lead any more (", etcd_.address().ToString(),
          "): another one does, or etcd has not answered for too long")),
      Failure::kRetryable);
}

absl::Status EtcdStore::Explain(std::string_view what, const absl::Status& status) const {
  if (FailureOf(status) == Failure::kRetryable) return status;  // it does not lead
  return WithFailure(absl::UnavailableError(absl::StrCat(
                         "cannot ", std::string(what), " in ", etcd_.address().ToString(),
                         ": ", std::string(status.message()))),
                     Failure::kStateUnusable);
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdStore::Read(
    const etcdserverpb::RangeRequest& request) {
  const absl::Duration until = clock_.Now() + kReadLimit;
  for (;;) {
    const absl::Duration left = options_.time_left();
    if (left <= absl::ZeroDuration()) return DoesNotLead();
    auto reply = etcd_.Range(request, std::min(left, kSlice));
    const bool may_pass =
        absl::IsUnavailable(reply.status()) || absl::IsResourceExhausted(reply.status());
    if (!may_pass || clock_.Now() >= until) return reply;
    if (!absl::IsUnavailable(reply.status())) absl::SleepFor(kPause);
  }
}

// ---- Reading ----

absl::StatusOr<std::string> EtcdStore::Assemble(std::string_view key,
                                                const etcdserverpb::KeyValue& found,
                                                int64_t revision) {
  const std::string& stored = found.value();
  const char kind = stored.empty() ? '\0' : stored[0];
  if (stored.size() < kHeadBytes || (kind != kWhole && kind != kInParts)) {
    return absl::DataLossError(
        "it was written by a newer Syncline, or by something else");
  }
  if (kind == kWhole) return stored.substr(kHeadBytes);
  size_t bytes = 0;
  if (!absl::SimpleAtoi(stored.substr(kHeadBytes), &bytes) ||
      bytes > kMaxStateValueBytes) {
    return absl::DataLossError("its size is not a number");
  }
  const std::string end = EndOf(PartsKey(key, TokenOf(stored)));
  std::string begin = PartsKey(key, TokenOf(stored));
  std::string value;
  for (bool more = true; more;) {
    SYNCLINE_ASSIGN_OR_RETURN(const auto parts,
                              Read(AllFrom(begin, end, kPartsAtOnce, revision)));
    for (const auto& part : parts.kvs()) value.append(part.value());
    more = parts.more() && !parts.kvs().empty();
    if (more) begin = parts.kvs().rbegin()->key() + '\0';
  }
  if (value.size() == bytes) return value;
  return absl::DataLossError(
      absl::StrCat("it has ", value.size(), " bytes, and should have ", bytes));
}

absl::StatusOr<std::optional<Versioned>> EtcdStore::Load(std::string_view key) {
  absl::Status last;
  for (int i = 0; i < kReadAttempts; ++i) {
    etcdserverpb::RangeRequest request;
    request.set_key(ValueKey(key));
    const auto found = Read(request);
    if (!found.ok()) return Explain("read the state", found.status());
    if (found->kvs().empty()) return std::optional<Versioned>();
    auto value = Assemble(key, found->kvs(0), found->header().revision());
    if (value.ok()) {
      return std::optional<Versioned>({found->kvs(0).version(), *std::move(value)});
    }
    last = value.status();
    if (last.code() != absl::StatusCode::kOutOfRange) break;  // etcd has compacted it
  }
  return Explain(absl::StrCat("read '", std::string(key), "'"), last);
}

absl::StatusOr<std::map<std::string, Versioned>> EtcdStore::List(
    std::string_view prefix) {
  const std::string root = ValueKey("");
  const std::string end = EndOf(ValueKey(prefix));
  absl::Status last;
  for (int i = 0; i < kReadAttempts; ++i) {
    std::map<std::string, Versioned> listed;
    std::string begin = ValueKey(prefix);
    int64_t revision = 0;
    last = absl::OkStatus();
    for (bool more = true; more && last.ok();) {
      const auto found = Read(AllFrom(begin, end, kKeysAtOnce, revision));
      last = found.status();
      if (!last.ok()) break;
      // All pages are read at the revision of the first one.
      if (revision == 0) revision = found->header().revision();
      for (const auto& entry : found->kvs()) {
        const std::string key = entry.key().substr(root.size());
        auto value = Assemble(key, entry, revision);
        last = value.status();
        if (!last.ok()) break;
        listed[key] = {entry.version(), *std::move(value)};
      }
      more = found->more() && !found->kvs().empty();
      if (more) begin = found->kvs().rbegin()->key() + '\0';
    }
    if (last.ok()) return listed;
    if (last.code() != absl::StatusCode::kOutOfRange) break;
  }
  return Explain(absl::StrCat("list '", std::string(prefix), "'"), last);
}

// ---- Writing ----

absl::StatusOr<etcdserverpb::TxnResponse> EtcdStore::Guarded(
    etcdserverpb::TxnRequest change, int* attempts) {
  auto* guard = change.add_compare();
  guard->set_target(etcdserverpb::Compare::CREATE);
  guard->set_key(options_.guard.key);
  guard->set_create_revision(options_.guard.create_revision);
  change.add_failure()->mutable_request_range()->set_key(options_.guard.key);
  absl::StatusOr<etcdserverpb::TxnResponse> reply;
  do {
    // Computed each time, because the lease may have been renewed.
    const absl::Duration left = options_.time_left();
    if (left <= absl::ZeroDuration()) return DoesNotLead();
    reply = etcd_.Txn(change, std::min(left, kSlice), attempts);
  } while (absl::IsUnavailable(reply.status()));
  if (!reply.ok()) return Explain("store the state", reply.status());
  if (reply->succeeded()) return reply;
  const auto& leader = reply->responses().rbegin()->response_range();
  if (leader.kvs().empty() ||
      leader.kvs(0).create_revision() != options_.guard.create_revision) {
    return DoesNotLead();
  }
  return reply;
}

absl::Status EtcdStore::PutParts(std::string_view key, std::string_view token,
                                 std::string_view value) {
  const std::string parts = PartsKey(key, token);
  for (size_t at = 0; at < value.size(); at += kPartBytes) {
    etcdserverpb::TxnRequest change;
    auto* put = change.add_success()->mutable_request_put();
    put->set_key(absl::StrCat(parts, absl::StrFormat("%06d", at / kPartBytes)));
    put->set_value(std::string(value.substr(at, kPartBytes)));
    SYNCLINE_RETURN_IF_ERROR(Guarded(std::move(change)).status());
  }
  return absl::OkStatus();
}

absl::Status EtcdStore::Change(std::string_view key, int64_t expected_version,
                               std::string_view token, etcdserverpb::TxnRequest change) {
  auto* version = change.add_compare();
  version->set_target(etcdserverpb::Compare::VERSION);
  version->set_key(ValueKey(key));
  version->set_version(expected_version);
  change.add_failure()->mutable_request_range()->set_key(ValueKey(key));
  int attempts = 0;
  SYNCLINE_ASSIGN_OR_RETURN(const auto reply, Guarded(std::move(change), &attempts));
  if (reply.succeeded()) return absl::OkStatus();
  const auto& found = reply.responses(0).response_range();
  // The value is as this change makes it: an attempt whose answer was lost has succeeded.
  const bool is_ours = found.kvs().empty() ? token.empty() && expected_version > kAbsent
                                           : TokenOf(found.kvs(0).value()) == token;
  if (attempts > 1 && is_ours) return absl::OkStatus();
  return VersionConflict(key, expected_version,
                         found.kvs().empty() ? kAbsent : found.kvs(0).version());
}

absl::StatusOr<int64_t> EtcdStore::CompareAndSet(std::string_view key,
                                                 int64_t expected_version,
                                                 std::string_view value) {
  SYNCLINE_RETURN_IF_ERROR(CheckValueSize(key, value));
  const std::string token = DrawToken();
  const bool is_whole = value.size() <= kPartBytes;
  if (!is_whole) SYNCLINE_RETURN_IF_ERROR(PutParts(key, token, value));
  etcdserverpb::TxnRequest change;
  auto* put = change.add_success()->mutable_request_put();
  put->set_key(ValueKey(key));
  put->set_value(is_whole
                     ? absl::StrCat(std::string(1, kWhole), token, std::string(value))
                     : absl::StrCat(std::string(1, kInParts), token, value.size()));
  // Deletes the parts of earlier values, and of changes that were never completed.
  const std::string all = PartsKey(key, "");
  AddDelete(all, PartsKey(key, token), change);
  AddDelete(EndOf(PartsKey(key, token)), EndOf(all), change);
  const absl::Status changed = Change(key, expected_version, token, std::move(change));
  if (changed.ok()) return expected_version + 1;
  if (!is_whole && absl::IsAborted(changed)) {
    etcdserverpb::TxnRequest away;
    AddDelete(PartsKey(key, token), EndOf(PartsKey(key, token)), away);
    Guarded(std::move(away)).IgnoreError();
  }
  return changed;
}

absl::Status EtcdStore::Erase(std::string_view key, int64_t expected_version) {
  etcdserverpb::TxnRequest change;
  change.add_success()->mutable_request_delete_range()->set_key(ValueKey(key));
  AddDelete(PartsKey(key, ""), EndOf(PartsKey(key, "")), change);
  return Change(key, expected_version, "", std::move(change));
}

}  // namespace syncline
