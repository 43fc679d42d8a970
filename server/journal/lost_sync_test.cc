// A sync that fails: the system may have dropped what was written, and reports it only
// once.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/journal.h"
#include "server/journal/night_job_test_util.h"
#include "server/journal/restore.h"
#include "server/journal/run.h"
#include "server/journal/segment.h"

namespace {

// The errno of the next sync of a file; 0: it succeeds. As on Linux, only one sync fails,
// and later ones succeed.
std::atomic<int> next_sync_fails_with = 0;

// A disk on which syncs hang from Begin to End; then they fail.
class StuckDisk {
 public:
  void Begin() {
    absl::MutexLock lock(&mutex_);
    is_stuck_ = true;
  }
  void AwaitSync() {
    absl::MutexLock lock(&mutex_);
    const auto one_hangs = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return hanging_ > 0;
    };
    mutex_.Await(absl::Condition(&one_hangs));
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    is_stuck_ = false;
  }
  // Returns the errno that a sync fails with; 0: it succeeds.
  int Sync() {
    absl::MutexLock lock(&mutex_);
    if (!is_stuck_) return 0;
    ++hanging_;
    const auto may_go = [this]()
                            ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !is_stuck_; };
    mutex_.Await(absl::Condition(&may_go));
    --hanging_;
    return EIO;
  }

 private:
  absl::Mutex mutex_;
  bool is_stuck_ ABSL_GUARDED_BY(mutex_) = false;
  int hanging_ ABSL_GUARDED_BY(mutex_) = 0;
};

StuckDisk& stuck_disk() {
  static auto& disk = *new StuckDisk;
  return disk;
}

}  // namespace

// Replaces the function of libc.
extern "C" int fdatasync(int fd) {
  int error = stuck_disk().Sync();
  if (error == 0) error = next_sync_fails_with.exchange(0);
  if (error == 0) return static_cast<int>(syscall(SYS_fdatasync, fd));
  errno = error;
  return -1;
}

namespace syncline {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ShardRecord Settings(uint64_t from) {
  return {.what = SettingsRecord{.training = NightRig().training, .from = from}};
}

TEST(SegmentWhoseSyncFails, EndsWithWhatWasSynced) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/" + SegmentName(0, 1);
  auto writer = SegmentWriter::Create(path, {.job = "night"});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append(Settings(1)).ok());
  ASSERT_TRUE((*writer)->Sync().ok());
  const auto synced = fs::file_size(path);
  ASSERT_TRUE((*writer)->Append(Settings(2)).ok());
  ASSERT_GT(fs::file_size(path), synced);

  next_sync_fails_with = EIO;
  const absl::Status failed = (*writer)->Sync();
  EXPECT_TRUE(absl::IsDataLoss(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()),
              AllOf(HasSubstr(path), HasSubstr("errno 5")));
  EXPECT_EQ(fs::file_size(path), synced) << "nobody reads what may not be on the disk";
}

TEST(SegmentWhoseSyncFails, IsOnAFullDiskWhereItSaysSo) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/" + SegmentName(0, 1);
  for (const int error : {ENOSPC, EDQUOT}) {
    next_sync_fails_with = error;
    const auto writer = SegmentWriter::Create(path, {.job = "night"});
    EXPECT_TRUE(absl::IsResourceExhausted(writer.status())) << writer.status();
    fs::remove(path);
  }
}

class LostSync : public ::testing::Test {
 protected:
  LostSync() {
    job_->Begin();
    job_->Seed();
    for (uint64_t step = 0; step < 3; ++step) job_->Step(step);
  }
  std::unique_ptr<NightJob> NewJob() const {
    return std::make_unique<NightJob>(directory_.path(), NightRig());
  }

  const TempDirectory directory_;
  std::unique_ptr<NightJob> job_ = NewJob();
};

TEST_F(LostSync, EndsTheServerAndNothingMoreCountsAsSafe) {
  const uint64_t durable = job_->durable_records();
  next_sync_fails_with = EIO;
  job_->StepUnanswered(3);
  const std::vector<absl::Status> lost = job_->AwaitLoss();
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_TRUE(absl::IsDataLoss(lost[0])) << lost[0];
  EXPECT_THAT(std::string(lost[0].message()),
              AllOf(HasSubstr("shard-00003-000001.journal"), HasSubstr("errno 5"),
                    HasSubstr("'night' all steps below 3 are on the disk"),
                    HasSubstr("--journal-dir")));
  // Later syncs would succeed, and hide what was dropped.
  job_->StepUnanswered(3);
  job_->Stop();
  EXPECT_EQ(job_->durable_records(), durable);
  EXPECT_THAT(job_->AwaitLoss(), SizeIs(1));
}

TEST_F(LostSync, LeavesWhatWasSyncedForTheServerThatComesNext) {
  next_sync_fails_with = EIO;
  job_->StepUnanswered(3);
  job_->AwaitLoss();
  job_ = NewJob();
  const auto run = RunRestore::Open({.directory = directory_.path(),
                                     .job = "night",
                                     .run = "run1",
                                     .shards = {kShard}});
  ASSERT_TRUE(run.ok()) << run.status();
  const auto tail = (*run)->Play(kShard, job_->blocks(), job_->shard());
  ASSERT_TRUE(tail.ok()) << tail.status();
  for (const uint32_t block : {0u, 1u}) {
    EXPECT_EQ(job_->shard().block_version(block), 3u);
  }
}

TEST_F(LostSync, OfAFullDiskEndsTheJournalAlone) {
  next_sync_fails_with = ENOSPC;
  job_->Step(3);  // nobody waits for records that will not be written
  EXPECT_THAT(job_->state().error, HasSubstr("free space"));
}

class DiskThatHangs : public ::testing::Test {
 protected:
  static constexpr uint32_t kIdle = kNight + 1;
  static constexpr uint32_t kKept =
      kNight + 2;  // a job in a mode in which nobody waits for its records
  static constexpr absl::Duration kPatience = absl::Milliseconds(40);

  ~DiskThatHangs() override { stuck_disk().End(); }

  void Begin(uint32_t job, const std::string& name, bool may_begin_anew) {
    const absl::Status begun = journal_.Begin({.job = job,
                                               .head = {.job = name, .shard = kShard},
                                               .blocks = {{0, 1}},
                                               .trained = {{0, 1}},
                                               .may_begin_anew = may_begin_anew,
                                               .run = "run1"});
    ASSERT_TRUE(begun.ok()) << begun;
  }
  void Take(uint32_t job, uint64_t from) {
    journal_.Take(job, 0, std::make_shared<ShardRecord>(Settings(from)));
  }
  // Leaves a record of kNight in a sync that hangs.
  void Hang() {
    Begin(kNight, "night", true);
    Take(kNight, 1);
    of_night_.Await(1);
    stuck_disk().Begin();
    Take(kNight, 2);
    stuck_disk().AwaitSync();
  }
  void LookUntilItHasEnded() {
    while (journal_.State(kNight)->error.empty()) {
      journal_.EndIfStuck();
      absl::SleepFor(kPatience / 8);
    }
  }

  const TempDirectory directory_;
  Durable of_night_;
  Journal journal_{{.directory = directory_.path(),
                    .backlog = {.patience = kPatience},
                    .on_durable = [this](uint32_t job, uint32_t, uint64_t records) {
                      if (job == kNight) of_night_.Say(records);
                    }}};
};

TEST_F(DiskThatHangs, EndsTheJournalsOfThoseWhoWaitAlthoughThereIsRoom) {
  Begin(kIdle, "idle", true);
  Begin(kKept, "kept", false);
  Hang();
  Take(kKept, 1);
  LookUntilItHasEnded();
  of_night_.Await(std::numeric_limits<uint64_t>::max());  // nobody waits for it
  EXPECT_THAT(journal_.State(kNight)->error, HasSubstr("which took none for 40ms"));
  EXPECT_EQ(journal_.State(kIdle)->error, "") << "nothing of it waited";
  EXPECT_EQ(journal_.State(kKept)->error, "") << "it could not start over";
}

// A debugger, or a halted machine, stopped the process: it does not know what the disk
// did.
TEST_F(DiskThatHangs, IsNoneForAProcessThatStoodStill) {
  Hang();
  for (int i = 0; i < 5; ++i) {
    absl::SleepFor(2 * kPatience);
    journal_.EndIfStuck();
  }
  EXPECT_EQ(journal_.State(kNight)->error, "");
}

TEST_F(DiskThatHangs, IsStillGivenTheLastRecordsOfAJobThatIsOver) {
  Begin(kIdle, "idle", true);
  Hang();
  Take(kIdle, 1);
  journal_.Drop(kIdle);
  LookUntilItHasEnded();
  stuck_disk().End();
  journal_.Stop();
  const auto run = FindRun({directory_.path()}, "idle");
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_TRUE(*HasRecords(*run));
}

// The journal has ended, so nobody relies on it: no reason to end the server.
TEST(LostSyncOfAnEndedJournal, EndsNoServer) {
  const TempDirectory directory;
  constexpr uint32_t kDay = kNight + 1;
  constexpr uint64_t kTwoRecords = 600;
  Durable of_night;
  std::map<uint32_t, uint64_t> durable;
  std::vector<absl::Status> lost;
  Journal journal({.directory = directory.path(),
                   .backlog = {.bytes = kTwoRecords, .patience = absl::Milliseconds(1)},
                   .on_durable =
                       [&](uint32_t job, uint32_t, uint64_t records) {
                         durable[job] = records;
                         if (job == kNight) of_night.Say(records);
                       },
                   .on_lost = [&](const absl::Status& why) { lost.push_back(why); }});
  for (const auto& [job, name] : {std::pair{kNight, "night"}, {kDay, "day"}}) {
    const absl::Status begun = journal.Begin({.job = job,
                                              .head = {.job = name, .shard = kShard},
                                              .blocks = {{0, 1}},
                                              .trained = {{0, 1}},
                                              .run = "run1"});
    ASSERT_TRUE(begun.ok()) << begun;
  }
  const auto take = [&journal](uint32_t job, uint64_t from) {
    journal.Take(job, 0, std::make_shared<ShardRecord>(Settings(from)));
  };
  take(kNight, 1);
  of_night.Await(1);
  stuck_disk().Begin();
  take(kNight, 2);
  stuck_disk().AwaitSync();
  take(kNight, 3);
  EXPECT_EQ(journal.State(kNight)->error, "");
  take(kNight, 4);  // there is no room for it
  EXPECT_THAT(journal.State(kNight)->error, HasSubstr("which took none for 1ms"));
  stuck_disk().End();
  take(kDay, 1);
  journal.Stop();
  EXPECT_THAT(lost, IsEmpty());
  EXPECT_EQ(durable[kDay], 1u) << "the others' journals go on";
}

}  // namespace
}  // namespace syncline
