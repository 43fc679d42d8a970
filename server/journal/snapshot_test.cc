// A journal that goes on takes snapshots of its shard. What precedes them is not needed,
// and at every moment the server can be restored.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/night_job_test_util.h"
#include "server/journal/record_player.h"
#include "server/journal/restore.h"
#include "server/journal/shard_log.h"
#include "server/shard/recorded_job_test_util.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;

// ---- Reading: with the snapshot, or past it ----

using RecordList = std::vector<std::shared_ptr<const ShardRecord>>;

void ExpectPlayed(RecordedJob& job, const RecordCase& one, PlayedFrom beginning) {
  SCOPED_TRACE(beginning == PlayedFrom::kSnapshot ? "from the snapshot on" : "all of it");
  ShardRig again(OptionsFor(one, Records::kNone));
  RecordPlayer player(again.shard(),
                      {.beginning = beginning, .records = "these", .whose = "the job"});
  const size_t first = beginning == PlayedFrom::kSnapshot ? job.snapshot_at() : 0;
  RecordList settings;  // at the front of the segment
  for (size_t i = 0; i < first; ++i) {
    const auto& record = job.records()[i];
    if (!std::holds_alternative<SettingsRecord>(record->what)) continue;
    AddSettings(record, settings);
  }
  for (const auto& record : settings) ASSERT_TRUE(player.Take(*record).ok());
  for (size_t i = first; i < job.records().size(); ++i) {
    const absl::Status played = player.Take(*job.records()[i]);
    ASSERT_TRUE(played.ok()) << played << " at record " << i;
  }
  ASSERT_TRUE(player.CheckWhole().ok());
  const auto expected = job.rig().shard().Save();
  const auto got = again.shard().Save();
  ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
  EXPECT_EQ(got->blocks, expected->blocks);
  EXPECT_EQ(got->factors, expected->factors);
  EXPECT_EQ(got->job_memory, expected->job_memory);
  EXPECT_EQ(got->loss_scale, expected->loss_scale);
}

class Snapshot : public ::testing::TestWithParam<RecordCase> {};

TEST_P(Snapshot, OfAJobThatGoesOnMeanwhile) {
  const RecordCase& one = GetParam();
  RecordedJob job(one, 0, Records::kAwaited);
  for (uint64_t step = 0; step < 3; ++step) job.Step(step);
  job.Snapshot();
  for (uint64_t step = 3; step < 10; ++step) job.Step(step);
  ASSERT_TRUE(job.is_backed_up());
  ExpectPlayed(job, one, PlayedFrom::kSnapshot);
  ExpectPlayed(job, one, PlayedFrom::kNothing);
}

INSTANTIATE_TEST_SUITE_P(Families, Snapshot,
                         ::testing::ValuesIn(AllOptimizersAndCodecs()));

class SnapshotOfLife : public ::testing::TestWithParam<LifeCase> {};

TEST_P(SnapshotOfLife, BegunAtAnyTime) {
  const RecordCase one = JobOf(GetParam());
  for (int begins = 1; begins < 60; begins += 2) {
    SCOPED_TRACE(begins);
    RecordedJob job(one, begins, Records::kAwaited);
    LiveThroughALot(job, one.training);
    for (uint64_t step = 9; step < 20; ++step) job.Step(step);
    ASSERT_TRUE(job.is_backed_up());
    ExpectPlayed(job, one, PlayedFrom::kSnapshot);
    ExpectPlayed(job, one, PlayedFrom::kNothing);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, SnapshotOfLife, ::testing::ValuesIn(LifeCases()));

TEST(SnapshotOfAShard, NothingWaitsForIt) {
  ShardRig rig(NightRig());
  rig.Commit(1, {ShardRig::Member(0), ShardRig::Member(1)});
  uint64_t records = 0;
  const auto run = [&](const ShardOutputs& outputs) {
    for (const ShardOutput& output : outputs) {
      records += std::holds_alternative<ShardRecorded>(output) ? 1 : 0;
    }
    return Lines(outputs);
  };
  for (uint32_t block = 0; block < 2; ++block) {
    run(rig.Seed(block, SomeValues(rig.range(block).elements, block)));
  }
  run(rig.shard().Apply(ShardDurable{records}));
  const uint64_t durable = records;
  EXPECT_THAT(run(rig.shard().Apply(ShardBackUp{ShardBackUp::Kind::kSnapshot})),
              AllOf(Contains("recorded"), Not(Contains("backed up, more"))));
  EXPECT_GT(records, durable);
  // The block's state is not on the disk, and the block makes its step all the same.
  run(rig.Push(0, 0, 0));
  run(rig.Push(1, 0, 0));
  EXPECT_EQ(rig.shard().block_version(0), 1u);
  EXPECT_THAT(run(rig.shard().Apply(ShardDurable{records})),
              AllOf(Contains("backed up, more"), Contains("publish r0 b0 v1")));
}

TEST(SnapshotOfAShard, WhoseRecordsGoNowhereIsNotTaken) {
  ShardRig rig({.codec = "bf16"});
  EXPECT_TRUE(rig.shard().Apply(ShardBackUp{ShardBackUp::Kind::kSnapshot}).empty());
}

TEST(SnapshotOfAShard, ThatLacksABlockIsFound) {
  const RecordCase one = AllOptimizersAndCodecs().front();
  RecordedJob job(one, 0, Records::kAwaited);
  job.Step(0);
  job.Snapshot();
  job.Step(1);
  ShardRig again(OptionsFor(one, Records::kNone));
  RecordPlayer player(again.shard(),
                      {.beginning = PlayedFrom::kSnapshot, .records = "these"});
  for (size_t i = job.snapshot_at(); i < job.records().size(); ++i) {
    const auto* state = std::get_if<BlockStateRecord>(&job.records()[i]->what);
    if (state != nullptr && state->block > 0) continue;
    ASSERT_TRUE(player.Take(*job.records()[i]).ok());
  }
  EXPECT_THAT(player.CheckWhole().ToString(), HasSubstr("lacks block 1"));
}

// ---- Settings ----

// The last segment repeats all settings, and was torn after the first of them.
TEST(SettingsSaidAgain, ChangeNothing) {
  const auto change = [](ShardRig& rig, uint64_t epoch, double lr, uint64_t from) {
    ShardCommit commit{.epoch = epoch, .members = {ShardRig::Member(0)}};
    commit.training = NightRig().training;
    commit.training->optimizer.options["lr"] = lr;
    commit.training_from = from;
    return rig.shard().Apply(commit);
  };
  RecordList records;
  ShardRig rig(NightRig());
  const auto take = [&](const ShardOutputs& outputs) {
    for (const ShardOutput& output : outputs) {
      const auto* kept = std::get_if<ShardRecorded>(&output);
      if (kept != nullptr) records.push_back(kept->record);
    }
  };
  rig.Commit(1, {ShardRig::Member(0)});
  take(rig.Seed(0, SomeValues(rig.range(0).elements, 0)));
  take(change(rig, 2, 0.5, 0));
  take(change(rig, 3, 0.001, 1));
  take(rig.shard().Apply(ShardDurable{records.size()}));
  take(rig.Push(0, 0, 0));
  std::vector<std::shared_ptr<const ShardRecord>> kept;
  ShardRig again(NightRig());
  for (const auto& record : records) {
    ASSERT_TRUE(again.shard().Replay(*record).ok());
    if (std::holds_alternative<SettingsRecord>(record->what)) AddSettings(record, kept);
  }
  ASSERT_THAT(kept, SizeIs(2));
  const auto both = kept;
  ASSERT_TRUE(again.shard().Replay(*kept.front()).ok());
  AddSettings(kept.front(), kept);
  EXPECT_EQ(kept, both);
  again.shard().BeginAgain();
  rig.shard().Apply(ShardDurable{~uint64_t{0}});
  for (ShardRig* one : {&rig, &again}) {
    one->Commit(4, {ShardRig::Member(0)});
    one->Push(0, 0, 1);
    ASSERT_EQ(one->shard().block_version(0), 2u);
  }
  EXPECT_EQ(again.Weights(0), rig.Weights(0));
}

// A new backup hears of a change as it happens, and later of all earlier ones, too.
TEST(SettingsSaidAgain, EndWithTheLastForOneThatKnewNothingElse) {
  const auto changed = [](double lr) {
    TrainingSettings training = NightRig().training;
    training.optimizer.options["lr"] = lr;
    return training;
  };
  ShardRig seeded(NightRig());
  seeded.Commit(1, {ShardRig::Member(0)});
  ShardRig rig(NightRig());
  ShardRig again(NightRig());
  for (const auto& output : seeded.Seed(0, SomeValues(seeded.range(0).elements, 0))) {
    const auto* kept = std::get_if<ShardRecorded>(&output);
    if (kept == nullptr) continue;
    ASSERT_TRUE(rig.shard().Replay(*kept->record).ok());
    ASSERT_TRUE(again.shard().Replay(*kept->record).ok());
  }
  const auto last = SettingsRecord{changed(0.001), 1};
  const auto before = SettingsRecord{changed(0.5), 1};
  for (const SettingsRecord& one : {before, last}) {
    ASSERT_TRUE(rig.shard().Replay({.epoch = 1, .what = one}).ok());
  }
  for (const SettingsRecord& one : {last, before, last}) {
    ASSERT_TRUE(again.shard().Replay({.epoch = 1, .what = one}).ok());
  }
  for (ShardRig* one : {&rig, &again}) {
    one->shard().BeginAgain();
    one->Commit(2, {ShardRig::Member(0)});
    for (const uint64_t step : {0, 1}) {
      one->Push(0, 0, step);
      one->shard().Apply(ShardDurable{~uint64_t{0}});
    }
    ASSERT_EQ(one->shard().block_version(0), 2u);
  }
  EXPECT_EQ(again.Weights(0), rig.Weights(0));
}

// ---- On the disk, without a thread, to check every moment ----

constexpr uint64_t kSegmentBytes = 4096;
constexpr SnapshotLimits kOften = {.factor = 2, .least = kSegmentBytes};

class LoggedJob : public ::testing::Test {
 protected:
  LoggedJob() : log_({.job = "night", .shard = kShard, .blocks = {0, 1}}, {0, 1}, 0) {
    fs::create_directories(folder_);
    log_.ExpectStateBytes(1000);
    Do(rig_->Commit(1, {ShardRig::Member(0), ShardRig::Member(1)}));
    for (uint32_t block = 0; block < 2; ++block) {
      Do(rig_->Seed(block, SomeValues(rig_->range(block).elements, block)));
    }
  }
  void Step() {
    for (uint32_t block = 0; block < 2; ++block) {
      for (const uint32_t rank : {0u, 1u}) Do(rig_->Push(rank, block, step_));
    }
    ++step_;
  }
  // Does what the journal's thread does for one group of records, and the engine for its
  // answer.
  void Do(const ShardOutputs& outputs) {
    std::optional<bool> more;
    bool records = false;
    for (const ShardOutput& output : outputs) {
      if (const auto* one = std::get_if<ShardBackedUp>(&output)) more = one->more;
      const auto* kept = std::get_if<ShardRecorded>(&output);
      if (kept == nullptr) continue;
      ASSERT_TRUE(log_.Append(folder_, kSegmentBytes, kept->record).ok());
      records = true;
      AtAnyMoment();
    }
    if (more) *more ? log_.TookState() : log_.TookAllStates();
    if (!records) return;
    ASSERT_TRUE(log_.Sync().ok());
    NoteVersions();
    const auto is_done = log_.FinishSnapshot();
    ASSERT_TRUE(is_done.ok()) << is_done.status();
    AtAnyMoment();
    if (*is_done) {
      ++snapshots_;
      log_.DeleteSuperseded();
      AtAnyMoment();
    }
    const ShardLog::Due due = log_.WhatIsDue(kOften);
    if (due == ShardLog::Due::kSnapshot) {
      ASSERT_TRUE(log_.BeginSnapshot(folder_).ok());
      AtAnyMoment();
    }
    Do(rig_->shard().Apply(ShardDurable{log_.durable_records()}));
    if (due == ShardLog::Due::kNothing) return;
    Do(rig_->shard().Apply(ShardBackUp{due == ShardLog::Due::kSnapshot
                                           ? ShardBackUp::Kind::kSnapshot
                                           : ShardBackUp::Kind::kNext}));
  }
  // Called at each moment at which the server may die. A restored server must have
  // everything that was synced, with the same bits.
  virtual void AtAnyMoment() {}
  void ExpectRestored() {
    const TempDirectory image;
    fs::copy(directory_.path(), image.path(), fs::copy_options::recursive);
    ShardRig back(NightRig());
    const auto run = RunRestore::Open(
        {.directory = image.path(), .job = "night", .run = "run1", .shards = {kShard}});
    ASSERT_TRUE(run.ok()) << run.status();
    const auto tail =
        (*run)->Play(kShard, {{0, back.range(0)}, {1, back.range(1)}}, back.shard());
    ASSERT_TRUE(tail.ok()) << tail.status();
    for (uint32_t block = 0; block < 2; ++block) {
      const uint64_t version = back.shard().block_version(block);
      EXPECT_GE(version, synced_[block]);
      if (!weights_.contains({block, version})) continue;  // it was not synced
      const std::vector<float>& expected = weights_[{block, version}];
      EXPECT_EQ(back.Weights(block), expected);
    }
    const std::set<std::string> left = SegmentsIn(image.path() + "/night/run1");
    EXPECT_EQ(left.size(), tail->segments.size()) << "superseded ones stay";
  }
  static std::set<std::string> SegmentsIn(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (ParseSegmentName(name)) names.insert(name);
    }
    return names;
  }
  void NoteVersions() {
    for (uint32_t block = 0; block < 2; ++block) {
      const uint64_t version = rig_->shard().block_version(block);
      synced_[block] = version;
      weights_[{block, version}] = rig_->Weights(block);
    }
  }

  TempDirectory directory_;
  const std::string folder_ = directory_.path() + "/night/run1";
  std::unique_ptr<ShardRig> rig_ = std::make_unique<ShardRig>(NightRig());
  ShardLog log_;
  uint64_t step_ = 0;
  int snapshots_ = 0;
  std::map<uint32_t, uint64_t> synced_;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> weights_;
};

class KilledAnyTime : public LoggedJob {
 protected:
  void AtAnyMoment() override {
    if (step_ > 0) ExpectRestored();
  }
};

TEST_F(KilledAnyTime, IsWhatItWas) {
  while (snapshots_ < 3 && step_ < 200) Step();
  EXPECT_EQ(snapshots_, 3);
}

// The state is 12 bytes for each of 320 parameters, plus heads.
TEST_F(LoggedJob, StaysSmall) {
  uint64_t most = 0;
  for (int i = 0; i < 300; ++i) {
    Step();
    most = std::max(most, log_.disk_bytes());
  }
  EXPECT_GT(snapshots_, 10);
  EXPECT_GT(log_.bytes(), 200'000u);
  EXPECT_LE(most, 6 * kSegmentBytes);
  uint64_t bytes = 0;
  for (const std::string& name : SegmentsIn(folder_)) {
    bytes += fs::file_size(folder_ + "/" + name);
  }
  EXPECT_EQ(bytes, log_.disk_bytes());
  EXPECT_THAT(SegmentsIn(folder_), SizeIs(Le(6u)));
}

// Until then, a step that all blocks of the job have in common may be before the
// snapshot.
TEST_F(LoggedJob, CountsOnceNoOtherBlockCanBeBehindIt) {
  const auto is_anew = [this] {
    const auto names = SegmentsIn(folder_);
    return std::ranges::any_of(names, [this](const std::string& name) {
      return BeginsAnew(folder_ + "/" + name);
    });
  };
  while (!is_anew() && step_ < 200) Step();
  ASSERT_TRUE(is_anew());
  EXPECT_EQ(log_.durable(), log_.anew_version() + 2);
}

// The checkpoint replaces the snapshot, and the next snapshot begins in time.
TEST_F(LoggedJob, ACheckpointMayDeleteWhatASnapshotBeganWith) {
  while (log_.WhatIsDue({.factor = 1e-9}) != ShardLog::Due::kSnapshot) Step();
  ASSERT_TRUE(log_.BeginSnapshot(folder_).ok());
  const int before = snapshots_;
  for (int i = 0; i < 6; ++i) Step();
  const std::set<std::string> segments = SegmentsIn(folder_);
  ASSERT_TRUE(log_.Prune(step_).ok());
  EXPECT_EQ(SegmentsIn(folder_).size(), 1u) << "the one that is open";
  log_.TookAllStates();
  ASSERT_TRUE(log_.FinishSnapshot().ok());
  EXPECT_EQ(snapshots_, before);
  for (int i = 0; i < 60; ++i) Step();
  EXPECT_GT(snapshots_, before);
  ExpectRestored();
}

TEST_F(LoggedJob, TheAnswerToAnEarlierSnapshotFinishesNoLaterOne) {
  const SnapshotLimits always = {.factor = 1e-9};
  while (log_.WhatIsDue(always) != ShardLog::Due::kSnapshot) Step();
  ASSERT_TRUE(log_.BeginSnapshot(folder_).ok());
  for (int i = 0; i < 6; ++i) Step();
  ASSERT_TRUE(log_.Prune(step_).ok());
  EXPECT_EQ(log_.WhatIsDue(always), ShardLog::Due::kNothing) << "an answer is due";
  log_.TookAllStates();
  EXPECT_EQ(log_.WhatIsDue(always), ShardLog::Due::kSnapshot);
  ASSERT_TRUE(log_.BeginSnapshot(folder_).ok());
  for (int i = 0; i < 6; ++i) Step();
  EXPECT_FALSE(*log_.FinishSnapshot());
}

TEST_F(LoggedJob, ItsSettingsAreKeptAndOldOnesAreNot) {
  for (uint64_t change = 0; change < 20; ++change) {
    ShardCommit commit{2 + change, {ShardRig::Member(0), ShardRig::Member(1)}};
    commit.training = NightRig().training;
    commit.training->optimizer.options["lr"] = 0.001 * static_cast<double>(1 + change);
    commit.training_from = step_ + 1;
    Do(rig_->shard().Apply(commit));
    for (int i = 0; i < 10; ++i) Step();
    ExpectRestored();
  }
  EXPECT_GT(snapshots_, 5);
  const auto run = FindRun({directory_.path()}, "night");
  const auto records = *ShardRecords::Open(run->shards.at(kShard));
  int settings = 0;
  for (;;) {
    const auto record = *records->Next();
    if (!record) break;
    settings += std::holds_alternative<SettingsRecord>(record->what) ? 1 : 0;
  }
  EXPECT_LT(settings, 30) << "a few in each segment";
}

}  // namespace
}  // namespace syncline
