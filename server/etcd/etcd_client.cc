#include "server/etcd/etcd_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/status.h"
#include "comm/rpc/tls.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "grpcpp/support/channel_arguments.h"

namespace syncline {
namespace {

// Pause after all members have failed.
constexpr absl::Duration kPause = absl::Milliseconds(100);
// How often certificate files are read again, in seconds.
constexpr unsigned kLookAgainSeconds = 1;

bool IsNoAnswer(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const EtcdTls& tls) {
  if (tls.ca_file.empty()) return grpc::InsecureChannelCredentials();
  SYNCLINE_RETURN_IF_ERROR(ReadTlsFile(tls.ca_file, "--etcd-ca").status());
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> files;
  grpc::experimental::TlsChannelCredentialsOptions options;
  if (tls.cert_file.empty()) {
    files = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
        tls.ca_file, kLookAgainSeconds);
  } else {
    SYNCLINE_RETURN_IF_ERROR(ReadTlsFile(tls.cert_file, "--etcd-cert").status());
    SYNCLINE_RETURN_IF_ERROR(ReadTlsFile(tls.key_file, "--etcd-key").status());
    files = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
        tls.key_file, tls.cert_file, tls.ca_file, kLookAgainSeconds);
    options.watch_identity_key_cert_pairs();
  }
  options.set_certificate_provider(files);
  options.watch_root_certs();
  return grpc::experimental::TlsCredentials(options);
}

grpc::ChannelArguments MakeEtcdArguments(absl::Duration attempt) {
  grpc::ChannelArguments arguments;
  const auto milliseconds = [](absl::Duration time) {
    return static_cast<int>(absl::ToInt64Milliseconds(time));
  };
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, milliseconds(kPause));
  // An attempt to connect continues while other members are asked.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, milliseconds(3 * attempt));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, milliseconds(attempt));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // etcd accepts one ping in 5 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetMaxReceiveMessageSize(kMaxRpcMessageBytes);
  return arguments;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Create(EtcdAddress address,
                                                               const EtcdTls& tls,
                                                               absl::Duration attempt) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto credentials, MakeCredentials(tls));
  std::unique_ptr<EtcdClient> self(new EtcdClient(std::move(address), attempt));
  for (const std::string& member : self->address_.members) {
    const auto channel =
        grpc::CreateCustomChannel(member, credentials, MakeEtcdArguments(attempt));
    self->members_.push_back({.address = member,
                              .kv = etcdserverpb::KV::NewStub(channel),
                              .lease = etcdserverpb::Lease::NewStub(channel)});
  }
  return self;
}

absl::Status EtcdClient::Ask(
    absl::Duration limit,
    const std::function<grpc::Status(Member&, grpc::ClientContext&)>& call) {
  const absl::Duration until = clock_.Now() + limit;
  const size_t first = next_;
  absl::Duration attempt = attempt_;
  std::string last = "it was not asked";
  for (size_t tries = 0;; ++tries) {
    if (tries > 0 && tries % members_.size() == 0) {
      absl::SleepFor(kPause);
      attempt *= 2;  // members may be slow, not unreachable
    }
    const absl::Duration left = until - clock_.Now();
    if (left <= absl::ZeroDuration()) break;
    const size_t index = (first + tries) % members_.size();
    Member& member = members_[index];
    grpc::ClientContext context;
    // Otherwise gRPC would not notice that a member is back.
    context.set_wait_for_ready(true);
    SetDeadline(context, std::min(left, attempt));
    const grpc::Status status = call(member, context);
    if (!IsNoAnswer(status)) {
      next_ = index;
      return FromGrpcStatus(status);
    }
    // The next call begins with the following member, even if this call has no time to
    // ask it.
    size_t asked = index;
    next_.compare_exchange_strong(asked, (index + 1) % members_.size());
    last = absl::StrCat(member.address, ": ",
                        status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED
                            ? "no connection, or no answer"
                            : status.error_message());
  }
  return absl::UnavailableError(absl::StrCat(
      "no answer within ",
      absl::FormatDuration(absl::Trunc(limit, absl::Milliseconds(1))), "; ", last));
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::Range(
    const etcdserverpb::RangeRequest& request, absl::Duration limit) {
  etcdserverpb::RangeResponse reply;
  SYNCLINE_RETURN_IF_ERROR(Ask(limit, [&](Member& member, grpc::ClientContext& context) {
    return member.kv->Range(&context, request, &reply);
  }));
  return reply;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Txn(
    const etcdserverpb::TxnRequest& request, absl::Duration limit, int* attempts) {
  etcdserverpb::TxnResponse reply;
  SYNCLINE_RETURN_IF_ERROR(Ask(limit, [&](Member& member, grpc::ClientContext& context) {
    if (attempts != nullptr) ++*attempts;
    return member.kv->Txn(&context, request, &reply);
  }));
  return reply;
}

absl::StatusOr<etcdserverpb::LeaseGrantResponse> EtcdClient::Grant(absl::Duration ttl,
                                                                   absl::Duration limit) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(ttl));
  etcdserverpb::LeaseGrantResponse reply;
  SYNCLINE_RETURN_IF_ERROR(Ask(limit, [&](Member& member, grpc::ClientContext& context) {
    return member.lease->LeaseGrant(&context, request, &reply);
  }));
  return reply;
}

absl::StatusOr<absl::Duration> EtcdClient::KeepAlive(int64_t lease,
                                                     absl::Duration limit) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse reply;
  SYNCLINE_RETURN_IF_ERROR(Ask(limit, [&](Member& member, grpc::ClientContext& context) {
    const auto stream = member.lease->LeaseKeepAlive(&context);
    stream->Write(request);
    const bool is_answered = stream->Read(&reply);
    // No more is needed, and etcd would keep the stream open.
    if (is_answered) context.TryCancel();
    const grpc::Status end = stream->Finish();
    if (is_answered) return grpc::Status::OK;
    return end.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "no answer") : end;
  }));
  if (reply.ttl() <= 0) return absl::NotFoundError("the lease has ended");
  return absl::Seconds(reply.ttl());
}

absl::Status EtcdClient::Revoke(int64_t lease, absl::Duration limit) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  return Ask(limit, [&](Member& member, grpc::ClientContext& context) {
    etcdserverpb::LeaseRevokeResponse reply;
    return member.lease->LeaseRevoke(&context, request, &reply);
  });
}

}  // namespace syncline
