// One stream from a member to the coordinator (proto/coordinator.proto, Attach). Members
// use a ControlLink, which survives its streams (comm/rpc/control_link.h).
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto stream, AttachStream::Open(
//       {.address = "10.0.0.1:7070", .timeouts = timeouts},
//       {.on_message = [&](const v1::CoordinatorMessage& message) { ... },
//        .on_end = [&](const absl::Status& status) { ... }}));
//   stream->Send(hello);
//   ...
//   stream->Close();
//
// Thread safety: any thread may call Send. Callbacks run on the stream's own thread, one
// at a time. on_end is the last one, called exactly once unless Close was called first.
// Callbacks must not call Close.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/steady_condition.h"
#include "comm/base/timeouts.h"
#include "comm/rpc/tls.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/sync_stream.h"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {

// Both sides of a stream must speak the same version; proto/README.md says when it
// changes.
inline constexpr uint32_t kProtocolVersion = 7;

struct AttachOptions {
  std::string address;  // of the coordinator
  TlsOptions tls = {};
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  absl::Duration connect_timeout = timeouts.connect_timeout;
};

struct AttachCallbacks {
  std::function<void(const v1::CoordinatorMessage&)> on_message;
  // Receives the reason why the stream ended: a refusal or drop by the coordinator, or
  // Unavailable without a Failure when the coordinator is gone.
  std::function<void(const absl::Status&)> on_end;
};

class AttachStream {
 public:
  // Fails with Failure::kUnreachable when the coordinator does not answer within the
  // connect timeout.
  static absl::StatusOr<std::unique_ptr<AttachStream>> Open(const AttachOptions& options,
                                                            AttachCallbacks callbacks);
  ~AttachStream();  // calls Close

  // Returns false when the stream has ended; on_end receives the reason.
  bool Send(const v1::MemberMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);

  // Announces that nothing more will be sent, and waits up to `grace` for the coordinator
  // to end the stream. Cancels it after that. A second call does nothing.
  void Close(absl::Duration grace = absl::ZeroDuration()) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the stream at once, including a Send that waits for the network. Any thread.
  void Cancel() { context_.TryCancel(); }

 private:
  AttachStream() = default;
  void Read(const AttachCallbacks& callbacks);

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MemberMessage, v1::CoordinatorMessage>>
      stream_;
  std::thread reader_;

  absl::Mutex write_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // held while a message is sent
  absl::Mutex mutex_;
  bool writable_ ABSL_GUARDED_BY(mutex_) = true;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  SteadyCondition changed_;  // signals that ended_ became true
};

}  // namespace syncline
