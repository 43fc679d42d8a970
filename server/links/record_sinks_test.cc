#include "server/links/record_sinks.h"

#include <cstdint>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using Pass = RecordSinks::Pass;
using Sink = RecordSinks::Sink;

ShardRecord Step(uint32_t block) { return {1, StepRecord{.block = block}}; }
ShardRecord StateOf(uint32_t block) {
  return {1, BlockStateRecord{.block = block,
                              .saved = std::make_shared<const BlockSnapshot>()}};
}
uint64_t Safe(RecordSinks& sinks) {
  const auto news = sinks.News();
  return news ? news->records : 0;
}

TEST(RecordSinks, SafeIsWhatBothHave) {
  RecordSinks sinks(true, true);
  for (uint32_t block = 0; block < 3; ++block) {
    const auto takers = sinks.Take(Step(block));
    EXPECT_TRUE(takers.journal && takers.backups[0]);
  }
  sinks.Durable(Sink::kJournal, 3);
  EXPECT_EQ(sinks.News(), std::nullopt);
  sinks.Durable(Sink::kFirstBackup, 2);
  EXPECT_EQ(Safe(sinks), 2u);
  EXPECT_EQ(sinks.News(), std::nullopt);
  sinks.Lose(Sink::kFirstBackup);
  EXPECT_EQ(Safe(sinks), 3u);
  sinks.Lose(Sink::kJournal);
  EXPECT_EQ(Safe(sinks), ~uint64_t{0});
}

TEST(RecordSinks, WithoutAnyItSaysNothing) {
  RecordSinks sinks(false, false);
  const auto takers = sinks.Take(Step(0));
  EXPECT_FALSE(takers.journal || takers.backups[0]);
  EXPECT_EQ(sinks.News(), std::nullopt);
}

TEST(RecordSinks, OneThatBeginsAloneCountsAnew) {
  RecordSinks sinks(true, false);
  sinks.Take(Step(0));
  sinks.Lose(Sink::kJournal);
  EXPECT_EQ(Safe(sinks), ~uint64_t{0});
  sinks.Want(Pass::kFirstBackup);
  EXPECT_EQ(sinks.NextOrder(), ShardBackUp::Kind::kBegin);
  EXPECT_TRUE(sinks.Take(StateOf(0)).backups[0]);
  sinks.Durable(Sink::kFirstBackup, 1);
  EXPECT_EQ(Safe(sinks), 1u);
}

// The new sink gets no records of blocks whose state it lacks, and nobody waits for
// those. The other sink gets no states.
TEST(RecordSinks, OneThatBeginsBesideAnother) {
  RecordSinks sinks(true, false);
  for (int i = 0; i < 5; ++i) sinks.Take(Step(0));
  sinks.Durable(Sink::kJournal, 5);
  EXPECT_EQ(Safe(sinks), 5u);
  sinks.Want(Pass::kFirstBackup);
  EXPECT_EQ(sinks.NextOrder(), ShardBackUp::Kind::kBeside);
  auto takers = sinks.Take(Step(0));  // 6
  EXPECT_TRUE(takers.journal);
  EXPECT_FALSE(takers.backups[0]);
  sinks.Durable(Sink::kJournal, 6);
  EXPECT_EQ(Safe(sinks), 6u);
  takers = sinks.Take(StateOf(0));  // 7
  EXPECT_FALSE(takers.journal);
  EXPECT_TRUE(takers.backups[0]);
  takers = sinks.Take(Step(0));  // 8
  EXPECT_TRUE(takers.journal && takers.backups[0]);
  takers = sinks.Take(Step(1));  // 9
  EXPECT_FALSE(takers.backups[0]);
  sinks.Durable(Sink::kJournal, 8);  // all
  EXPECT_EQ(sinks.News(), std::nullopt);
  sinks.Durable(Sink::kFirstBackup, 1);
  EXPECT_EQ(Safe(sinks), 7u);
  sinks.Durable(Sink::kFirstBackup, 2);
  EXPECT_EQ(Safe(sinks), 9u);
  EXPECT_EQ(sinks.Answered({.more = false}), Pass::kFirstBackup);
  EXPECT_TRUE(sinks.Take(Step(1)).backups[0]);
}

// Otherwise the shard would wait for a report about a record that no sink has.
TEST(RecordSinks, WhatIsForNobodyIsSafe) {
  RecordSinks sinks(true, false);
  sinks.Want(Pass::kFirstBackup);
  ASSERT_TRUE(sinks.NextOrder());
  sinks.Lose(Sink::kJournal);
  sinks.Take(Step(3));
  EXPECT_EQ(Safe(sinks), 1u);
}

TEST(RecordSinks, OnePassAtATime) {
  RecordSinks sinks(true, false);
  sinks.Want(Pass::kSnapshot);
  EXPECT_EQ(sinks.NextOrder(), ShardBackUp::Kind::kSnapshot);
  EXPECT_TRUE(sinks.Take(StateOf(0)).journal);
  sinks.Want(Pass::kFirstBackup);
  EXPECT_EQ(sinks.NextOrder(), std::nullopt);
  EXPECT_FALSE(sinks.Continue(Pass::kSnapshot));  // it has not answered
  EXPECT_EQ(sinks.Answered({.more = true}), Pass::kSnapshot);
  EXPECT_FALSE(sinks.Continue(Pass::kFirstBackup));
  EXPECT_TRUE(sinks.Continue(Pass::kSnapshot));
  EXPECT_EQ(sinks.Answered({.more = false}), Pass::kSnapshot);
  EXPECT_EQ(sinks.NextOrder(), ShardBackUp::Kind::kBeside);
}

// A disk that hangs does not keep a backup from being made.
TEST(RecordSinks, ABackupBeginsBeforeAJournal) {
  RecordSinks sinks(false, false);
  sinks.Want(Pass::kJournal);
  sinks.Want(Pass::kFirstBackup);
  ASSERT_TRUE(sinks.NextOrder());
  EXPECT_EQ(sinks.pass(), Pass::kFirstBackup);
}

TEST(RecordSinks, AJournalThatIsLostInItsPassLetsABackupBegin) {
  RecordSinks sinks(false, false);
  sinks.Want(Pass::kJournal);
  ASSERT_TRUE(sinks.NextOrder());
  sinks.Want(Pass::kFirstBackup);
  EXPECT_EQ(sinks.Answered({.more = true}), Pass::kJournal);
  EXPECT_EQ(sinks.NextOrder(), std::nullopt);
  sinks.Lose(Sink::kJournal);
  ASSERT_TRUE(sinks.NextOrder());
  EXPECT_EQ(sinks.pass(), Pass::kFirstBackup);
}

// A late answer must not count as an answer to a later order.
TEST(RecordSinks, ThePassOfALostSinkIsAwaitedFirst) {
  RecordSinks sinks(true, true);
  sinks.Lose(Sink::kFirstBackup);
  sinks.Want(Pass::kFirstBackup);
  ASSERT_TRUE(sinks.NextOrder());
  sinks.Lose(Sink::kFirstBackup);
  sinks.Want(Pass::kFirstBackup);
  EXPECT_EQ(sinks.NextOrder(), std::nullopt);
  EXPECT_EQ(sinks.Answered({.more = false}), Pass::kNone);
  EXPECT_EQ(sinks.NextOrder(), ShardBackUp::Kind::kBeside);
}

// The backup that counts gets everything but the states, and is waited for throughout.
TEST(RecordSinks, ASecondBackupBeginsBesideTheFirst) {
  RecordSinks sinks(false, true);
  sinks.Take(Step(0));
  sinks.Durable(Sink::kFirstBackup, 1);
  EXPECT_EQ(Safe(sinks), 1u);
  sinks.Want(Pass::kSecondBackup);
  EXPECT_EQ(sinks.NextOrder(), ShardBackUp::Kind::kBeside);
  auto takers = sinks.Take(StateOf(0));  // 2
  EXPECT_FALSE(takers.backups[0]);
  EXPECT_TRUE(takers.backups[1]);
  takers = sinks.Take(Step(0));  // 3
  EXPECT_TRUE(takers.backups[0] && takers.backups[1]);
  takers = sinks.Take(Step(1));  // 4
  EXPECT_TRUE(takers.backups[0]);
  EXPECT_FALSE(takers.backups[1]);
  sinks.Durable(Sink::kSecondBackup, 2);
  EXPECT_EQ(Safe(sinks), 2u) << "the first one has neither step";
  sinks.Durable(Sink::kFirstBackup, 3);
  EXPECT_EQ(Safe(sinks), 4u);
  EXPECT_EQ(sinks.Answered({.more = false}), Pass::kSecondBackup);
  takers = sinks.Take(Step(1));  // 5
  EXPECT_TRUE(takers.backups[0] && takers.backups[1]);
  sinks.Durable(Sink::kSecondBackup, 3);
  EXPECT_EQ(sinks.News(), std::nullopt) << "both are awaited until one is dismissed";
  sinks.Lose(Sink::kFirstBackup);
  EXPECT_EQ(Safe(sinks), 5u);
  sinks.Want(Pass::kFirstBackup);
  EXPECT_EQ(sinks.NextOrder(), ShardBackUp::Kind::kBeside);
}

TEST(RecordSinks, ASecondBackupGoesOnToBeMadeWithoutTheFirst) {
  RecordSinks sinks(false, true);
  sinks.Want(Pass::kSecondBackup);
  ASSERT_TRUE(sinks.NextOrder());
  sinks.Take(StateOf(0));
  EXPECT_EQ(sinks.Answered({.more = true}), Pass::kSecondBackup);
  sinks.Lose(Sink::kFirstBackup);
  EXPECT_TRUE(sinks.awaits(Sink::kSecondBackup));
  EXPECT_TRUE(sinks.Continue(Pass::kSecondBackup));
  sinks.Durable(Sink::kSecondBackup, 1);
  EXPECT_EQ(Safe(sinks), 1u);
}

TEST(RecordSinks, OneThatDeclinesIsNotAwaited) {
  RecordSinks sinks(false, false);
  sinks.Want(Pass::kJournal);
  ASSERT_TRUE(sinks.NextOrder());
  sinks.Decline();
  EXPECT_FALSE(sinks.awaits(Sink::kJournal));
  EXPECT_EQ(sinks.News(), std::nullopt);
}

}  // namespace
}  // namespace syncline
