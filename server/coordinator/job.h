// One job of the coordinator: gathers its workers, configures its servers, and changes
// its epochs. Pure, like the Coordinator that owns it: outputs are appended, nothing else
// happens.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/coordinator/admission.h"
#include "server/coordinator/answer_watch.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/cuts.h"
#include "server/coordinator/decision.h"
#include "server/coordinator/epoch_change.h"
#include "server/coordinator/exclusions.h"
#include "server/coordinator/homecoming.h"
#include "server/coordinator/job_context.h"
#include "server/coordinator/job_record.h"
#include "server/coordinator/losses.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/missing_servers.h"
#include "server/coordinator/place_backups.h"
#include "server/coordinator/place_journals.h"
#include "server/coordinator/places.h"
#include "server/coordinator/quorum.h"
#include "server/coordinator/readmission.h"
#include "server/coordinator/reasons.h"
#include "server/coordinator/recoveries.h"
#include "server/coordinator/stall.h"
#include "server/coordinator/stops.h"
#include "server/coordinator/workers.h"

namespace syncline {

class Job {
 public:
  enum class Phase { kGathering, kConfiguring, kRunning, kOver };

  Job(uint32_t id, std::shared_ptr<const DeclaredJob> declared, std::string run_id,
      const JobContext& context);

  // One that ran under another life of the coordinator, and waits for its members to come
  // back (job_restore.cc). REQUIRES: `placement` is that of the record.
  static std::unique_ptr<Job> Restore(const JobRecord& record,
                                      std::shared_ptr<const DeclaredJob> declared,
                                      std::shared_ptr<const JobPlacement> placement,
                                      const JobContext& context);
  // A server comes back with what it holds.
  void OnServerBack(uint32_t server, ConnectionId connection, const HeldJob& held,
                    CoordinatorOutputs& outputs);
  // A worker of an epoch comes back. Aborted when it is no member any more.
  absl::Status Return(ConnectionId connection, const WorkerHello& hello,
                      absl::Duration now, CoordinatorOutputs& outputs);

  // The run of this name before it, which is over.
  void Follow(const Job& earlier);
  // For what such a worker waits, if it does: another run of this name is at its end or may
  // be dead, or somebody holds its rank who may be.
  std::string WhyWait(const WorkerHello& hello, absl::Duration now) const;
  // FailedPrecondition (Failure::kJobRefused) for a worker of another run.
  absl::Status CheckRun(const WorkerHello& hello, absl::Duration now) const;
  // FailedPrecondition (Failure::kJobOver) of a job that all others have left, for a worker that
  // was lost and wants to go on with it.
  absl::Status CheckNotTooLate(const WorkerHello& hello) const;
  // A worker of this run that declares the same job. FailedPrecondition
  // (Failure::kJobRefused) when it may not join. REQUIRES: it has nothing to wait for.
  absl::Status Admit(ConnectionId connection, const WorkerHello& hello,
                     absl::Duration now, CoordinatorOutputs& outputs);

  // What members of this job say, and time. `rank` was admitted on that connection.
  void OnHeartbeat(uint32_t rank, const Heartbeat& beat, absl::Duration now,
                   CoordinatorOutputs& outputs);
  // A server's heartbeat. Those that the job did not begin with are not heard.
  void OnServerBeat(uint32_t server, const Heartbeat& beat, const JobProgress& progress);
  void OnLoss(const LossReport& report) { losses_.Add(report, spec_.training); }
  void OnLeave(uint32_t rank, const Leave& leave, CoordinatorOutputs& outputs);
  void OnBarrier(uint32_t rank, uint64_t barrier, CoordinatorOutputs& outputs);
  void OnDisconnected(uint32_t rank, absl::Duration now);
  void OnReturned(uint32_t rank, absl::Duration now);
  // One that has not begun, and whose workers' streams are all lost, is in nobody's way.
  void EndIfAbandoned(const std::string& run_id, CoordinatorOutputs& outputs);
  void OnConfigured(uint32_t server, uint64_t step, CoordinatorOutputs& outputs);
  // The job ends with this error, also when it runs already.
  void OnConfigureFailed(uint32_t server, const absl::Status& status,
                         CoordinatorOutputs& outputs);
  void OnPrepared(uint32_t server, const EpochPrepared& prepared,
                  CoordinatorOutputs& outputs);
  void OnCommitted(uint32_t server, const EpochCommitted& committed,
                   CoordinatorOutputs& outputs);
  void OnFigures(const BlockFigures& figures, CoordinatorOutputs& outputs);
  void OnHeld(const StepHeld& held);
  // Closes the step that enough have contributed to, if it is time. After every input.
  void CloseStep(absl::Duration now, CoordinatorOutputs& outputs);
  // What it had lost is there again. After every input, too.
  void EndRecoveries(absl::Duration now, CoordinatorOutputs& outputs);
  // When it has to be called though nothing happens.
  absl::Duration wake_at() const;
  // The job waits for its journal, or fails (job_servers.cc).
  struct ServerLoss {
    uint32_t server = 0;
    std::optional<absl::Duration> at =
        {};  // none: from the next tick on it is waited for
  };
  void OnServerLost(const ServerLoss& loss, CoordinatorOutputs& outputs);
  // What becomes of the job when that host's server ends, and these others stay, whose
  // memory it takes: nothing, or "would fail: …".
  std::optional<std::string> HarmOfLosing(const std::string& host,
                                          std::vector<JobServer>& others) const;
  bool HasServers() const { return !places_.empty(); }
  bool LacksServers() const { return !missing_.empty(); }
  // It goes on with that server, should it come back.
  bool AwaitsServer(uint32_t server) const { return !IsOver() && !IsFree(server); }
  // Those that have the journals of missing ones are told to take their places.
  void ReplaceServers(const std::vector<JobServer>& attached,
                      CoordinatorOutputs& outputs);
  // Backups in the memory of other servers (job_backups.cc).
  bool AwaitsStandIn(const StandInFor& stand_in) const;
  // REQUIRES: it is awaited.
  void OnStandIn(JobServer stand_in, const ServerHello& hello,
                 CoordinatorOutputs& outputs);
  // Hosts that are to end, and whether they were told that they may.
  using LeavingHosts = std::map<std::string, bool>;
  // Something on that one would be lost with it, or takes over, now or soon.
  bool NeedsHost(const std::string& host, const LeavingHosts& leaving) const;
  // Places of which server and backup are both on such hosts get another backup.
  void MoveBackups(const LeavingHosts& leaving, CoordinatorOutputs& outputs);
  bool LacksBackups() const;
  // Places that have lost their backup get a new one on these servers, if one has room.
  void SeekBackups(const std::vector<JobServer>& connected, absl::Duration now,
                   CoordinatorOutputs& outputs);
  void OnBackedUp(uint32_t server, const BackedUp& backed_up,
                  CoordinatorOutputs& outputs);
  // Journals of jobs that have backups, too (job_journals.cc).
  void OnJournalLost(uint32_t server, const std::string& reason,
                     CoordinatorOutputs& outputs);
  void OnJournalWhole(uint32_t server, const JournalWhole& whole,
                      CoordinatorOutputs& outputs);
  // Says so where that server has a journal of this job that counts no more.
  void SayWhatIsStale(uint32_t server, const ServerHello& hello,
                      CoordinatorOutputs& outputs) const;
  // Of a server, or of a stand-in.
  void OnBackupLost(uint32_t server, const std::string& reason,
                    CoordinatorOutputs& outputs);
  // Other options for the steps to come: the epoch that brings them. Errors change nothing.
  absl::StatusOr<ChangedSettings> Update(const UpdateJob& update,
                                         const ServerMemories& memory,
                                         CoordinatorOutputs& outputs);
  // Ends a member that holds up the others (goal_answers.h). FailedPrecondition says why it
  // cannot be; NotFound when there is none, or another process has its rank.
  absl::Status Exclude(const ExcludeWorker& exclude, absl::Duration now,
                       CoordinatorOutputs& outputs);
  // How many have finished before. FailedPrecondition when it cannot be.
  absl::StatusOr<uint64_t> CreateCheckpoint(CoordinatorOutputs& outputs);
  // NotFound for another run, InvalidArgument for a rank that it cannot have.
  absl::Status OnExit(const WorkerExit& exit, CoordinatorOutputs& outputs) const;
  // Whether a program whose launcher names that job and run is in this job.
  bool IsOfProgram(const std::string& job, const std::string& run_id) const;
  // As OnExit.
  absl::Status OnStop(const LauncherStop& stop, absl::Duration now,
                      CoordinatorOutputs& outputs);
  // Ranks whose launcher stops them, once their streams have ended. After every input.
  void LetStoppedGo(absl::Duration now, CoordinatorOutputs& outputs);
  void OnWritten(uint32_t server, const CheckpointWritten& written,
                 CoordinatorOutputs& outputs);
  void OnKept(const CheckpointKept& kept, absl::Duration now,
              CoordinatorOutputs& outputs);
  void OnSettled(CoordinatorOutputs& outputs);
  // What it begins with. Ends when that is not to be had.
  void OnFound(const CheckpointFound& found, CoordinatorOutputs& outputs);
  // False while that is being found out.
  bool KnowsBeginning(CoordinatorOutputs& outputs);
  void Tick(absl::Duration now, size_t servers_attached, CoordinatorOutputs& outputs);

  // All workers left, and its last step is being saved: another job of its name waits.
  bool IsEnding() const { return saves_last_ && !IsOver(); }
  // Whether only servers may be missing.
  bool IsFull() const;
  // What it takes in that server's process, from its placement until it is over: places,
  // also those that nodes in it have or restore, and backups.
  uint64_t BytesOn(const std::string& host) const;
  // Ends when there is no placement, or the servers lack memory. REQUIRES: IsFull(), and
  // `placement` is that on `servers`, in order of their numbers.
  void Begin(const std::vector<JobServer>& servers,
             const absl::StatusOr<std::shared_ptr<const JobPlacement>>& placement,
             CoordinatorOutputs& outputs);
  // Says to this worker alone for whom it waits, if it does. Others hear it at a Tick.
  void TellNewcomer(uint32_t rank, absl::Duration now, size_t servers_attached,
                    CoordinatorOutputs& outputs);

  uint32_t id() const { return id_; }
  const std::string& goals() const { return spec_.settings.goals; }
  const std::string& answers() const { return spec_.settings.answers; }
  // Of its workers, by all lives of the coordinator.
  uint32_t exclusions() const { return exclusions_.count(); }
  // An earlier life of the coordinator began it.
  bool was_restored() const { return was_restored_; }
  // What the first worker declared. Null once it is over.
  const std::shared_ptr<const DeclaredJob>& declared() const { return declared_; }
  bool IsOver() const { return phase_ == Phase::kOver; }
  // The first tick since it is over.
  std::optional<absl::Duration> ended_at() const { return ended_at_; }
  // Servers whose connections broke, and when; they may come back yet.
  using LostServers = std::map<uint32_t, absl::Duration>;
  JobView View(absl::Duration now, const LostServers& lost) const;
  // The members that are connected.
  TraceTargets ToTrace() const;

 private:
  // Somebody may come with all that the place has told of.
  bool CanWaitFor(size_t place) const;
  void WaitForJournal(size_t place, CoordinatorOutputs& outputs);
  bool HasJournalOf(const JobServer& server, size_t place) const;
  void AskToRestore(size_t place, const JobServer& holder, CoordinatorOutputs& outputs);
  void Restore(size_t place, const JobServer& successor, CoordinatorOutputs& outputs);
  void OnSuccessorLost(size_t place, CoordinatorOutputs& outputs);
  void GoBackToJournal(size_t place, const std::string& why, CoordinatorOutputs& outputs);
  void ViewServers(JobView& view, const LostServers& lost) const;
  void ViewProgress(JobView& view) const;
  uint32_t Participants(uint64_t step) const;
  bool IsAwaited(uint32_t server) const {
    return homecoming_ && homecoming_->Awaits(server);
  }
  HoldBackup NextOrder(size_t place);
  void AskForBackup(size_t place, const JobServer& holder, CoordinatorOutputs& outputs);
  bool HasBackup(size_t place) const;
  bool SeeksBackup(size_t place) const;
  CopyNeed CopyOf(size_t place) const;
  bool KeepsCopy(size_t place, std::vector<JobServer>& others) const;
  void ConnectBackup(size_t place, CoordinatorOutputs& outputs);
  // Its memory is free again.
  void DropStandIn(size_t place, const std::string& why, CoordinatorOutputs& outputs);
  void GiveUpNewBackup(size_t place, const std::string& why, CoordinatorOutputs& outputs);
  void OnStandInConfigured(size_t place, CoordinatorOutputs& outputs);
  void LoseBackup(size_t place, const std::string& why, CoordinatorOutputs& outputs);
  void Promote(size_t place, CoordinatorOutputs& outputs);
  void DropStandIns(const std::string& reason, CoordinatorOutputs& outputs);
  void MaybeRun(CoordinatorOutputs& outputs);
  bool CanWaitForServers() const;
  // Why the job fails without that place's server, and what to do.
  std::string WhyNotWait(size_t place) const;
  std::string HowToGoOn(size_t place) const;
  bool IsHere(size_t place) const { return !missing_.contains(place); }
  void Miss(size_t place, const ServerLoss& loss, CoordinatorOutputs& outputs);
  // Of no place in this job, and going for none.
  bool IsFree(uint32_t server) const {
    return !places_.Of(server) && !missing_.SucceededBy(server);
  }
  bool FitsFor(const JobServer& successor, size_t place) const;
  void Succeed(size_t place, uint64_t step, CoordinatorOutputs& outputs);
  void OnSuccessorFailed(size_t place, const absl::Status& status,
                         CoordinatorOutputs& outputs);
  void AwaitServers(absl::Duration now, CoordinatorOutputs& outputs);
  // Empty when none of this job's is.
  std::string WhichServersAreLost(absl::Duration now, const LostServers& lost) const;
  void FinishHomecoming(size_t place, const HeldJob& held, CoordinatorOutputs& outputs);
  void Take(const JobRecord& record, std::shared_ptr<const JobPlacement> placement);
  void RepeatDecision(CoordinatorOutputs& outputs);
  bool HasQuorum() const { return spec_.training.sync().has_quorum(); }
  void SetGoals(const UpdateJob& update, ChangedSettings& changed,
                CoordinatorOutputs& outputs);
  std::optional<uint64_t> StalenessInForce() const;  // of mode ssp
  void TakeClosed(const HeldJob& held);
  void InformServers(CoordinatorOutputs& outputs);
  void NoteLeftOut(const StepClosed& closed);
  JobRecord ToRecord() const;
  void Store(CoordinatorOutputs& outputs);
  void GoOn(CoordinatorOutputs& outputs);
  void TellEpoch(uint32_t rank, CoordinatorOutputs& outputs);
  std::optional<uint32_t> Seeder() const;
  void AwaitReturn(absl::Duration now, CoordinatorOutputs& outputs);
  void SayWhoIsBack(CoordinatorOutputs& outputs);
  std::string WhoIsAwaited() const;
  // How long those who said no goodbye may still come back.
  absl::Duration TimeToReturn() const;
  void DropWorker(uint32_t rank, const std::string& reason, Readmission::Cause cause,
                  CoordinatorOutputs& outputs);
  void NoteLoss(uint32_t rank, Readmission::Cause cause);
  Readmission::Figures FiguresOf(uint32_t rank) const;
  bool MayJoin(uint32_t rank, const std::string& name, absl::Duration now) const;
  std::string WhyOutside(uint32_t rank, absl::Duration now) const;
  void LetIn(absl::Duration now, CoordinatorOutputs& outputs);
  void Forget(uint32_t rank, EpochCause cause, const std::string& reason);
  void MaybeChangeEpoch(CoordinatorOutputs& outputs);
  void Commit(CoordinatorOutputs& outputs);
  void SendCommit(const JobServer& server, CoordinatorOutputs& outputs) const;
  uint64_t FirstUpdateFrom(uint64_t step) const;
  void FinishChange(CoordinatorOutputs& outputs);
  void Welcome(const MemberRecord& member, bool is_seeder,
               CoordinatorOutputs& outputs) const;
  void MaybeReleaseBarrier(CoordinatorOutputs& outputs);
  void SayWhoIsMissing(absl::Duration now, size_t servers_attached,
                       CoordinatorOutputs& outputs);
  std::string WhoIsMissing(absl::Duration now, size_t servers_attached) const;
  void DropSilent(absl::Duration now, CoordinatorOutputs& outputs);
  void EndStalls(absl::Duration now, CoordinatorOutputs& outputs);
  void AwaitAnswers(absl::Duration now, CoordinatorOutputs& outputs);
  std::string UnansweredQuestion(std::set<uint32_t>& servers) const;
  void OrderCut(CoordinatorOutputs& outputs);
  void EndInOrder(CoordinatorOutputs& outputs);
  void SettleEnd(uint64_t step, CoordinatorOutputs& outputs);
  void SaveLast(CoordinatorOutputs& outputs);
  void GiveUpLast(CoordinatorOutputs& outputs);
  void BeginCut(uint64_t step, CoordinatorOutputs& outputs);
  void FinishCut(const CheckpointName& name, absl::Duration now,
                 CoordinatorOutputs& outputs);
  void FailCut(uint64_t step, const absl::Status& status, CoordinatorOutputs& outputs);
  void GiveUpLostCuts(CoordinatorOutputs& outputs);
  void CutWhenItIsTime(absl::Duration now, CoordinatorOutputs& outputs);
  void GiveUpLateCuts(absl::Duration now, CoordinatorOutputs& outputs);
  // FailedPrecondition says why it takes no orders.
  absl::Status CheckRuns() const;
  bool IsOfAnotherRun(const WorkerHello& hello) const;  // where both say which
  absl::Status CheckBeginning(const Beginning& beginning) const;
  void Fail(const std::string& reason, CoordinatorOutputs& outputs);
  void EndWhenStopped(CoordinatorOutputs& outputs);
  std::vector<uint32_t> StoppedHere(const LauncherStop& stop) const;
  void SayTheyLive(const std::vector<uint32_t>& ranks, const std::string& by,
                   CoordinatorOutputs& outputs) const;
  absl::Status CheckReport(const std::string& run_id,
                           const std::vector<uint32_t>& ranks) const;
  // With an error of its own instead of "start again".
  void FailWith(const absl::Status& status, CoordinatorOutputs& outputs);
  void End(const std::string& reason, CoordinatorOutputs& outputs);
  // What happens to it, as events (job_events.cc); Say fills in job and step.
  void Say(CoordinatorEvent event, CoordinatorOutputs& outputs) const;
  void SayNewSettings(const TrainingSettings& before, CoordinatorOutputs& outputs) const;
  std::vector<std::string> ChangesSince(const TrainingSettings& before) const;
  void SayChoice(uint32_t rank, const std::string& choice, CoordinatorOutputs& outputs);
  void SayStalls(absl::Duration now, CoordinatorOutputs& outputs);
  void ToServers(const CoordinatorBody& body, CoordinatorOutputs& outputs) const;
  void BeOver();
  static std::unique_ptr<const TrainingPlan> PlanOf(const TrainingSettings& training);

  const uint32_t id_;
  std::shared_ptr<const DeclaredJob> declared_;  // null once it is over
  JobSpec spec_;               // without tensors, with the options of the last update
  const uint64_t parameters_;  // of the model
  const std::string run_id_;
  const CoordinatorOptions& options_;
  Counters& counters_;
  std::unique_ptr<const TrainingPlan> plan_;  // of the job, without tensors
  DecisionMaker decisions_;
  std::optional<StepDecision> decision_;  // the last one
  QuorumWatch quorum_;
  bool may_close_ = false;  // something has changed since the last look
  std::optional<StepClosed> closed_;
  uint64_t left_out_ = 0;  // contributions that came too late, or not at all
  StallWatch stall_;
  std::map<uint32_t, ServerPhases> server_phases_;  // as each server said last
  std::map<uint32_t, RecordProgress> records_;      // likewise
  Readmission readmission_;
  Exclusions exclusions_;
  Stops stops_;
  std::set<uint32_t> lost_;   // ranks that are gone without a goodbye, and may come back
  bool was_stopped_ = false;  // by its launchers: that was its end

  Phase phase_ = Phase::kGathering;
  std::string reason_;  // why it waits, changed last, or ended
  bool failed_ = false;
  absl::Duration gathering_since_;
  absl::Duration last_waiting_said_ = -absl::InfiniteDuration();
  std::optional<absl::Duration> memberless_since_;
  std::optional<absl::Duration> ended_at_;
  uint64_t furthest_step_ = 0;  // that a member has said
  std::optional<absl::Duration> held_up_since_;
  std::map<std::string, uint64_t> epoch_changes_;  // by cause

  uint64_t shown_epoch_ = 0;  // the last that all servers have committed
  Workers workers_{options_.timeouts.heartbeat_interval};
  std::vector<MemberRecord> committed_;
  std::optional<EpochChange> change_;  // under way
  RecordedEpoch begun_;                // the last epoch that servers were told
  bool is_recorded_ = false;
  bool was_restored_ = false;
  bool change_is_due_ = false;            // also when nobody has come or gone
  std::optional<Homecoming> homecoming_;  // until its members are back
  Losses losses_{spec_.workers};

  Reasons change_reasons_;                         // of the next change
  std::optional<TrainingSettings> next_training_;  // of the next change

  Places places_;  // once it began
  PlaceBackups backups_{options_};
  PlaceJournals journals_{spec_};
  MissingServers missing_{options_};
  Recoveries recoveries_;
  std::set<uint32_t> unconfigured_;

  // Checkpoints: what the job began with, and what is being saved.
  enum class Search { kNotBegun, kUnderWay, kDone } search_ = Search::kNotBegun;
  Beginning beginning_;
  Cuts cuts_{decisions_};
  bool cut_wanted_ = false;                  // by the next change
  std::optional<absl::Duration> cut_since_;  // the last one that time ordered
  bool saves_last_ = false;                  // all workers left
  std::optional<uint64_t> end_step_;         // once the members' absence is committed
  bool last_ordered_ = false;                // for that step

  AnswerWatch answers_;
  absl::Duration last_outside_said_ = -absl::InfiniteDuration();
};

}  // namespace syncline
