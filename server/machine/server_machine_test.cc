#include "server/machine/server_machine.h"

#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kJob = 5;
constexpr uint32_t kFirstShard = 10;

template <typename Kind>
std::optional<Kind> Only(const ServerOutputs& outputs) {
  if (outputs.size() != 1) return std::nullopt;
  const auto* one = std::get_if<Kind>(&outputs.front());
  return one == nullptr ? std::nullopt : std::optional(*one);
}

template <typename Kind>
std::optional<Kind> As(const std::optional<MemberBody>& said) {
  const auto* one = said ? std::get_if<Kind>(&*said) : nullptr;
  return one == nullptr ? std::nullopt : std::optional(*one);
}

template <typename Kind>
std::optional<Kind> OnlySaid(const ServerOutputs& outputs) {
  const auto said = Only<Say>(outputs);
  return said ? As<Kind>(said->body) : std::nullopt;
}

template <typename Input>
std::optional<Input> OnlyToShards(const ServerOutputs& outputs) {
  const auto given = Only<ToShards>(outputs);
  const auto* one = given ? std::get_if<Input>(&given->input) : nullptr;
  return one == nullptr ? std::nullopt : std::optional(*one);
}

ServerMachineOptions TwoEngines() { return {.engines = 2, .name = "host:1"}; }

ServerMachine WithJob(const ServerMachineOptions& options) {
  ServerMachine machine(options);
  machine.Apply(ServerWelcome{0, 1});
  machine.Apply(JobOrder{.job = kJob, .first_shard = kFirstShard});
  machine.Apply(ShardsBuilt{.job = kJob, .order = 1});
  return machine;
}

std::optional<MemberBody> Report(ServerMachine& machine, uint32_t engine,
                                 const ShardOutput& output) {
  return machine.Report(EngineOutput{engine, kJob, output, "run"});
}

BackupAt BackupOf(uint64_t session_key) {
  return {.job = kJob,
          .addresses = {"a", "b"},
          .pair = {.session_key = session_key},
          .with_state = true};
}

// ---- Jobs that come and go ----

TEST(ServerMachine, AJobIsConfiguredOnceItsShardsAreBuilt) {
  ServerMachine machine(TwoEngines());
  const auto build = Only<BuildShards>(
      machine.Apply(CoordinatorBody(ConfigureJob{.job = kJob, .first_shard = 10})));
  ASSERT_TRUE(build);
  EXPECT_FALSE(build->holds_backup);
  const auto said =
      OnlySaid<JobConfigured>(machine.Apply(ShardsBuilt{kJob, build->order, {}, 7}));
  ASSERT_TRUE(said);
  EXPECT_EQ(said->step, 7u);
}

TEST(ServerMachine, AJobThatCannotBeBuiltIsForgotten) {
  ServerMachine machine(TwoEngines());
  machine.Apply(JobOrder{.job = kJob});
  const auto failed = OnlySaid<ConfigureFailed>(
      machine.Apply(ShardsBuilt{kJob, 1, absl::ResourceExhaustedError("no memory")}));
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->status.message(), "no memory");
  EXPECT_THAT(machine.Apply(PrepareEpoch{kJob, 1}), IsEmpty());
  EXPECT_THAT(machine.Held(), IsEmpty());
}

TEST(ServerMachine, ShardsOfADroppedJobAreNotAnswered) {
  ServerMachine machine(TwoEngines());
  machine.Apply(JobOrder{.job = kJob});
  EXPECT_TRUE(Only<DropShards>(machine.Apply(DropJob{kJob, "over"})));
  EXPECT_THAT(machine.Apply(ShardsBuilt{.job = kJob, .order = 1}), IsEmpty());
}

// The coordinator may order a job again that it has just dropped.
TEST(ServerMachine, ShardsOfAnEarlierOrderDoNotAnswerALaterOne) {
  ServerMachine machine(TwoEngines());
  const auto first = Only<BuildShards>(machine.Apply(JobOrder{.job = kJob}));
  machine.Apply(DropJob{kJob, "another server is back"});
  const auto second = Only<BuildShards>(machine.Apply(JobOrder{.job = kJob}));
  ASSERT_NE(first->order, second->order);
  EXPECT_THAT(machine.Apply(ShardsBuilt{kJob, first->order}), IsEmpty());
  EXPECT_THAT(
      machine.Apply(ShardsBuilt{kJob, first->order, absl::CancelledError("dropped")}),
      IsEmpty());
  EXPECT_TRUE(OnlySaid<JobConfigured>(machine.Apply(ShardsBuilt{kJob, second->order})));
}

TEST(ServerMachine, AStandInEndsWithItsJob) {
  ServerMachineOptions options = TwoEngines();
  options.is_stand_in = true;
  ServerMachine machine = WithJob(options);
  const ServerOutputs outputs = machine.Apply(DropJob{kJob, "over"});
  ASSERT_THAT(outputs, SizeIs(2));
  EXPECT_TRUE(std::holds_alternative<DropShards>(outputs[0]));
  EXPECT_TRUE(std::holds_alternative<EndNode>(outputs[1]));
}

TEST(ServerMachine, WithItsLinkAServerLosesAllJobs) {
  ServerMachine machine = WithJob(TwoEngines());
  EXPECT_TRUE(Only<DropAllShards>(machine.Apply(LinkLost{})));
  EXPECT_FALSE(machine.identity());
  EXPECT_FALSE(machine.Knows(kJob));
}

// ---- Epochs and steps ----

TEST(ServerMachine, AnEpochIsPreparedOnceAllEnginesHaveAndNotBefore) {
  ServerMachine machine = WithJob(TwoEngines());
  EXPECT_TRUE(OnlyToShards<ShardPrepare>(machine.Apply(PrepareEpoch{kJob, 3})));
  EXPECT_FALSE(Report(machine, 0, ShardPrepared{.epoch = 3, .next_step = 8}));
  EXPECT_FALSE(Report(machine, 0, ShardPrepared{.epoch = 3, .next_step = 8})) << "twice";
  EXPECT_FALSE(Report(machine, 1, ShardPrepared{.epoch = 2, .next_step = 9})) << "late";
  const auto said =
      As<EpochPrepared>(Report(machine, 1, ShardPrepared{.epoch = 3, .next_step = 6}));
  ASSERT_TRUE(said);
  EXPECT_EQ(said->epoch, 3u);
  EXPECT_EQ(said->next_step, 8u);
}

TEST(ServerMachine, MembersAreAdmittedBeforeTheShardsKnowThem) {
  ServerMachine machine = WithJob(TwoEngines());
  const ServerOutputs outputs = machine.Apply(CommitEpoch{
      .job = kJob,
      .epoch = 3,
      .members = {{.rank = 1, .incarnation = 4, .first_step = 2, .session_key = 9}}});
  ASSERT_THAT(outputs, SizeIs(2));
  const auto* admit = std::get_if<AdmitMembers>(&outputs[0]);
  ASSERT_NE(admit, nullptr);
  EXPECT_EQ(admit->epoch, 3u);
  const auto commit = OnlyToShards<ShardCommit>({outputs[1]});
  ASSERT_TRUE(commit);
  ASSERT_THAT(commit->members, SizeIs(1));
  EXPECT_EQ(commit->members[0].session_key, 9u);

  EXPECT_FALSE(Report(machine, 1, ShardCommitted{.epoch = 3}));
  const auto said = As<EpochCommitted>(Report(machine, 0, ShardCommitted{.epoch = 3}));
  ASSERT_TRUE(said);
  EXPECT_EQ(said->run, "run");
  EXPECT_EQ(machine.Held().at(0).committed, 3u);
}

TEST(ServerMachine, OnlyWhatHasNoAnswerIsRepeatedToARestartedCoordinator) {
  ServerMachine machine = WithJob(TwoEngines());
  Report(machine, 0, ShardFigures{.block = 1, .step = 4});
  Report(machine, 1, ShardFigures{.block = 2, .step = 5});
  const auto held =
      As<StepHeld>(Report(machine, 1, ShardHeld{.step = 6, .incarnations = {1, 2}}));
  ASSERT_TRUE(held);
  EXPECT_EQ(held->shard, kFirstShard + 1);
  EXPECT_THAT(machine.Unanswered(), SizeIs(3));

  const auto decided =
      OnlyToShards<ShardDecision>(machine.Apply(StepDecision{.job = kJob, .step = 4}));
  ASSERT_TRUE(decided);
  EXPECT_EQ(decided->step, 4u);
  EXPECT_TRUE(OnlyToShards<ShardClosed>(
      machine.Apply(StepClosed{.job = kJob, .step = 6, .incarnations = {1}})));
  const std::vector<MemberBody> left = machine.Unanswered();
  ASSERT_THAT(left, SizeIs(1));
  EXPECT_EQ(As<BlockFigures>(left[0])->block, 2u);
}

TEST(ServerMachine, WhatIsSaidOfUnknownJobsGivesNothing) {
  ServerMachine machine(TwoEngines());
  const std::vector<CoordinatorBody> all = {PrepareEpoch{kJob, 1},
                                            CommitEpoch{.job = kJob},
                                            StepDecision{.job = kJob},
                                            StepClosed{kJob},
                                            CutAt{kJob},
                                            BackupOf(3),
                                            BackupGone{kJob},
                                            TakeOver{kJob, "run", 12},
                                            JournalGone{kJob, 12}};
  for (const CoordinatorBody& said : all) {
    EXPECT_THAT(machine.Apply(said), IsEmpty()) << said.index();
  }
  EXPECT_FALSE(Report(machine, 0, ShardFigures{}));
  EXPECT_FALSE(machine.Report(BackupFailed{kJob, 3, "it died"}));
  EXPECT_FALSE(machine.Report(JournalFailed{kJob, "full", 1}));
  EXPECT_FALSE(machine.Report(JournalCompleted{kJob, 2}));
  EXPECT_FALSE(machine.Report(CheckpointWritten{.job = kJob}));
}

TEST(ServerMachine, MessagesForWorkersAreReported) {
  ServerMachine machine(TwoEngines());
  const std::vector<CoordinatorBody> all = {
      Waiting{},   WorkerWelcome{}, EpochChanged{}, BarrierReleased{},
      JobFailed{}, DescribeJob{},   SlowestWorker{}};
  for (const CoordinatorBody& said : all) {
    EXPECT_TRUE(Only<Misdirected>(machine.Apply(said))) << said.index();
  }
}

// ---- Checkpoints ----

TEST(ServerMachine, ACutWithoutAStoreIsAnsweredAtOnce) {
  ServerMachine machine = WithJob(TwoEngines());
  const auto written =
      OnlySaid<CheckpointWritten>(machine.Apply(CutAt{.job = kJob, .step = 7}));
  ASSERT_TRUE(written);
  EXPECT_THAT(written->status.message(), HasSubstr("host:1 was started without"));
  EXPECT_EQ(machine.Held().at(0).cut, 7u);
}

TEST(ServerMachine, ALastCutIsRepeatedByTheWriterBeforeTheShards) {
  ServerMachineOptions options = TwoEngines();
  options.has_checkpoint_store = true;
  ServerMachine machine = WithJob(options);
  const auto cut =
      OnlyToShards<ShardCut>(machine.Apply(CutAt{.job = kJob, .step = 7, .last = true}));
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->kind, ShardCut::Kind::kLast);
  const ServerOutputs again =
      machine.Apply(CutAt{.job = kJob, .step = 7, .last = true, .again = true});
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_TRUE(std::holds_alternative<BeginLastCut>(again[0]));
  EXPECT_EQ(OnlyToShards<ShardCut>({again[1]})->kind, ShardCut::Kind::kLastAgain);
}

// ---- Backups ----

TEST(ServerMachine, ALostBackupIsSaidOnceUntilThereIsAnother) {
  ServerMachine machine = WithJob(TwoEngines());
  EXPECT_TRUE(Only<SendRecords>(machine.Apply(BackupOf(3))));
  EXPECT_EQ(As<BackupLost>(machine.Report(BackupFailed{kJob, 3, "it died"}))->reason,
            "it died");
  EXPECT_FALSE(machine.Report(BackupFailed{kJob, 3, "it died"})) << "the other engine";
  EXPECT_TRUE(Only<StopRecords>(machine.Apply(BackupGone{kJob, "it died"})));
  machine.Apply(BackupOf(4));
  EXPECT_FALSE(machine.Report(BackupFailed{kJob, 3, "it died"})) << "a slow engine";
  EXPECT_TRUE(As<BackupLost>(machine.Report(BackupFailed{kJob, 4, "again"})));
}

TEST(ServerMachine, ABackupCountsOnceAllEnginesHaveFilledIt) {
  ServerMachine machine = WithJob(TwoEngines());
  machine.Apply(BackupOf(3));
  EXPECT_FALSE(machine.HasBackup(kJob));
  EXPECT_FALSE(machine.Report(BackupFilled{0, kJob, 3}));
  machine.Apply(BackupGone{kJob, "it died"});
  EXPECT_FALSE(machine.Report(BackupFilled{1, kJob, 3})) << "it is gone";
  machine.Apply(BackupOf(4));
  EXPECT_FALSE(machine.Report(BackupFilled{1, kJob, 3})) << "of the one before";
  EXPECT_FALSE(machine.Report(BackupFilled{0, kJob, 4}));
  const auto said = As<BackedUp>(machine.Report(BackupFilled{1, kJob, 4}));
  ASSERT_TRUE(said);
  EXPECT_EQ(said->session_key, 4u);
  EXPECT_TRUE(machine.HasBackup(kJob));
}

// Until the coordinator says which of them goes.
TEST(ServerMachine, ABackupThatIsToReplaceAnotherIsFedBesideIt) {
  ServerMachine machine = WithJob(TwoEngines());
  BackupAt first = BackupOf(3);
  first.with_state = false;
  machine.Apply(first);
  EXPECT_TRUE(machine.HasBackup(kJob));
  EXPECT_THAT(machine.Apply(BackupOf(4)), SizeIs(1)) << "the first one is not stopped";
  EXPECT_TRUE(machine.HasBackup(kJob));
  EXPECT_FALSE(machine.Report(BackupFilled{0, kJob, 4}));
  EXPECT_EQ(As<BackedUp>(machine.Report(BackupFilled{1, kJob, 4}))->session_key, 4u);
  const auto stop = Only<StopRecords>(machine.Apply(BackupGone{kJob, "replaced", 3}));
  ASSERT_TRUE(stop);
  EXPECT_EQ(stop->session_key, 3u);
  EXPECT_TRUE(machine.HasBackup(kJob));
  EXPECT_FALSE(machine.Report(BackupFailed{kJob, 3, "closed"})) << "it was dismissed";
  EXPECT_EQ(As<BackupLost>(machine.Report(BackupFailed{kJob, 4, "it died"}))->session_key,
            4u);
  EXPECT_THAT(machine.Apply(BackupGone{kJob, "again", 3}), IsEmpty());
  EXPECT_EQ(Only<StopRecords>(machine.Apply(BackupGone{kJob, "it died", 4}))->session_key,
            0u)
      << "none is left";
  EXPECT_FALSE(machine.HasBackup(kJob));
}

TEST(ServerMachine, EachOfTwoBackupsMayBeLost) {
  ServerMachine machine = WithJob(TwoEngines());
  BackupAt first = BackupOf(3);
  first.with_state = false;
  machine.Apply(first);
  machine.Apply(BackupOf(4));
  EXPECT_EQ(As<BackupLost>(machine.Report(BackupFailed{kJob, 4, "a"}))->session_key, 4u);
  EXPECT_EQ(As<BackupLost>(machine.Report(BackupFailed{kJob, 3, "b"}))->session_key, 3u);
  EXPECT_FALSE(machine.Report(BackupFailed{kJob, 4, "a"}));
  EXPECT_EQ(Only<StopRecords>(machine.Apply(BackupGone{kJob, "b", 3}))->session_key, 3u);
  EXPECT_FALSE(machine.HasBackup(kJob)) << "the other one is not whole";
}

TEST(ServerMachine, ABackupWithAnotherNumberOfEnginesIsLost) {
  ServerMachine machine = WithJob(TwoEngines());
  BackupAt at = BackupOf(3);
  at.addresses = {"a"};
  EXPECT_TRUE(OnlySaid<BackupLost>(machine.Apply(at)));
}

// The engines have no job yet when it is said.
TEST(ServerMachine, ABackupThatGoesWhileShardsAreBuiltIsStoppedOnceTheyAre) {
  ServerMachine machine(TwoEngines());
  machine.Apply(JobOrder{.job = kJob});
  EXPECT_THAT(machine.Apply(BackupGone{kJob, "it died"}), IsEmpty());
  const ServerOutputs outputs = machine.Apply(ShardsBuilt{.job = kJob, .order = 1});
  ASSERT_THAT(outputs, SizeIs(2));
  EXPECT_TRUE(OnlySaid<JobConfigured>({outputs[0]}));
  const auto* stop = std::get_if<StopRecords>(&outputs[1]);
  ASSERT_NE(stop, nullptr);
  EXPECT_EQ(stop->reason, "it died");
}

TEST(ServerMachine, AStandInThatTakesOverHasNoBackupToLose) {
  ServerMachineOptions options = TwoEngines();
  options.is_stand_in = true;
  ServerMachine machine(options);
  EXPECT_TRUE(Only<BuildShards>(machine.Apply(JobOrder{kJob, 0, true}))->holds_backup);
  machine.Apply(ShardsBuilt{.job = kJob, .order = 1});
  const auto finish = Only<FinishBackup>(machine.Apply(TakeOver{.job = kJob}));
  ASSERT_TRUE(finish);
  EXPECT_FALSE(machine.Report(BackupFailed{.job = kJob, .why = "the server is dead"}));
  EXPECT_EQ(
      OnlySaid<JobConfigured>(machine.Apply(ShardsBuilt{kJob, finish->order, {}, 9}))
          ->step,
      9u);
  const ServerOutputs outputs = machine.Apply(CommitEpoch{.job = kJob, .epoch = 2});
  EXPECT_THAT(outputs, SizeIs(2)) << "no journal";
}

// ---- Journals beside backups ----

TEST(ServerMachine, TheJournalOfATakeOverBeginsWithItsFirstCommitAlone) {
  ServerMachineOptions options = TwoEngines();
  options.has_journal_directory = true;
  ServerMachine machine = WithJob(options);
  machine.Apply(TakeOver{kJob, "", 12});
  EXPECT_TRUE(OnlyToShards<ShardPrepare>(machine.Apply(PrepareEpoch{kJob, 2})));
  const ServerOutputs outputs = machine.Apply(CommitEpoch{.job = kJob, .epoch = 2});
  ASSERT_THAT(outputs, SizeIs(3));
  EXPECT_EQ(std::get<BeginJournal>(outputs[0]).generation, 12u);
  EXPECT_TRUE(std::holds_alternative<AdmitMembers>(outputs[1])) << "which names it";
  EXPECT_TRUE(OnlyToShards<ShardCommit>({outputs[2]})) << "the journal has its records";
  EXPECT_THAT(machine.Apply(CommitEpoch{.job = kJob, .epoch = 3}), SizeIs(2));
}

TEST(ServerMachine, ATakeOverWithoutAPlaceForItsJournalSaysSo) {
  ServerMachine machine = WithJob(TwoEngines());
  machine.Apply(TakeOver{kJob, "run", 12});
  const ServerOutputs outputs = machine.Apply(CommitEpoch{.job = kJob, .epoch = 2});
  ASSERT_THAT(outputs, SizeIs(3));
  EXPECT_TRUE(OnlySaid<JournalLost>({outputs[0]}));
  EXPECT_THAT(machine.Unanswered(), SizeIs(1));
}

TEST(ServerMachine, AFailedJournalIsWaitedForUntilTheCoordinatorHasStoredIt) {
  ServerMachine machine = WithJob(TwoEngines());
  EXPECT_THAT(machine.Apply(JournalGone{kJob, 6}), IsEmpty()) << "it has not failed";
  EXPECT_TRUE(As<JournalLost>(machine.Report(JournalFailed{kJob, "full", 1})));
  EXPECT_FALSE(machine.Report(JournalFailed{kJob, "full", 1})) << "the other engine";
  EXPECT_FALSE(machine.Report(JournalCompleted{kJob, 6})) << "before the answer";
  const ServerOutputs outputs = machine.Apply(JournalGone{kJob, 7});
  ASSERT_THAT(outputs, SizeIs(2));
  EXPECT_TRUE(std::holds_alternative<LoseJournal>(outputs[0]));
  EXPECT_EQ(std::get<AllowJournal>(outputs[1]).generation, 7u);
  EXPECT_THAT(machine.Apply(JournalGone{kJob, 8}), IsEmpty()) << "it was answered";
  EXPECT_EQ(As<JournalWhole>(machine.Report(JournalCompleted{kJob, 7}))->generation, 7u);
  EXPECT_EQ(As<JournalWhole>(machine.Unanswered().at(0))->generation, 7u);
  EXPECT_TRUE(As<JournalLost>(machine.Report(JournalFailed{kJob, "full", 2})));
  EXPECT_THAT(machine.Unanswered(), SizeIs(1)) << "it is not whole any more";
}

// ---- The end of the process ----

TEST(ServerMachine, AServerWhoseJobsHaveNoBackupsEndsAtOnce) {
  ServerMachine machine = WithJob(TwoEngines());
  EXPECT_FALSE(machine.Report(DrainAsked{}));
  EXPECT_TRUE(machine.has_drained());
}

TEST(ServerMachine, AServerWithBackupsAsksAndAsksARestartedCoordinatorAgain) {
  ServerMachine machine = WithJob(TwoEngines());
  machine.ExpectBackup(kJob);
  EXPECT_TRUE(As<Drain>(machine.Report(DrainAsked{})));
  EXPECT_FALSE(machine.has_drained());
  const ServerOutputs again = machine.Apply(ServerWelcome{0, 1});
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_TRUE(OnlySaid<Drain>({again[1]}));
  EXPECT_THAT(machine.Apply(Drained{}), IsEmpty());
  EXPECT_TRUE(machine.has_drained());
  EXPECT_TRUE(Only<Attached>(machine.Apply(ServerWelcome{0, 1}))) << "no question";
}

TEST(ServerMachine, AServerThatHoldsBackupsOfOthersAsks) {
  ServerMachine machine = WithJob(TwoEngines());
  EXPECT_TRUE(As<Drain>(machine.Report(DrainAsked{.stand_ins = 1})));
  EXPECT_FALSE(machine.has_drained());
  machine.Apply(LinkLost{});
  EXPECT_TRUE(machine.has_drained()) << "nobody answers any more";
}

TEST(ServerMachine, TheProcessEndsWhenItIsToldTo) {
  ServerMachine machine(TwoEngines());
  EXPECT_TRUE(Only<EndProcess>(machine.Apply(EndServer{})));
}

}  // namespace
}  // namespace syncline
