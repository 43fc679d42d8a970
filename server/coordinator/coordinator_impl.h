// The parts of the Coordinator, for the files that implement it:
//   coordinator.cc            inputs, servers and time
//   coordinator_admission.cc  from a worker's hello to its place in a job
//   coordinator_drain.cc      servers that are told to end
//   coordinator_goals.cc      watches the goals of jobs
//   coordinator_answers.cc    acts when goals are missed
//   coordinator_slowest.cc    tells workers which of them is the slowest
//   coordinator_restore.cc    what is stored, and how a restart continues with it
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/coordinator/coordinator.h"
#include "server/coordinator/declarations.h"
#include "server/coordinator/goal_answers.h"
#include "server/coordinator/goal_watch.h"
#include "server/coordinator/growing_numbers.h"
#include "server/coordinator/job.h"
#include "server/coordinator/job_record.h"
#include "server/coordinator/outbox.h"
#include "server/coordinator/straggler_watch.h"

namespace syncline {

class Coordinator::Impl {
 public:
  explicit Impl(const CoordinatorOptions& options)
      : options_(options), declarations_(options.timeouts, outbox_) {}

  absl::Status Restore(const StoredState& stored, const DeclarationReader& reader);
  uint64_t term() const { return term_; }
  CoordinatorOutputs Apply(const CoordinatorInput& input, absl::Duration now);
  CoordinatorView View(absl::Duration now) const;
  absl::StatusOr<TraceTargets> TraceTargetsOf(const std::string& name) const;
  absl::Duration wake_at() const;

 private:
  struct Server {
    uint32_t number = 0;
    uint32_t incarnation = 0;
    ConnectionId connection = 0;
    std::string name;
    std::string lanes;
    std::string lanes_because;
    std::vector<std::string> shard_addresses;
    std::vector<JournaledRun> journals;
    uint64_t memory_bytes = 0;
    uint64_t bytes = 0;
    absl::Duration heard_at;
    absl::Duration attached_at;
    bool feeds_two_backups = false;
    bool is_stand_in = false;  // for one job only
    bool is_to_end = false;    // an operator ordered it
    bool drains = false;       // it waits until it may end (Drain)
    bool is_drained = false;   // it was told that it may end (Drained)
    std::optional<absl::Duration> disconnected_at = std::nullopt;

    bool IsLeaving() const { return is_to_end || drains; }
    // Whether it may serve new jobs, and take over places of other servers.
    bool TakesPlaces() const { return !is_stand_in && !IsLeaving(); }
  };
  // The member at the other end of a connection. A worker's job may be over, and a later
  // job may have the same name.
  struct Speaker {
    enum Kind { kServer, kNewcomer, kWorker } kind = kServer;
    uint32_t server = 0;
    uint32_t job = 0;
    uint32_t rank = 0;
  };

  // A server that was attached before a restart of the coordinator, and has not come
  // back.
  struct AbsentServer {
    uint32_t incarnation = 0;
    std::string name;
  };

  absl::Status RestoreNumbers(const std::string& state);
  absl::Status CheckFormerTimeout() const;
  absl::StatusOr<std::unique_ptr<Job>> RestoreJob(const JobRecord& record,
                                                  const std::string* declaration,
                                                  const DeclarationReader& reader);
  void RestoreJobs(const StoredState& stored, const DeclarationReader& reader);
  void OnStart();
  void Forget(const std::string& record, const std::string& why);
  bool IsAbsent(const ServerHello& hello) const;
  void LoseAbsent(const std::string& name);
  // Forgets absent servers that no job waits for any more.
  void ForgetAbsent();
  void OnServerBack(const Server& server, const ServerHello& hello);
  void Return(ConnectionId connection, const WorkerHello& hello);
  absl::Status CheckServer(const ServerHello& hello) const;
  void OnServerHello(ConnectionId connection, const ServerHello& hello);
  void OnWorkerHello(ConnectionId connection, const WorkerHello& hello);
  void OnPrepared(const Prepared& prepared);
  void SayWhyItWaits(ConnectionId connection, const WorkerHello& hello);
  void MaybeAdmit(ConnectionId connection);
  void MaybeAdmitAll(const std::string& digest);
  std::optional<absl::Status> MayJoin(const std::shared_ptr<const DeclaredJob>& declared,
                                      const WorkerHello& hello);
  absl::Status Admit(ConnectionId connection,
                     const std::shared_ptr<const DeclaredJob>& declared,
                     const WorkerHello& hello);
  void OnMember(ConnectionId connection, const MemberBody& body);
  void OnServer(Server& server, const MemberBody& body);
  void OnWorker(Job& job, uint32_t rank, const MemberBody& body);
  void OnTick();
  void OnUpdate(const UpdateJob& update);
  void OnCreate(const CreateCheckpoint& create);
  void OnDrain(const DrainServer& order);
  void OnExclude(const ExcludeWorker& exclude);
  void OnExit(const WorkerExit& exit);
  void OnPushes(const TrainJobPushes& pushes);
  void OnStop(const LauncherStop& stop);
  absl::StatusOr<Server*> FindServer(const std::string& asked);
  // Fails with FailedPrecondition, which says why the server must not end.
  absl::Status CheckDrain(const Server& server) const;
  void OnCheckpoint(const CheckpointAnswer& answer);
  // Returns the running job of that name. If there is none, emits the answer to the call
  // and returns null.
  Job* FindForCaller(const std::string& name);
  void LoseServer(uint32_t number, const std::string& reason);
  // Logs it, and emits it as an event.
  void SayOfServers(const std::string& what,
                    LogReason::Level level = LogReason::Level::kInfo);
  // Lets servers take the places of dead servers whose journals they have.
  void ReplaceServers();
  // Tells draining servers that they may end, if nothing would be lost with them.
  void LetDrainedGo();
  // Starts new backups for the places that have lost theirs.
  void SeekBackups();
  // Places move to servers that have fewer: at each tick, and when a server is heard
  // whose place may move. Not while a server is lost or about to end.
  void SpreadShares();
  bool MayMoveShares() const;
  // Those that are offered what others have lost, or have too much of.
  std::vector<JobServer> ConnectedServers() const;
  void Refuse(ConnectionId connection, const absl::Status& status);
  Job* FindJob(uint32_t id);
  ServerMemory MemoryOf(const Server& server) const;
  size_t ServersAttached() const;
  bool ServersAreThere() const;
  std::vector<uint32_t> ShardCounts() const;
  std::optional<absl::Status> Fits(const std::shared_ptr<const DeclaredJob>& declared);
  void BeginJobs();
  void ForgetFinishedJobs();
  void WatchGoals();
  std::vector<GoalView> ViewGoals(uint32_t job, absl::Duration now) const;
  void NameSlowest();
  void AnswerGoals();
  void LookForAnswer(Job& job, GoalAnswers& answers);
  absl::Status Give(const Answer& answer, Job& job);
  std::optional<AnswersView> ViewAnswers(const Job& job, absl::Duration now) const;
  void ForgetUnusedNames();
  // Returns the servers that TakesPlaces, by number.
  std::vector<JobServer> AttachedServers() const;
  void ForgetClosedConnections(const CoordinatorOutputs& outputs);
  std::string State();

  const CoordinatorOptions options_;
  Outbox outbox_;
  uint64_t term_ = 1;
  std::optional<absl::Duration> former_timeout_;  // of the previous coordinator
  std::map<uint32_t, AbsentServer> absent_;       // by number
  absl::Duration started_at_;
  Outbox first_outbox_;  // written by Restore, for Start
  Counters counters_;
  uint32_t next_server_ = 0;
  std::map<uint32_t, Server> servers_;  // by number
  GrowingNumbers server_incarnations_;  // by name
  // By name. A job that is over stays for a while, unless a new one replaces it.
  std::map<std::string, std::unique_ptr<Job>> jobs_;
  std::map<ConnectionId, Speaker> speakers_;
  Declarations declarations_;
  struct Watched {
    std::string goals;
    GoalWatch watch;
  };
  std::map<uint32_t, Watched> watched_;  // by job id, for jobs with goals
  struct Answering {
    std::string setting;
    GoalAnswers answers;
  };
  std::map<uint32_t, Answering> answering_;  // by job id, for jobs with answers
  absl::Duration answered_at_ = -absl::InfiniteDuration();
  struct Slowest {
    Slowest();

    StragglerWatch watch;
    std::optional<uint32_t> told = std::nullopt;  // what members heard last
  };
  std::map<uint32_t, Slowest> slowest_;  // by job id
  absl::Duration named_slowest_at_ = -absl::InfiniteDuration();

  absl::Duration now_;  // valid only during Apply
};

}  // namespace syncline
