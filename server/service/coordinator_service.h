// The shell around the coordinator: gRPC streams in, state machine, gRPC streams and disk
// out.
//
// One mutex around the state machine is enough: the control plane carries heartbeats and
// epochs, never gradients. State is on disk before anything that depends on it is sent.
// When it cannot be stored, the coordinator says so and stops deciding (`fatal` in the
// options), since an epoch that may be forgotten must not be handed out.
//
// Streams come and go, links stay (server/service/link_table.h). The time that the state
// machine is told stands still while this process did not run, so that nobody is dropped
// for what could not be heard.
//
//   auto service = *CoordinatorService::Create({.store = *store, .log = log});
//   ServerOptions options{.services = {service.get()}};
//   SYNCLINE_ASSIGN_OR_RETURN(RunningServer running, StartServer(options));
//   ...
//   service->Stop();
//   running.Shutdown(absl::Seconds(1));
//
// Thread safety: all public methods may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/base/patient_clock.h"
#include "comm/base/steady_condition.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/coordinator/coordinator.h"
#include "server/service/job_convert.h"
#include "server/service/link_table.h"
#include "server/service/preparer.h"
#include "server/store/state_store.h"

namespace syncline {

struct CoordinatorServiceOptions {
  CoordinatorOptions coordinator = {};
  StateStore* store = nullptr;  // outlives the service
  Logger log = {};
  // Called once, when the state could not be stored; the process should end with this
  // error.
  std::function<void(const absl::Status&)> on_fatal = [](const absl::Status&) {};
};

class CoordinatorService final : public v1::Coordinator::CallbackService {
 public:
  // Goes on from the stored state. Failure::kStateUnusable when that cannot be read.
  static absl::StatusOr<std::unique_ptr<CoordinatorService>> Create(
      CoordinatorServiceOptions options);
  ~CoordinatorService() override;

  grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const v1::StatusRequest* request,
                                   v1::StatusReply* reply) override;

  grpc::ServerUnaryReactor* UpdateJob(grpc::CallbackServerContext* context,
                                      const v1::UpdateJobRequest* request,
                                      v1::UpdateJobReply* reply) override;

  CoordinatorView View() ABSL_LOCKS_EXCLUDED(mutex_);
  v1::StatusReply StatusNow() ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends all streams; members take it for a lost coordinator. Call before the gRPC server
  // is shut down.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class MemberStream;

  explicit CoordinatorService(CoordinatorServiceOptions options);

  void Register(MemberStream* stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void Receive(MemberStream* stream, const v1::MemberMessage& message)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Gone(MemberStream* stream) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnPrepared(Prepared prepared) ABSL_LOCKS_EXCLUDED(mutex_);
  void TickUntilStopped() ABSL_LOCKS_EXCLUDED(mutex_);
  UpdateAnswer Update(const v1::UpdateJobRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);
  CoordinatorOutputs Apply(const CoordinatorInput& input)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Perform(const CoordinatorOutput& output) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseUnread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration Now() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return patient_.Advance(clock_.Now());
  }
  bool Store(const std::string& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<MemberBody> Read(const v1::MemberMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CoordinatorServiceOptions options_;
  const SteadyClock clock_;

  absl::Mutex mutex_;
  Coordinator coordinator_ ABSL_GUARDED_BY(mutex_);
  int64_t stored_version_ ABSL_GUARDED_BY(mutex_) = kAbsent;
  LinkTable links_ ABSL_GUARDED_BY(mutex_);
  SharedBytes shared_ ABSL_GUARDED_BY(mutex_);
  // Whose messages piled up while outputs were carried out.
  std::vector<std::pair<ConnectionId, absl::Status>> unread_ ABSL_GUARDED_BY(mutex_);
  // Leases go by it: what could not be heard is nobody's silence.
  PatientClock patient_ ABSL_GUARDED_BY(mutex_);
  std::random_device random_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  SteadyCondition changed_;  // stopped_ became true

  std::thread ticker_;
  Preparer preparer_;  // last: it uses all the others
};

}  // namespace syncline
