// A StateStore in etcd, for the coordinator that leads (leadership.h).
//
//   EtcdStore store(*etcd, {.guard = leadership.guard(), .time_left = ...});
//
// Each change is one transaction, which etcd carries out only while the guard holds: the
// key of the leader is still the one that this coordinator made. So a coordinator that
// was replaced and does not know it yet changes nothing, even if its request was on the
// way for long. The version of a value is etcd's version of the key. A change whose
// answer was lost is tried again. It is recognised by a random token that only this
// change has.
//
// A value that is too large for one request of etcd is stored in parts, which are written
// before the value that names them.
//
// Thread safety: any thread. Calls block; if etcd does not answer, until `time_left` is
// over.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "proto/etcd.pb.h"
#include "server/etcd/etcd_client.h"
#include "server/store/state_store.h"

namespace syncline {

// Holds while `key` was created at this revision of etcd.
struct EtcdGuard {
  std::string key;
  int64_t create_revision = 0;
};

struct EtcdStoreOptions {
  EtcdGuard guard;
  // Returns how long this coordinator still leads for certain. Zero or less: it does not
  // lead.
  std::function<absl::Duration()> time_left;
};

class EtcdStore final : public StateStore {
 public:
  // Bytes in one request for a part. By default etcd accepts requests of up to 1.5 MiB.
  static constexpr size_t kPartBytes = size_t{1} << 20;

  // `etcd` must outlive the store.
  EtcdStore(EtcdClient& etcd, EtcdStoreOptions options)
      : etcd_(etcd), options_(std::move(options)) {}

  // Besides the errors of StateStore: Failure::kRetryable if this coordinator does not
  // lead any more, and Failure::kStateUnusable if etcd refuses the request (no space
  // left) or the value is not usable (written by a newer Syncline, or incomplete).
  absl::StatusOr<std::optional<Versioned>> Load(std::string_view key) override;
  absl::StatusOr<int64_t> CompareAndSet(std::string_view key, int64_t expected_version,
                                        std::string_view value) override;
  absl::Status Erase(std::string_view key, int64_t expected_version) override;
  absl::StatusOr<std::map<std::string, Versioned>> List(std::string_view prefix) override;

 private:
  std::string ValueKey(std::string_view key) const;
  // Returns the prefix of the parts of one value of `key`, or of all its values if
  // `token` is empty.
  std::string PartsKey(std::string_view key, std::string_view token) const;

  // Returns the value to which the entry `found` leads, as of one revision.
  absl::StatusOr<std::string> Assemble(std::string_view key,
                                       const etcdserverpb::KeyValue& found,
                                       int64_t revision);
  absl::Status PutParts(std::string_view key, std::string_view token,
                        std::string_view value);
  // Carries out the change if the guard holds and `key` has this version. `token` is that
  // of the new value. Empty: the change erases the value.
  absl::Status Change(std::string_view key, int64_t expected_version,
                      std::string_view token, etcdserverpb::TxnRequest change);
  absl::StatusOr<etcdserverpb::TxnResponse> Guarded(etcdserverpb::TxnRequest change,
                                                    int* attempts = nullptr);
  absl::StatusOr<etcdserverpb::RangeResponse> Read(
      const etcdserverpb::RangeRequest& request);
  absl::Status Explain(std::string_view what, const absl::Status& status) const;
  absl::Status DoesNotLead() const;

  EtcdClient& etcd_;
  const EtcdStoreOptions options_;
  const SteadyClock clock_;
};

}  // namespace syncline
