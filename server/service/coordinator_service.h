// The shell around the coordinator's state machine. It receives on gRPC streams, sends on
// gRPC streams, and stores on disk.
//
// The machine's thread applies inputs in order of arrival and carries out the outputs: it
// stores, converts, sends and logs. State is on disk before anything that depends on it
// is sent. If it cannot be stored, the coordinator stops (`on_fatal` in the options),
// since it must not hand out an epoch that may be forgotten.
//
// gRPC has few threads (two on small hosts). They never wait for the machine's thread:
// they answer heartbeats, keep the latest one of each member, and put everything else
// into the inbox. Each tick starts with the heartbeats. So a slow disk or a job with a
// million tensors makes neither members nor the coordinator look silent.
//
// A link outlives its streams (server/service/link_table.h). The state machine's time
// stands still while this process does not run, so that no member is dropped for
// heartbeats that could not be received.
//
//   auto service = *CoordinatorService::Create({.store = *store, .log = log});
//   ServerOptions options{.services = {service.get()}};
//   SYNCLINE_ASSIGN_OR_RETURN(RunningServer running, StartServer(options));
//   ...
//   service->Stop();
//   running.Shutdown(absl::Seconds(1));
//
// Thread safety: any thread may call the public methods.
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
  StateStore* store = nullptr;  // must outlive the service
  // Whether members wait while the coordinator is away, and jobs continue when it is
  // restarted with this store. False if its servers are part of the same process.
  bool comes_back = false;
  // The store of checkpoints; null: nothing is saved. Must outlive the service.
  BlobStore* checkpoints = nullptr;
  // TLS settings of the gRPC server. With TLS, roles decide which calls a peer may make
  // (comm/rpc/roles.h).
  TlsOptions tls = {};
  // File that lists revoked certificates (server/service/gate.h). Empty: none are
  // revoked.
  std::string revoked_file = {};
  size_t streams_per_certificate = kMaxWorkers;  // server/service/gate.h
  // Without TLS: the users of this host that may connect.
  LocalUsers users = LocalUsers::OfThisProcess();
  Logger log = {};
  Logger audit = {};                  // server/service/gate.h
  ControlMetrics* metrics = nullptr;  // null: none; must outlive the service
  // For one of several coordinators: returns whether it still leads
  // (server/etcd/leadership.h). Once it returns false, nothing is applied, stored or sent
  // any more. Call StepDown when that happens.
  std::function<bool()> leads = nullptr;
  // Called once, if the state could not be stored or the coordinator no longer leads. The
  // process should end with this error.
  std::function<void(const absl::Status&)> on_fatal = [](const absl::Status&) {};
};

// Returns how the coordinator measures the silence of members. It reads the time with
// every tick, twice in a heartbeat interval. A pause of its own process does not count.
// After such a pause members may have given up their streams. They need one more attempt
// to connect before their grace period counts.
PatientClock::Options PatienceOfCoordinator(const Timeouts& timeouts);

class CoordinatorService final : public v1::Coordinator::CallbackService {
 public:
  // Continues from the stored state. Fails with Failure::kStateUnusable if the state
  // cannot be read, and with Failure::kUsage if the TLS files are not a coordinator's.
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
  grpc::ServerUnaryReactor* ReportPushes(grpc::CallbackServerContext* context,
                                         const v1::ReportPushesRequest* request,
                                         v1::ReportPushesReply* reply) override;
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
  // Sets the address of its gRPC server, once it is known (server/service/gate.h).
  void ServesAt(const std::string& address, std::shared_ptr<FrontDoor> door = nullptr) {
    gate_->ServesAt(address, std::move(door));
  }
  v1::StatusReply StatusNow() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the events of all jobs, oldest first.
  v1::EventsReply EventsNow() const;

  // Ends all streams, so that members connect to the new leader, and calls on_fatal. Call
  // it when another coordinator leads.
  void StepDown(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends all streams, which members treat as the loss of the coordinator. Call it before
  // the gRPC server is shut down.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class MemberStream;
  class RefusedStream;

  CoordinatorService(CoordinatorServiceOptions options, std::unique_ptr<Gate> gate);

  // An input that waits for the machine's thread.
  struct Item {
    CoordinatorInput input;
    // For calls only. Called exactly once, even if the input is not applied any more.
    // `change` describes the settings before and after.
    std::function<void(const CallAnswer&, const std::string& change)> answer = nullptr;
    // The member to whose backlog the input belongs. 0: none.
    ConnectionId connection = 0;
    size_t bytes = 0;
  };
  static constexpr size_t kMaxInboxItems = size_t{1} << 22;
  // Number and size of one member's inputs that wait.
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

  // Called on gRPC's threads, and on those of the preparer and the keeper.
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
  // Posts a call, or answers that the coordinator is stopping.
  void PostCall(Item item) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes a launcher's report about a job. Writes `change` to the audit log, if not
  // empty.
  grpc::ServerUnaryReactor* TakeReport(grpc::CallbackServerContext* context,
                                       const std::string& job, CoordinatorInput report,
                                       const std::string& change)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<TraceTargets> TargetsOf(const std::string& job)
      ABSL_LOCKS_EXCLUDED(machine_mutex_);
  void TakeTrace(ConnectionId connection, const v1::TracePart& part)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendOrders(const TraceDesk::Orders& orders) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns false if it was stopped before.
  bool StopWith(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether the coordinator may act, and stops it otherwise. Called before
  // anything is sent or stored.
  bool StillLeads() ABSL_LOCKS_EXCLUDED(mutex_);

  // Called on the machine's thread.
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
  // Restores the stored state, before the machine's thread starts.
  absl::Status Restore() ABSL_LOCKS_EXCLUDED(mutex_, machine_mutex_);
  bool Store(const StoreRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status StoreNow(const StoreRecord& record);
  absl::Status RestoreEvents();
  // Stores new events and shows them, at most a few times a second.
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

  // Used by the machine's thread only.
  std::map<std::string, int64_t> stored_versions_;  // by key
  SharedBytes shared_;
  std::random_device random_;
  absl::Duration events_kept_at_ = -absl::InfiniteDuration();
  bool events_are_kept_ = true;  // the last attempt to store events succeeded
  // Members that do not read: too many messages wait for them. Found while outputs were
  // carried out.
  std::vector<std::pair<ConnectionId, absl::Status>> unread_;

  EventLog events_;  // written by the machine's thread, read by any thread

  // Held for one Apply or one View.
  absl::Mutex machine_mutex_;
  Coordinator coordinator_ ABSL_GUARDED_BY(machine_mutex_);

  // Held briefly. May be held while the mutex of a stream is taken, never the reverse.
  absl::Mutex mutex_;
  SteadyCondition changed_;  // signalled when there is work, or stopped_ is set
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  LinkTable links_ ABSL_GUARDED_BY(mutex_);
  std::deque<Item> inbox_ ABSL_GUARDED_BY(mutex_);
  size_t inbox_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<ConnectionId, Backlog> backlogs_ ABSL_GUARDED_BY(mutex_);
  Beats beats_ ABSL_GUARDED_BY(mutex_);
  TraceDesk traces_ ABSL_GUARDED_BY(mutex_);
  // The clock of leases. Time in which this process did not run does not count.
  PatientClock patient_ ABSL_GUARDED_BY(mutex_);

  std::thread machine_;
  Preparer preparer_;                         // uses all the others
  std::unique_ptr<CheckpointKeeper> keeper_;  // uses the others; null: no checkpoints
};

}  // namespace syncline
