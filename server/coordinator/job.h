// One job of the coordinator: gathers its workers, configures its servers, and changes
// its epochs. Pure, like the Coordinator that owns it: functions write to its Outbox and
// have no other effect outside.
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
#include "server/coordinator/newcomers.h"
#include "server/coordinator/outbox.h"
#include "server/coordinator/place_backups.h"
#include "server/coordinator/place_journals.h"
#include "server/coordinator/places.h"
#include "server/coordinator/quorum.h"
#include "server/coordinator/readmission.h"
#include "server/coordinator/reasons.h"
#include "server/coordinator/recoveries.h"
#include "server/coordinator/spread.h"
#include "server/coordinator/stall.h"
#include "server/coordinator/stops.h"
#include "server/coordinator/workers.h"

namespace syncline {

class Job {
 public:
  enum class Phase { kGathering, kConfiguring, kRunning, kOver };

  Job(uint32_t id, std::shared_ptr<const DeclaredJob> declared, std::string run_id,
      const JobContext& context);

  // Restores a job that ran before the coordinator was restarted, and that waits for its
  // members to return (job_restore.cc). REQUIRES: `placement` is the record's.
  static std::unique_ptr<Job> Restore(const JobRecord& record,
                                      std::shared_ptr<const DeclaredJob> declared,
                                      std::shared_ptr<const JobPlacement> placement,
                                      const JobContext& context);
  // A server returns with the state that it holds.
  void OnServerBack(const JobServer& back, const HeldJob& held);
  // A member returns. Aborted: it is not a member any more.
  absl::Status Return(ConnectionId connection, const WorkerHello& hello,
                      absl::Duration now);

  // Takes over what outlives `earlier`, the previous run of this name, which is over.
  void Follow(const Job& earlier);
  // Why this worker cannot join yet; empty: it can. The previous run of this name is
  // ending or may be dead, or the present holder of its rank may be dead.
  std::string WhyWait(const WorkerHello& hello, absl::Duration now) const;
  // FailedPrecondition (Failure::kJobRefused): the worker belongs to another run.
  absl::Status CheckRun(const WorkerHello& hello, absl::Duration now) const;
  // FailedPrecondition (Failure::kJobOver): the worker was lost and wants to rejoin, but
  // all others have left the job.
  absl::Status CheckNotTooLate(const WorkerHello& hello) const;
  // Admits a worker of this run that declares the same job. FailedPrecondition
  // (Failure::kJobRefused): it may not join. REQUIRES: WhyWait is empty.
  absl::Status Admit(ConnectionId connection, const WorkerHello& hello,
                     absl::Duration now);

  // Messages from members. `rank` is the rank that was admitted on the connection.
  void OnHeartbeat(uint32_t rank, const Heartbeat& beat, absl::Duration now);
  // A server's heartbeat. Ignored if the server has no place in the job.
  void OnServerBeat(uint32_t server, const Heartbeat& beat, const JobProgress& progress);
  void OnLoss(const LossReport& report) { losses_.Add(report, spec_.training); }
  void OnLeave(uint32_t rank, const Leave& leave);
  void OnBarrier(uint32_t rank, uint64_t barrier);
  void OnDisconnected(uint32_t rank, absl::Duration now);
  void OnReturned(uint32_t rank, absl::Duration now);
  // Ends a job that has not begun if the streams of all its workers are lost, so that
  // another run may use its name.
  void EndIfAbandoned(const std::string& run_id);
  void OnConfigured(uint32_t server, uint64_t step);
  // Ends the job with this error, even if it is running.
  void OnConfigureFailed(uint32_t server, const absl::Status& status);
  void OnPrepared(uint32_t server, const EpochPrepared& prepared);
  void OnCommitted(uint32_t server, const EpochCommitted& committed);
  void OnFigures(uint32_t server, const BlockFigures& figures);
  void OnHeld(const StepHeld& held);
  // With a quorum: closes the step if enough workers have contributed to it and the grace
  // window is over. Called after every input.
  void CloseStep(absl::Duration now);
  // Ends recoveries whose losses are replaced. Called after every input.
  void EndRecoveries(absl::Duration now);
  // When CloseStep must be called although nothing happens.
  absl::Duration wake_at() const;
  struct ServerLoss {
    uint32_t server = 0;
    std::optional<absl::Duration> at = {};  // empty: the next tick
  };
  // A server is lost: the job waits for its journal or promotes its backup, or fails
  // (job_servers.cc).
  void OnServerLost(const ServerLoss& loss);
  // What happens to the job if the server in process `host` ends and `others` stay: empty
  // if it goes on, otherwise "would fail: …". Reserves memory in `others` for the copies
  // that it then needs.
  std::optional<std::string> HarmOfLosing(const std::string& host,
                                          std::vector<JobServer>& others) const;
  bool HasServers() const { return !places_.empty(); }
  bool LacksServers() const { return !missing_.empty(); }
  // Whether the job would continue with that server if it returned.
  bool AwaitsServer(uint32_t server) const { return !IsOver() && !IsFree(server); }
  // Orders attached servers that have the journals of missing ones to replace them.
  void ReplaceServers(const std::vector<JobServer>& attached);
  // Backups in the memory of other servers (job_backups.cc).
  bool AwaitsStandIn(const StandInFor& stand_in) const;
  // REQUIRES: it is awaited.
  void OnStandIn(JobServer stand_in, const ServerHello& hello);
  // Server processes that are to end, and whether they were told that they may.
  using LeavingHosts = std::map<std::string, bool>;
  // Whether the end of that process would lose state, or it is needed for a take-over.
  bool NeedsHost(const std::string& host, const LeavingHosts& leaving) const;
  // Has another backup made on one of `staying` for each place whose server and backup
  // are both in leaving processes. The backup that is there counts until then.
  void MoveBackups(const LeavingHosts& leaving, std::vector<JobServer> staying,
                   absl::Duration now);
  // Whether a place has no backup, or is being given a new one.
  bool MakesBackups() const;
  // Starts new backups on `connected` for places that have none, where there is room.
  void SeekBackups(const std::vector<JobServer>& connected, absl::Duration now);
  void OnBackedUp(uint32_t server, const BackedUp& backed_up);
  // Shares that move from servers that live (job_moves.cc).
  // Nothing of it is lost, under way or about to end.
  bool MayMove() const;
  // The next step towards servers with about as many places each. REQUIRES: MayMove().
  void SpreadShares(const std::vector<JobServer>& connected, absl::Duration now);
  // Names the server that would get a place next. Empty: nothing can move, or nothing
  // would be better.
  std::string Standby(const std::vector<JobServer>& connected, absl::Duration now) const;
  // Lets one place move within a time, although nothing else moves places.
  void AllowMove(absl::Duration now);
  bool IsMoveAllowed(absl::Duration now) const { return now < move_allowed_until_; }
  // One that takes too long is given up.
  void AwaitHandOver(absl::Duration now);
  // Journals of jobs that have backups, too (job_journals.cc).
  void OnJournalLost(uint32_t server, const std::string& reason);
  void OnJournalWhole(uint32_t server, const JournalWhole& whole);
  // Logs if that server has a journal of this job that is out of date.
  void SayWhatIsStale(uint32_t server, const ServerHello& hello) const;
  // From a server or from a stand-in.
  void OnBackupLost(uint32_t server, const BackupLost& lost);
  // Changes options for the following steps. Returns the epoch that they begin with.
  // Errors change nothing.
  absl::StatusOr<ChangedSettings> Update(const UpdateJob& update,
                                         const ServerMemories& memory);
  // Excludes a member that holds up the others (goal_answers.h). FailedPrecondition says
  // why that is not possible. NotFound: there is no such member, or another process has
  // its rank.
  absl::Status Exclude(const ExcludeWorker& exclude, absl::Duration now);
  // Returns the number of checkpoints finished before. FailedPrecondition: not possible
  // now.
  absl::StatusOr<uint64_t> CreateCheckpoint();
  // NotFound: another run. InvalidArgument: the job has no such rank.
  absl::Status OnExit(const WorkerExit& exit) const;
  // NotFound: another run.
  absl::Status OnPushes(const TrainJobPushes& pushes);
  // Whether a program whose launcher names that job and run takes part in this job.
  bool IsOfProgram(const std::string& job, const std::string& run_id) const;
  // Errors as OnExit.
  absl::Status OnStop(const LauncherStop& stop, absl::Duration now);
  // Removes ranks that their launcher stops, once their streams have ended. Called after
  // every input.
  void LetStoppedGo(absl::Duration now);
  void OnWritten(uint32_t server, const CheckpointWritten& written);
  void OnKept(const CheckpointKept& kept, absl::Duration now);
  void OnSettled();
  // The checkpoint that the job begins with was found. The job ends if it is unusable.
  void OnFound(const CheckpointFound& found);
  // Returns whether the job's beginning is known. Orders the search for a checkpoint if
  // not.
  bool KnowsBeginning();
  void Tick(absl::Duration now, size_t servers_attached);

  // Whether all workers left and the last step is being saved. A new job of its name
  // waits.
  bool IsEnding() const { return saves_last_ && !IsOver(); }
  // Whether all workers are there, so that only servers may be missing.
  bool IsFull() const;
  // Bytes that the job takes in that server process, from placement to its end: its
  // places, those of stand-ins in the process, and backups.
  uint64_t BytesOn(const std::string& host) const;
  // Begins the job; ends it if `placement` is an error, or if the servers lack memory.
  // REQUIRES: IsFull(), and `placement` is for `servers`, ordered by number.
  void Begin(const std::vector<JobServer>& servers,
             const absl::StatusOr<std::shared_ptr<const JobPlacement>>& placement);
  // Tells this worker, if it waits, whom it waits for. Others are told at a Tick.
  void TellNewcomer(uint32_t rank, absl::Duration now, size_t servers_attached);

  uint32_t id() const { return id_; }
  const std::string& goals() const { return spec_.settings.goals; }
  const std::string& answers() const { return spec_.settings.answers; }
  // Number of workers excluded since the job began, also before coordinator restarts.
  uint32_t exclusions() const { return exclusions_.count(); }
  // Whether it began before the coordinator was restarted.
  bool was_restored() const { return was_restored_; }
  // The first worker's declaration. Null once the job is over.
  const std::shared_ptr<const DeclaredJob>& declared() const { return declared_; }
  bool IsOver() const { return phase_ == Phase::kOver; }
  // Time of the first tick after its end.
  std::optional<absl::Duration> ended_at() const { return ended_at_; }
  // Servers whose connections broke, and when. They may still return.
  using LostServers = std::map<uint32_t, absl::Duration>;
  JobView View(absl::Duration now, const LostServers& lost) const;
  void TellMembers(const SlowestWorker& slowest);
  // Its connected members.
  TraceTargets ToTrace() const;

 private:
  // Whether a server may come that has everything the place's server had reported.
  bool CanWaitFor(size_t place) const;
  void WaitForJournal(size_t place);
  bool HasJournalOf(const JobServer& server, size_t place) const;
  void AskToRestore(size_t place, const JobServer& holder);
  void Restore(size_t place, const JobServer& successor);
  void OnSuccessorLost(size_t place);
  void GoBackToJournal(size_t place, const std::string& why);
  void ViewServers(JobView& view, const LostServers& lost) const;
  void ViewProgress(JobView& view) const;
  uint32_t Participants(uint64_t step) const;
  uint64_t TotalSteps() const;
  bool IsAwaited(uint32_t server) const {
    return homecoming_ && homecoming_->Awaits(server);
  }
  // Whether an epoch was ever committed: servers may hold what exists nowhere else. Also
  // true while all workers are gone.
  bool HasBegun() const { return shown_epoch_ > 0 || homecoming_.has_value(); }
  HoldBackup NextOrder(size_t place);
  void AskForBackup(size_t place, const JobServer& holder);
  bool HasBackup(size_t place) const;
  bool SeeksBackup(size_t place) const;
  void SeekBackup(size_t place, std::vector<JobServer>& holders, absl::Duration now);
  CopyNeed CopyOf(size_t place) const;
  bool KeepsCopy(size_t place, std::vector<JobServer>& others) const;
  void ConnectBackup(size_t place);
  // Ends the stand-in, if there is one, and frees its memory.
  void DropStandIn(const std::optional<JobServer>& stand_in, const std::string& why);
  void GiveUpNewBackup(size_t place, const std::string& why);
  void OnStandInConfigured(size_t place);
  void LoseBackup(size_t place, const std::string& why);
  // The one that this stand-in holds.
  void LoseBackupOf(uint32_t stand_in, const std::string& why);
  void Promote(size_t place);
  // Its stand-in is told, with the generation of its journal.
  uint32_t TellToTakeOver(size_t place);
  std::optional<ShareMove> FindMove(const std::vector<JobServer>& connected,
                                    absl::Duration now) const;
  void HandOver(size_t place, absl::Duration now);
  void FinishHandOver(uint64_t step);
  bool IsHandedOver(size_t place) const {
    return hand_over_ && hand_over_->place == place;
  }
  // Its server is to do no more for it: what it was asked is asked again.
  void TakeFrom(size_t place, const std::string& why);
  // Workers know that these serve it no more.
  void LetFormerServersGo(const std::string& why);
  void DropStandIns(const std::string& reason);
  void MaybeRun();
  bool CanWaitForServers() const;
  // Why the job fails without that place's server, and what the user can do.
  std::string WhyNotWait(size_t place) const;
  std::string HowToGoOn(size_t place) const;
  bool IsHere(size_t place) const { return !missing_.contains(place); }
  void Miss(size_t place, const ServerLoss& loss);
  // Whether the server has no place in this job, and is not about to get one.
  bool IsFree(uint32_t server) const {
    return !places_.Of(server) && !missing_.SucceededBy(server);
  }
  bool FitsFor(const JobServer& successor, size_t place) const;
  // Whether workers have been told of steps that a server which ends at `step` lacks.
  bool IsBehindWorkers(size_t place, uint64_t step) const;
  void Succeed(size_t place, uint64_t step);
  void OnSuccessorFailed(size_t place, const absl::Status& status);
  void AwaitServers(absl::Duration now);
  // Names this job's lost servers; empty: none is lost.
  std::string WhichServersAreLost(absl::Duration now, const LostServers& lost) const;
  void FinishHomecoming(size_t place, const HeldJob& held);
  void Take(const JobRecord& record, std::shared_ptr<const JobPlacement> placement);
  void RepeatDecision();
  bool HasQuorum() const { return spec_.training.sync().has_quorum(); }
  void SetGoals(const UpdateJob& update, ChangedSettings& changed);
  std::optional<uint64_t> StalenessInForce() const;  // mode ssp only
  void TakeClosed(const HeldJob& held);
  void InformServers();
  void NoteLeftOut(const StepClosed& closed);
  JobRecord ToRecord() const;
  void Store();
  void GoOn();
  void TellEpoch(uint32_t rank);
  std::optional<uint32_t> Seeder() const;
  void AwaitReturn(absl::Duration now);
  void SayWhoIsBack();
  std::string WhoIsAwaited() const;
  // How long members that were lost may still return.
  absl::Duration TimeToReturn() const;
  void DropWorker(uint32_t rank, const std::string& reason, Readmission::Cause cause);
  void NoteLoss(uint32_t rank, Readmission::Cause cause);
  Readmission::Figures FiguresOf(uint32_t rank) const;
  bool MayJoin(uint32_t rank, const std::string& name, absl::Duration now) const;
  std::string WhyOutside(uint32_t rank, absl::Duration now) const;
  void LetIn(absl::Duration now);
  void Forget(uint32_t rank, EpochCause cause, const std::string& reason);
  void MaybeChangeEpoch();
  void Commit();
  void SendCommit(const JobServer& server) const;
  uint64_t FirstUpdateFrom(uint64_t step) const;
  void FinishChange();
  void Welcome(const MemberRecord& member, bool is_seeder) const;
  void MaybeReleaseBarrier();
  void SayWhoIsMissing(absl::Duration now, size_t servers_attached);
  std::string WhoIsMissing(absl::Duration now, size_t servers_attached) const;
  void DropSilent(absl::Duration now);
  void EndStalls(absl::Duration now);
  void AwaitAnswers(absl::Duration now);
  std::string UnansweredQuestion(std::set<uint32_t>& servers) const;
  void OrderCut();
  void EndInOrder();
  void SettleEnd(uint64_t step);
  void SaveLast();
  void GiveUpLast();
  void BeginCut(uint64_t step);
  void FinishCut(const CheckpointName& name, absl::Duration now);
  void FailCut(uint64_t step, const absl::Status& status);
  void GiveUpLostCuts();
  void CutWhenItIsTime(absl::Duration now);
  void GiveUpLateCuts(absl::Duration now);
  // FailedPrecondition: the job accepts no calls, and why.
  absl::Status CheckRuns() const;
  bool IsOfAnotherRun(const WorkerHello& hello) const;  // false if either names no run
  absl::Status CheckBeginning(const Beginning& beginning) const;
  void OnAway(const std::string& why);
  void LookAgain(absl::Duration now);
  void Fail(const std::string& reason);
  void EndWhenStopped();
  std::vector<uint32_t> StoppedHere(const LauncherStop& stop) const;
  void SayTheyLive(const std::vector<uint32_t>& ranks, const std::string& by) const;
  absl::Status CheckReport(const std::string& run_id,
                           const std::vector<uint32_t>& ranks) const;
  // Fails with this error instead of the one that asks workers to start again.
  void FailWith(const absl::Status& status);
  void End(const std::string& reason);
  // Logs "job 'NAME': TEXT".
  void Log(const std::string& text,
           LogReason::Level level = LogReason::Level::kInfo) const;
  // Logs it, and emits it as an event.
  void Report(EventKind kind, const std::string& what,
              LogReason::Level level = LogReason::Level::kInfo) const;
  // Emits an event (job_events.cc), and fills in job and step.
  void Say(CoordinatorEvent event) const;
  void SayNewSettings(const TrainingSettings& before) const;
  std::vector<std::string> ChangesSince(const TrainingSettings& before) const;
  void SayChoice(uint32_t rank, const std::string& choice);
  void SayStalls(absl::Duration now);
  void ToServers(const CoordinatorBody& body) const;
  void BeOver();
  static std::unique_ptr<const TrainingPlan> PlanOf(const TrainingSettings& training);

  const uint32_t id_;
  std::shared_ptr<const DeclaredJob> declared_;  // null once it is over
  JobSpec spec_;               // without tensors; with the options of the last update
  const uint64_t parameters_;  // number of the model's parameters
  const std::string run_id_;
  Outbox& outbox_;
  const CoordinatorOptions& options_;
  Counters& counters_;
  std::unique_ptr<const TrainingPlan> plan_;  // without tensors
  DecisionMaker decisions_;
  std::optional<StepDecision> decision_;  // the last one
  QuorumWatch quorum_;
  bool may_close_ = false;  // an input since the last CloseStep may allow to close a step
  std::optional<StepClosed> closed_;
  uint64_t left_out_ = 0;  // contributions that came too late, or not at all
  StallWatch stall_;
  std::map<uint32_t, ServerPhases> server_phases_;  // latest, by server
  std::map<uint32_t, RecordProgress> records_;      // latest, by server
  Readmission readmission_;
  Exclusions exclusions_;
  Stops stops_;
  std::set<uint32_t> lost_;   // ranks that were lost without a Leave, and may return
  bool was_stopped_ = false;  // it ended because its launchers stopped its workers

  Phase phase_ = Phase::kGathering;
  std::string reason_;  // why it waits, of the last change, or why it ended
  bool failed_ = false;
  absl::Duration gathering_since_;
  absl::Duration last_waiting_said_ = -absl::InfiniteDuration();
  std::optional<absl::Duration> memberless_since_;
  std::optional<absl::Duration> ended_at_;
  uint64_t furthest_step_ = 0;  // highest step that a member reported
  std::optional<absl::Duration> held_up_since_;
  std::map<std::string, uint64_t> epoch_changes_;  // by cause

  uint64_t shown_epoch_ = 0;  // last epoch that all servers have committed
  Workers workers_{options_.timeouts.heartbeat_interval};
  std::vector<MemberRecord> committed_;
  std::optional<EpochChange> change_;  // under way
  RecordedEpoch begun_;                // last epoch that servers were told
  bool is_recorded_ = false;
  bool was_restored_ = false;
  bool change_is_due_ = false;            // even if the members are the same
  std::optional<Homecoming> homecoming_;  // set until the members have returned
  Losses losses_{spec_.workers};

  Reasons change_reasons_;                         // for the next change
  std::optional<TrainingSettings> next_training_;  // part of the next change

  Places places_;  // empty before the job begins
  PlaceBackups backups_{options_};
  PlaceJournals journals_{spec_};
  MissingServers missing_{options_};
  // A stand-in was told to take over from a server that lives, and has not answered.
  struct HandOverUnderWay {
    size_t place = 0;
    uint32_t generation = 0;
    absl::Duration since = {};
  };
  std::optional<HandOverUnderWay> hand_over_;
  std::vector<JobServer> former_;     // which gave places up, and have not heard of it
  std::optional<PushCounts> pushes_;  // of all its launchers; empty: none were reported
  PushCounts reported_pushes_;        // of the present launcher
  absl::Duration move_allowed_until_ = -absl::InfiniteDuration();
  uint64_t moves_ = 0;
  Newcomers newcomers_{options_.timeouts.failure_timeout};
  Recoveries recoveries_;
  std::set<uint32_t> unconfigured_;

  // Checkpoints: the one that the job begins with, and those under way.
  enum class Search {
    kNotBegun,
    kUnderWay,
    kAway,  // the store did not answer; it is asked again later
    kDone
  } search_ = Search::kNotBegun;
  std::string away_;                          // why it did not answer; empty: it has
  std::optional<absl::Duration> away_since_;  // time of the last attempt
  absl::Duration look_pause_;                 // pause before the next attempt
  Beginning beginning_;
  Cuts cuts_{decisions_};
  bool cut_wanted_ = false;                  // the next change orders a cut
  std::optional<absl::Duration> cut_since_;  // time of the last scheduled cut
  bool saves_last_ = false;                  // all workers left
  std::optional<uint64_t> end_step_;         // set once the empty epoch is committed
  bool last_ordered_ = false;                // a cut of end_step_ was ordered

  AnswerWatch answers_;
  absl::Duration last_outside_said_ = -absl::InfiniteDuration();
};

}  // namespace syncline
