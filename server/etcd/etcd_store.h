// A StateStore in etcd, for a coordinator that leads (leadership.h).
//
//   EtcdStore store(*etcd, {.guard = leadership.guard(), .time_left = ...});
//
// Each change is one transaction that etcd carries out only while the guard holds: the key
// of this coordinator's leadership is still the one that it made. So one that was replaced,
// and does not know it yet, changes nothing, however long its request was on the way.
// A version is etcd's own version of the key. A change whose answer was lost is tried again,
// and known by a number that only this attempt has.
//
// Values beyond what one request of etcd holds lie in parts, written before the value that
// names them. Thread safety: any thread. Calls block, until `time_left` is over where etcd
// does not answer.
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

// Holds while `key` is the one that came to be at this revision of the store.
struct EtcdGuard {
  std::string key;
  int64_t create_revision = 0;
};

struct EtcdStoreOptions {
  EtcdGuard guard;
  // For how long this coordinator still leads; none or less: it does not.
  std::function<absl::Duration()> time_left;
};

class EtcdStore final : public StateStore {
 public:
  // What one request may carry beside the rest: etcd takes 1.5 MiB unless it is told
  // otherwise.
  static constexpr size_t kPartBytes = size_t{1} << 20;

  // `etcd` is borrowed, and outlives the store.
  EtcdStore(EtcdClient& etcd, EtcdStoreOptions options)
      : etcd_(etcd), options_(std::move(options)) {}

  // Beside those of StateStore: Failure::kRetryable when this coordinator does not lead any
  // more, Failure::kStateUnusable for what etcd refuses (no space left) or holds (written by
  // a newer Syncline, or not whole).
  absl::StatusOr<std::optional<Versioned>> Load(std::string_view key) override;
  absl::StatusOr<int64_t> CompareAndSet(std::string_view key, int64_t expected_version,
                                        std::string_view value) override;
  absl::Status Erase(std::string_view key, int64_t expected_version) override;
  absl::StatusOr<std::map<std::string, Versioned>> List(std::string_view prefix) override;

 private:
  std::string ValueKey(std::string_view key) const;
  // Of one value of `key`, or of all where no token is given.
  std::string PartsKey(std::string_view key, std::string_view token) const;

  // What leads to the value, as of one revision.
  absl::StatusOr<std::string> Assemble(std::string_view key,
                                       const etcdserverpb::KeyValue& found,
                                       int64_t revision);
  absl::Status PutParts(std::string_view key, std::string_view token,
                        std::string_view value);
  // Carries it out while the guard holds and `key` has this version. `token` is that of the
  // value afterwards; empty: there is none.
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
