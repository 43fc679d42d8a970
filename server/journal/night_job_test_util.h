// A shard of two blocks and two workers with a journal, for tests of what the journal
// guarantees.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/journal/journal.h"
#include "server/shard/shard_test_util.h"

namespace syncline {

inline constexpr uint32_t kNight = 7;
inline constexpr uint32_t kShard = 3;

inline RigOptions NightRig() {
  TrainingSettings training;
  training.optimizer = {.name = "adamw", .options = {{"lr", 0.01}}};
  return {.codec = "bf16",
          .training = std::move(training),
          .tensors = {300, 20},
          .records = Records::kAwaited};
}

// How many records are on the disk, as the journal reports it.
class Durable {
 public:
  void Say(uint64_t records) {
    absl::MutexLock lock(&mutex_);
    records_ = records;
  }
  uint64_t Await(uint64_t records) {
    const auto is_there = [this, records]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return records_ >= records;
    };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&is_there));
    return records_;
  }

 private:
  absl::Mutex mutex_;
  uint64_t records_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Why the journal is lost, as it reports it.
class Loss {
 public:
  void Say(const absl::Status& why) {
    absl::MutexLock lock(&mutex_);
    why_.push_back(why);
  }
  // Waits for a report, and returns all reports so far.
  std::vector<absl::Status> Await() {
    const auto is_there = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return !why_.empty();
    };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&is_there));
    return why_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<absl::Status> why_ ABSL_GUARDED_BY(mutex_);
};

// A shard of two blocks, two workers, and a journal.
class NightJob {
 public:
  // `snapshot_factor` 0: the journal takes no snapshots.
  NightJob(const std::string& directory, const RigOptions& options,
           uint64_t segment_bytes = uint64_t{64} << 20, double snapshot_factor = 0)
      : rig_(options),
        journal_({.directory = directory,
                  .segment_bytes = segment_bytes,
                  .retry = absl::ZeroDuration(),
                  .snapshots = {.factor = snapshot_factor},
                  .on_durable = [this](uint32_t, uint32_t,
                                       uint64_t records) { durable_.Say(records); },
                  .on_room = [this](uint32_t) { has_room_.Say(1); },
                  .on_lost = [this](const absl::Status& why) { lost_.Say(why); },
                  .on_snapshot =
                      [this](uint32_t, uint32_t, ShardBackUp::Kind order) {
                        absl::MutexLock lock(&mutex_);
                        orders_.push_back(order);
                      }}) {}

  void Begin(std::vector<ShardTail> tails = {}) {
    JournaledJob job = {.job = kNight,
                        .head = {.job = "night", .shard = kShard},
                        .blocks = {{0, 1}},
                        .trained = {{0, 1}},
                        .may_begin_anew = true,
                        .state_bytes = {4000},
                        .run = "run1",
                        .tails = std::move(tails)};
    ASSERT_TRUE(journal_.Begin(std::move(job)).ok());
    Do(rig_.Commit(1, {rig_.Member(0), rig_.Member(1)}));
  }
  void Seed() {
    for (uint32_t block = 0; block < 2; ++block) {
      Do(rig_.Seed(block, SomeValues(rig_.range(block).elements, block)));
    }
  }
  void Step(uint64_t step) {
    for (uint32_t block = 0; block < 2; ++block) {
      for (const uint32_t rank : {0u, 1u}) Do(rig_.Push(rank, block, step));
    }
    GiveSnapshots();
  }
  // Gives the states that the journal has asked for.
  void GiveSnapshots() {
    for (;;) {
      std::optional<ShardBackUp::Kind> order;
      {
        absl::MutexLock lock(&mutex_);
        if (orders_.empty()) return;
        order = orders_.front();
        orders_.pop_front();
        ++orders_taken_;
      }
      Do(rig_.shard().Apply(ShardBackUp{*order}));
    }
  }
  int orders_taken() const { return orders_taken_; }
  // Once the disk takes files again, gives the whole state of the shard.
  void BeginAnew() {
    has_room_.Await(1);
    has_room_.Say(0);
    ASSERT_TRUE(journal_.BeginAnew(kNight, 0));
    EXPECT_FALSE(journal_.BeginAnew(kNight, 0));  // only once
    taken_ = 0;
    durable_.Say(0);
    begins_anew_ = true;
    Do(rig_.shard().Apply(ShardBackUp{}));
    while (std::exchange(has_more_, false))
      Do(rig_.shard().Apply(ShardBackUp{ShardBackUp::Kind::kNext}));
  }
  void Whole() {
    journal_.Whole(kNight, 0);
    while (!state().error.empty()) absl::SleepFor(absl::Milliseconds(5));
    begins_anew_ = false;
  }
  // Makes a step but only gives its records to the journal, which does not answer.
  void StepUnanswered(uint64_t step) {
    for (uint32_t block = 0; block < 2; ++block) {
      for (const uint32_t rank : {0u, 1u}) {
        for (const ShardOutput& output : rig_.Push(rank, block, step)) {
          const auto* kept = std::get_if<ShardRecorded>(&output);
          if (kept != nullptr) journal_.Take(kNight, 0, kept->record);
        }
      }
    }
  }
  std::vector<absl::Status> AwaitLoss() { return lost_.Await(); }
  void Stop() { journal_.Stop(); }
  uint64_t durable_records() { return durable_.Await(0); }
  JournalState state() { return *journal_.State(kNight); }
  Shard& shard() { return rig_.shard(); }
  std::vector<ShardBlock> blocks() const {
    return {{0, rig_.range(0)}, {1, rig_.range(1)}};
  }

 private:
  // Handles outputs. Waits until all records are on the disk before it does anything
  // else.
  void Do(const ShardOutputs& outputs) {
    const uint64_t before = taken_;
    for (const ShardOutput& output : outputs) {
      if (const auto* one = std::get_if<ShardBackedUp>(&output)) Took(*one);
      const auto* kept = std::get_if<ShardRecorded>(&output);
      if (kept == nullptr) continue;
      journal_.Take(kNight, 0, kept->record);
      ++taken_;
    }
    if (taken_ == before) return;
    Do(rig_.shard().Apply(ShardDurable{durable_.Await(taken_)}));
  }

  void Took(const ShardBackedUp& state) {
    if (begins_anew_) {
      has_more_ = state.more;
    } else {
      state.more ? journal_.TookState(kNight, 0) : journal_.Whole(kNight, 0);
    }
  }

  ShardRig rig_;
  absl::Mutex mutex_;
  std::deque<ShardBackUp::Kind> orders_ ABSL_GUARDED_BY(mutex_);
  int orders_taken_ = 0;
  bool begins_anew_ = false;
  Durable durable_;
  Durable has_room_;
  Loss lost_;
  uint64_t taken_ = 0;
  bool has_more_ = false;
  Journal journal_;
};

inline void ExpectSame(const ShardSnapshot& a, const ShardSnapshot& b) {
  ASSERT_EQ(a.blocks.size(), b.blocks.size());
  for (const auto& [id, block] : a.blocks) EXPECT_TRUE(block == b.blocks.at(id)) << id;
}

}  // namespace syncline
