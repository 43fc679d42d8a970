// Calls to an etcd of one member or several: whichever answers.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto etcd, EtcdClient::Create(address, tls, absl::Seconds(1)));
//   SYNCLINE_ASSIGN_OR_RETURN(auto found, etcd->Range(request, absl::Seconds(5)));
//
// A member that does not answer within an attempt is left for the next one, until `limit`
// is over: Unavailable then, with what was heard last, and the next call goes on with the
// member after it. Each round of all of them has attempts twice as long. So a call may have
// been carried out more than once, or though it failed; whoever changes something must be
// able to tell (etcd_store.h). What etcd refuses comes back at once.
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
  // Failure::kUsage for TLS files that cannot be read. Connects with the first call.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Create(EtcdAddress address,
                                                            const EtcdTls& tls,
                                                            absl::Duration attempt);

  const EtcdAddress& address() const { return address_; }

  absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request, absl::Duration limit);
  // `attempts` counts how often it was asked for, where that is given.
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request,
                                                absl::Duration limit,
                                                int* attempts = nullptr);
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> Grant(absl::Duration ttl,
                                                         absl::Duration limit);
  // What is left of it from now on; NotFound when it has ended.
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
  std::atomic<size_t> next_ = 0;  // of members_: whom the next call asks first
};

}  // namespace syncline
