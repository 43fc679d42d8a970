// The coordinator's parts, for the files that implement it: coordinator.cc,
// coordinator_admission.cc for how workers come to their jobs, coordinator_drain.cc for
// servers that are to end, coordinator_goals.cc for what jobs are meant to reach,
// coordinator_answers.cc for what is done about that, and coordinator_restore.cc for what
// outlives it.
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

namespace syncline {

class Coordinator::Impl {
 public:
  explicit Impl(const CoordinatorOptions& options)
      : options_(options), declarations_(options.timeouts) {}

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
    bool is_stand_in = false;  // of one job only
    bool is_to_end = false;    // an operator wants it
    bool drains = false;       // it waits until it may
    bool is_drained = false;   // and was told that it may
    std::optional<absl::Duration> disconnected_at = std::nullopt;

    bool IsLeaving() const { return is_to_end || drains; }
    // For jobs that begin, and for places that others leave.
    bool TakesPlaces() const { return !is_stand_in && !IsLeaving(); }
  };
  // The member that speaks on a connection. A worker's job may be over by now; its name
  // may belong to a later job.
  struct Speaker {
    enum Kind { kServer, kNewcomer, kWorker } kind = kServer;
    uint32_t server = 0;
    uint32_t job = 0;
    uint32_t rank = 0;
  };

  // A server of another life of the coordinator, until it comes back.
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
  // Those that no job goes on with when they come back.
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
  void OnStop(const LauncherStop& stop);
  absl::StatusOr<Server*> FindServer(const std::string& asked);
  // Why the server must not end. FailedPrecondition.
  absl::Status CheckDrain(const Server& server) const;
  void OnCheckpoint(const CheckpointAnswer& answer);
  // Null, and answered, when none of that name runs.
  Job* FindForCaller(const std::string& name);
  void LoseServer(uint32_t number, const std::string& reason);
  // In the log, and as an event.
  void SayOfServers(const std::string& what,
                    LogReason::Level level = LogReason::Level::kInfo);
  // Servers take the places of those that died and left them their journals.
  void ReplaceServers();
  // Servers that are to end, and have nothing that is nowhere else, may.
  void LetDrainedGo();
  // Places that have lost their backups get new ones.
  void SeekBackups();
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
  void AnswerGoals();
  void LookForAnswer(Job& job, GoalAnswers& answers);
  absl::Status Give(const Answer& answer, Job& job);
  std::optional<AnswersView> ViewAnswers(const Job& job, absl::Duration now) const;
  void ForgetUnusedNames();
  // Those that take places, by number.
  std::vector<JobServer> AttachedServers() const;
  void ForgetClosedConnections();
  std::string State();

  const CoordinatorOptions options_;
  uint64_t term_ = 1;
  std::optional<absl::Duration> former_timeout_;  // of the coordinator before
  std::map<uint32_t, AbsentServer> absent_;       // by number
  absl::Duration started_at_;
  CoordinatorOutputs first_outputs_;  // of Start
  Counters counters_;
  uint32_t next_server_ = 0;
  std::map<uint32_t, Server> servers_;  // attached, by number
  GrowingNumbers server_incarnations_;  // by name
  // By name; one that is over stays for a while, unless replaced.
  std::map<std::string, std::unique_ptr<Job>> jobs_;
  std::map<ConnectionId, Speaker> speakers_;
  Declarations declarations_;
  struct Watched {
    std::string goals;
    GoalWatch watch;
  };
  std::map<uint32_t, Watched> watched_;  // jobs that have goals
  struct Answering {
    std::string setting;
    GoalAnswers answers;
  };
  std::map<uint32_t, Answering> answering_;  // jobs whose coordinator may do something
  absl::Duration answered_at_ = -absl::InfiniteDuration();

  // Of the Apply under way.
  absl::Duration now_;
  CoordinatorOutputs outputs_;
};

}  // namespace syncline
