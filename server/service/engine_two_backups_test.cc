// An engine that feeds two backups, one of which is to replace the other. The backups are
// real, too: an engine takes the records, and a BackupShard plays them.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/service/backup_shard.h"
#include "server/service/engine_test_util.h"

namespace syncline {
namespace {

constexpr uint64_t kFirstKey = 5;
constexpr uint64_t kSecondKey = 6;

// The holder of a backup, in a server of its own.
class Holder {
 public:
  Holder(uint64_t session_key, EngineJobOptions job)
      : pair_({.sender = {.server = 3, .incarnation = 9}, .session_key = session_key}) {
    engine_ = *Engine::Start({}, {.on_output = [](uint32_t, const ShardOutput&) {}});
    shard_ = std::make_unique<BackupShard>(
        BackupShardOptions{.trained = {0}, .whose = "what the engine has"},
        *engine_->Build(std::move(job)));
    engine_->TakeRecords(kJob, pair_,
                         [this](std::vector<std::byte> record) -> absl::StatusOr<bool> {
                           const auto has_room = shard_->Take(std::move(record));
                           if (!has_room.ok()) return has_room;
                           ++taken_;
                           return *has_room && !is_full_;
                         });
  }

  const std::string& address() const { return engine_->address(); }
  const BackupPair& pair() const { return pair_; }
  // While it is full, it takes records and acknowledges none.
  void BeFull() { is_full_ = true; }
  void HaveRoom() {
    is_full_ = false;
    engine_->Acknowledge(kJob);
  }
  void AwaitRecords(uint64_t count) const {
    while (taken_ < count) std::this_thread::yield();
  }
  uint64_t taken() const { return taken_; }
  absl::StatusOr<BackupShard::Finished> Finish() {
    engine_->StopTaking(kJob);
    return shard_->Finish();
  }

 private:
  const BackupPair pair_;
  std::atomic<uint64_t> taken_ = 0;
  std::atomic<bool> is_full_ = false;
  std::unique_ptr<Engine> engine_;  // outlives the shard that it has built
  std::unique_ptr<BackupShard> shard_;
};

class EngineTwoBackups : public EngineTest {
 protected:
  // The job has its first backup from the first record on, and makes a step.
  EngineTwoBackups() {
    EngineJobOptions job = JobOptions(kJob);
    job.sends_records = true;
    job.shard.records = Records::kAwaited;
    engine_->Adopt(kJob, *engine_->Build(std::move(job)));
    engine_->SendRecords(kJob, first_.address(), first_.pair(),
                         Engine::Backups::kFromTheFirst);
    Commit(1, {0});
    worker_.SayHello();
    worker_.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
    EXPECT_EQ(worker_.Next(), "noted v0") << "the backup does not have it yet";
    Step(0);
  }
  void Push(uint64_t step) { worker_.SendBlock(MessageKind::kPush, 1, step, 1.0f); }
  void AwaitPublish(uint64_t version) {
    const std::string published = absl::StrCat("publish v", version);
    for (std::string next = worker_.Next(); next != published; next = worker_.Next()) {
      ASSERT_EQ(next, absl::StrCat("ack s", version - 1));
    }
  }
  void Step(uint64_t step) {
    Push(step);
    AwaitPublish(step + 1);
  }
  void BeginSecond() {
    engine_->SendRecords(kJob, second_.address(), second_.pair(),
                         Engine::Backups::kWithState);
    EXPECT_EQ(backed_up_.Take(), kSecondKey);
  }
  // Waits until the engine knows that one of the backups has all steps below this one.
  void AwaitDurable(uint64_t step) {
    for (;;) {
      const Engine::LatestReport latest = engine_->AskProgress();
      const auto job = latest.jobs.find(kJob);
      const bool is_known = job != latest.jobs.end() && job->second.backup;
      if (is_known && job->second.backup->durable >= step) return;
      std::this_thread::yield();
    }
  }
  // Returns whether the worker has been told of this version. It knows the one before.
  bool IsTold(uint64_t version) {
    worker_.Send(worker_.Header(MessageKind::kPull, 1, version - 1), {});
    const std::string noted = absl::StrCat("noted v", version - 1);
    for (std::string next = worker_.Next(); next != noted; next = worker_.Next()) {
      if (next == absl::StrCat("publish v", version) || next == "nothing") return true;
    }
    return false;
  }
  void ExpectSame(Holder& holder, const Shard& shard) {
    const auto finished = holder.Finish();
    ASSERT_TRUE(finished.ok()) << finished.status();
    EXPECT_EQ(finished->step, shard.block_version(0));
    EXPECT_EQ(finished->part.shard->block_digest(0), shard.block_digest(0));
  }

  Holder first_{kFirstKey, JobOptions(kJob)};
  Holder second_{kSecondKey, JobOptions(kJob)};
  FakeWorker worker_{0, engine_->address()};
};

TEST_F(EngineTwoBackups, ANewOneGetsTheStateAndThenBothHaveTheSame) {
  BeginSecond();
  for (uint64_t step = 1; step < 4; ++step) Step(step);
  const std::shared_ptr<Shard> shard = engine_->Release(kJob);
  EXPECT_EQ(shard->block_version(0), 4u);
  ExpectSame(first_, *shard);
  ExpectSame(second_, *shard);
}

TEST_F(EngineTwoBackups, WorkersHearOfAStepOnceBothHaveIt) {
  BeginSecond();
  Step(1);
  for (Holder* late : {&first_, &second_}) {
    const uint64_t step = late == &first_ ? 2 : 3;
    const uint64_t before = late->taken();
    late->BeFull();
    Push(step);
    late->AwaitRecords(before + 1);
    AwaitDurable(step + 1);  // the other one has it
    EXPECT_FALSE(IsTold(step + 1));
    late->HaveRoom();
    AwaitPublish(step + 1);
  }
}

TEST_F(EngineTwoBackups, TheOneThatReplacesTheOtherIsWaitedForAlone) {
  BeginSecond();
  Step(1);
  first_.BeFull();
  Push(2);
  AwaitDurable(3);
  EXPECT_FALSE(IsTold(3));
  engine_->StopRecords(kJob, kFirstKey);
  AwaitPublish(3);
  Step(3);
  const std::shared_ptr<Shard> shard = engine_->Release(kJob);
  ExpectSame(second_, *shard);
}

TEST_F(EngineTwoBackups, ANewOneThatIsGivenUpLeavesTheOtherAndItsPlaceForAnother) {
  BeginSecond();
  engine_->StopRecords(kJob, kSecondKey);
  Step(1);
  Holder third(7, JobOptions(kJob));
  engine_->SendRecords(kJob, third.address(), third.pair(), Engine::Backups::kWithState);
  EXPECT_EQ(backed_up_.Take(), 7u);
  Step(2);
  const std::shared_ptr<Shard> shard = engine_->Release(kJob);
  ExpectSame(first_, *shard);
  ExpectSame(third, *shard);
}

}  // namespace
}  // namespace syncline
