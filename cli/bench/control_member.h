// A raw member of `syncline bench control`: a control stream that says hello, sends
// heartbeats, and answers as a server does.
//
// Thread safety: any thread may call Say and Kill; gRPC calls the other methods.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/client_callback.h"
#include "nlohmann/json.hpp"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {

// Counts messages and bytes by the name of their kind.
class ControlTraffic {
 public:
  void Count(const google::protobuf::Message& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void Reset() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns {"messages", "bytes", "kinds": {name: {"messages", "bytes"}}}.
  nlohmann::json Report() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Kind {
    uint64_t messages = 0;
    uint64_t bytes = 0;
  };
  mutable absl::Mutex mutex_;
  std::map<std::string, Kind> kinds_ ABSL_GUARDED_BY(mutex_);
};

struct ControlMemberEvents {
  ControlTraffic* received = nullptr;
  ControlTraffic* sent = nullptr;
  // The answer to DescribeJob.
  std::shared_ptr<const v1::MemberMessage> declaration = nullptr;
  std::function<void(const v1::CoordinatorMessage&)> on_message;
  std::function<void(const absl::Status&)> on_end;  // the last call
};

class ControlMember final
    : public grpc::ClientBidiReactor<v1::MemberMessage, v1::CoordinatorMessage> {
 public:
  explicit ControlMember(ControlMemberEvents events) : events_(std::move(events)) {}

  // Call once. The member must live until on_end was called.
  void Start(v1::Coordinator::Stub& stub, v1::MemberMessage hello);
  // Has no effect before Start and after the end.
  void Say(v1::MemberMessage message) ABSL_LOCKS_EXCLUDED(mutex_);
  // Breaks the stream, as if the process was killed.
  void Kill() { context_.TryCancel(); }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(const grpc::Status& status) override;

 private:
  void SayLocked(v1::MemberMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer(const v1::CoordinatorMessage& message);

  const ControlMemberEvents events_;
  grpc::ClientContext context_;
  v1::CoordinatorMessage incoming_;

  absl::Mutex mutex_;
  std::deque<v1::MemberMessage> outgoing_
      ABSL_GUARDED_BY(mutex_);  // the first is being written
  bool is_started_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncline
