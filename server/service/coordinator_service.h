// The shell around the coordinator: gRPC streams in, state machine, gRPC streams and disk
// out.
//
// One thread owns the machine: it applies what members say, in the order in which it came,
// and carries out what follows: stores, converts, sends, logs. State is on disk before
// anything that depends on it is sent. When it cannot be stored, the coordinator says so
// and stops deciding (`on_fatal` in the options), since an epoch that may be forgotten
// must not be handed out.
//
// gRPC's threads are few (two on small hosts) and never wait for that thread: they answer
// heartbeats, keep the latest of each member, and put everything else into the inbox. Each
// tick begins with the heartbeats. So whatever holds the machine up, a slow disk or a job
// with a million tensors, makes nobody look silent, neither members nor the coordinator.
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
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
#include "comm/base/limits.h"
#include "comm/base/log.h"
#include "comm/base/patient_clock.h"
#include "comm/base/steady_condition.h"
#include "comm/rpc/tls.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/coordinator/coordinator.h"
#include "server/service/checkpoint_keeper.h"
#include "server/service/event_log.h"
#include "server/service/gate.h"
#include "server/service/job_convert.h"
#include "server/service/link_table.h"
#include "server/service/preparer.h"
#include "server/service/trace_desk.h"
#include "server/store/state_store.h"

namespace syncline {

struct CoordinatorServiceOptions {
  CoordinatorOptions coordinator = {};
  StateStore* store = nullptr;  // outlives the service
  // Whether members wait for it when it is away, and jobs go on when it is started again
  // with this store. Not where its servers are part of the same process.
  bool comes_back = false;
  // Where checkpoints are, or null: nothing is saved. Outlives the service.
  BlobStore* checkpoints = nullptr;
  // What the gRPC server has: with TLS, roles decide who may do what (comm/rpc/roles.h).
  TlsOptions tls = {};
  // Whose certificates are worth nothing any more (server/service/gate.h); empty: nobody's.
  std::string revoked_file = {};
  size_t streams_per_certificate = kMaxWorkers;  // server/service/gate.h
  // Without TLS: who is who on this host.
  LocalUsers users = LocalUsers::OfThisProcess();
  Logger log = {};
  Logger audit = {};                  // server/service/gate.h
  ControlMetrics* metrics = nullptr;  // outlives the service, or none
  // Whether it still leads, where it is one of several (server/etcd/leadership.h). Once it
  // says no, nothing more is applied, stored or said; StepDown says that it changed.
  std::function<bool()> leads = nullptr;
  // Called once, when the state could not be stored, or it leads no more; the process
  // should end with this error.
  std::function<void(const absl::Status&)> on_fatal = [](const absl::Status&) {};
};

// How the coordinator counts silence. It asks for the time with every tick, two to a
// heartbeat; a pause of its own ends nobody: members may have given up the streams that
// it finds after it, and need one more attempt before their grace counts.
PatientClock::Options PatienceOfCoordinator(const Timeouts& timeouts);

class CoordinatorService final : public v1::Coordinator::CallbackService {
 public:
  // Goes on from the stored state. Failure::kStateUnusable when that cannot be read,
  // Failure::kUsage for TLS files that are not a coordinator's.
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

  grpc::ServerUnaryReactor* CreateCheckpoint(grpc::CallbackServerContext* context,
                                             const v1::CreateCheckpointRequest* request,
                                             v1::CreateCheckpointReply* reply) override;

  grpc::ServerUnaryReactor* ReportExit(grpc::CallbackServerContext* context,
                                       const v1::ReportExitRequest* request,
                                       v1::ReportExitReply* reply) override;
  grpc::ServerUnaryReactor* ReportStop(grpc::CallbackServerContext* context,
                                       const v1::ReportStopRequest* request,
                                       v1::ReportStopReply* reply) override;
  grpc::ServerUnaryReactor* DrainServer(grpc::CallbackServerContext* context,
                                        const v1::DrainServerRequest* request,
                                        v1::DrainServerReply* reply) override;

  grpc::ServerUnaryReactor* StartTrace(grpc::CallbackServerContext* context,
                                       const v1::StartTraceRequest* request,
                                       v1::StartTraceReply* reply) override;
  grpc::ServerUnaryReactor* FetchTrace(grpc::CallbackServerContext* context,
                                       const v1::FetchTraceRequest* request,
                                       v1::FetchTraceReply* reply) override;

  grpc::ServerUnaryReactor* Events(grpc::CallbackServerContext* context,
                                   const v1::EventsRequest* request,
                                   v1::EventsReply* reply) override;

  CoordinatorView View() ABSL_LOCKS_EXCLUDED(mutex_);
  // Where its gRPC server listens, once that is known (server/service/gate.h).
  void ServesAt(const std::string& address, std::shared_ptr<FrontDoor> door = nullptr) {
    gate_->ServesAt(address, std::move(door));
  }
  v1::StatusReply StatusNow() ABSL_LOCKS_EXCLUDED(mutex_);
  // Of all jobs, oldest first.
  v1::EventsReply EventsNow() const;

  // It does not lead any more: members are sent to whoever does, and on_fatal is called.
  void StepDown(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends all streams; members take it for a lost coordinator. Call before the gRPC server
  // is shut down.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class MemberStream;
  class RefusedStream;

  CoordinatorService(CoordinatorServiceOptions options, std::unique_ptr<Gate> gate);

  // Something for the machine.
  struct Item {
    CoordinatorInput input;
    // Of what a caller asked for: called once, also when it is not applied any more.
    // `change` says what was, and what is.
    std::function<void(const CallAnswer&, const std::string& change)> answer = nullptr;
    // Whose backlog it is part of; 0 for nobody's.
    ConnectionId connection = 0;
    size_t bytes = 0;
  };
  static constexpr size_t kMaxInboxItems = size_t{1} << 22;
  // What waits of one member.
  struct Backlog {
    size_t items = 0;
    size_t bytes = 0;
  };
  using Beats = std::map<ConnectionId, Heartbeat>;
  struct Work {
    bool is_tick = false;
    std::optional<Item> item = std::nullopt;
    Beats beats = {};
  };

  static constexpr char kStateKey[] = "coordinator";

  static CallAnswer NotApplied();

  // From gRPC's threads, and the preparer's.
  void Register(MemberStream* stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void Receive(MemberStream* stream, const v1::MemberMessage& message)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Gone(MemberStream* stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void Note(ConnectionId connection, MemberBody body, size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PostDisconnected(ConnectionId connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Post(Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnPrepared(Prepared prepared) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCheckpoint(CheckpointAnswer answer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Posts what a caller asked for, or answers that it is too late.
  void PostCall(Item item) ABSL_LOCKS_EXCLUDED(mutex_);
  // What a launcher says of a job. The audit log has the `change`, if there is one.
  grpc::ServerUnaryReactor* TakeReport(grpc::CallbackServerContext* context,
                                       const std::string& job, CoordinatorInput report,
                                       const std::string& change)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<TraceTargets> TargetsOf(const std::string& job)
      ABSL_LOCKS_EXCLUDED(machine_mutex_);
  void TakeTrace(ConnectionId connection, const v1::TracePart& part)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendOrders(const TraceDesk::Orders& orders) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False for the second one.
  bool StopWith(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether it may act; where not, it stops. Asked before whatever is said or done.
  bool StillLeads() ABSL_LOCKS_EXCLUDED(mutex_);

  // The machine's thread.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_, machine_mutex_);
  absl::Duration WakeAt() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<Work> WaitForWork(absl::Duration next_tick) ABSL_LOCKS_EXCLUDED(mutex_);
  std::deque<Item> TakeInbox() ABSL_LOCKS_EXCLUDED(mutex_);
  void Handle(Item& item) ABSL_LOCKS_EXCLUDED(mutex_, machine_mutex_);
  CoordinatorOutputs Apply(const CoordinatorInput& input)
      ABSL_LOCKS_EXCLUDED(mutex_, machine_mutex_);
  bool Perform(const CoordinatorOutput& output) ABSL_LOCKS_EXCLUDED(mutex_);
  void Log(const LogReason& reason, Logger::Fields fields) const;
  void CloseUnread() ABSL_LOCKS_EXCLUDED(mutex_, machine_mutex_);
  absl::Status Farewell(const char* why) const;
  // Goes on from what is stored. Before the machine's thread.
  absl::Status Restore() ABSL_LOCKS_EXCLUDED(mutex_, machine_mutex_);
  bool Store(const StoreRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status StoreNow(const StoreRecord& record);
  absl::Status RestoreEvents();
  // Stores events and shows them, a few times a second however many there are.
  enum class Keep { kWhenDue, kNow };
  void KeepEvents(Keep when);

  absl::Duration Now() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return PatientNow();
  }
  absl::Duration PatientNow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return patient_.Advance(clock_.Now());
  }

  const CoordinatorServiceOptions options_;
  const std::unique_ptr<Gate> gate_;
  const SteadyClock clock_;

  // Of the machine's thread.
  std::map<std::string, int64_t> stored_versions_;  // by key
  SharedBytes shared_;
  std::random_device random_;
  absl::Duration events_kept_at_ = -absl::InfiniteDuration();
  bool events_are_kept_ = true;  // the last time that they were to be
  // Whose messages piled up while outputs were carried out.
  std::vector<std::pair<ConnectionId, absl::Status>> unread_;

  EventLog events_;  // of the machine's thread, and of anyone who reads

  // Held for one Apply, or a view.
  absl::Mutex machine_mutex_;
  Coordinator coordinator_ ABSL_GUARDED_BY(machine_mutex_);

  // Held for moments only. Streams' own mutexes come after it.
  absl::Mutex mutex_;
  SteadyCondition changed_;  // something to do, or stopped_
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  LinkTable links_ ABSL_GUARDED_BY(mutex_);
  std::deque<Item> inbox_ ABSL_GUARDED_BY(mutex_);
  size_t inbox_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<ConnectionId, Backlog> backlogs_ ABSL_GUARDED_BY(mutex_);
  Beats beats_ ABSL_GUARDED_BY(mutex_);
  TraceDesk traces_ ABSL_GUARDED_BY(mutex_);
  // Leases go by it: what could not be heard is nobody's silence.
  PatientClock patient_ ABSL_GUARDED_BY(mutex_);

  std::thread machine_;
  Preparer preparer_;                         // uses all the others
  std::unique_ptr<CheckpointKeeper> keeper_;  // likewise; null without checkpoints
};

}  // namespace syncline
