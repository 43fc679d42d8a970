// Calls an etcd of one or several members, whichever answers.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto etcd, EtcdClient::Create(address, tls, absl::Seconds(1)));
//   SYNCLINE_ASSIGN_OR_RETURN(auto found, etcd->Range(request, absl::Seconds(5)));
//
// If a member does not answer within an attempt, the next one is asked. An attempt lasts
// as long as `attempt` says, and twice as long in each further round of all members.
// After `limit` the call fails with Unavailable and the last error; the next call begins
// with the following member. Other errors of etcd are returned at once.
//
// A call may therefore be carried out more than once, or although it failed. A caller
// that changes something must be able to find out (etcd_store.h).
//
// Thread safety: any thread. Calls block.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "grpcpp/client_context.h"
#include "proto/etcd.grpc.pb.h"
#include "server/etcd/etcd_address.h"

namespace syncline {

class EtcdClient {
 public:
  // Fails with Failure::kUsage if TLS files cannot be read. Connects with the first call.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Create(EtcdAddress address,
                                                            const EtcdTls& tls,
                                                            absl::Duration attempt);

  const EtcdAddress& address() const { return address_; }

  absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request, absl::Duration limit);
  // Adds the number of attempts to `attempts`, if given.
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request,
                                                absl::Duration limit,
                                                int* attempts = nullptr);
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> Grant(absl::Duration ttl,
                                                         absl::Duration limit);
  // Renews the lease, and returns its remaining time. Fails with NotFound if it has
  // ended.
  absl::StatusOr<absl::Duration> KeepAlive(int64_t lease, absl::Duration limit);
  absl::Status Revoke(int64_t lease, absl::Duration limit);

 private:
  struct Member {
    std::string address;
    std::unique_ptr<etcdserverpb::KV::Stub> kv;
    std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  };

  EtcdClient(EtcdAddress address, absl::Duration attempt)
      : address_(std::move(address)), attempt_(attempt) {}

  absl::Status Ask(
      absl::Duration limit,
      const std::function<grpc::Status(Member&, grpc::ClientContext&)>& call);

  const EtcdAddress address_;
  const absl::Duration attempt_;
  const SteadyClock clock_;
  std::vector<Member> members_;
  // Index in members_ of the member that the next call asks first.
  std::atomic<size_t> next_ = 0;
};

}  // namespace syncline
