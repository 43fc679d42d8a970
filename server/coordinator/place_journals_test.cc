#include "server/coordinator/place_journals.h"

#include <gmock/gmock.h>

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

JobSpec WithDurability(const std::string& durability) {
  JobSpec spec;
  spec.name = "job";
  spec.settings.durability = durability;
  return spec;
}

// A fenced job of two places, run "run1".
class PlaceJournalsTest : public ::testing::Test {
 protected:
  PlaceJournalsTest() {
    journals_.Begin(2);
    journals_.SetRun("run1");
  }
  static JournaledRun Run(std::vector<uint32_t> shards,
                          std::vector<uint32_t> generations) {
    return {.job = "job",
            .run = "run1",
            .shards = std::move(shards),
            .generations = std::move(generations)};
  }

  PlaceJournals journals_{WithDurability("disk+peer")};
};

TEST_F(PlaceJournalsTest, OnlyPlacesWithBackupsAreFenced) {
  EXPECT_TRUE(journals_.IsFenced());
  EXPECT_FALSE(PlaceJournals(WithDurability("peer")).IsFenced());
  PlaceJournals disk(WithDurability("disk"));
  EXPECT_FALSE(disk.IsFenced());
  disk.Begin(2);
  disk.Add(7, "stored by mistake");
  EXPECT_EQ(disk.GenerationOf(0), 0u);
  EXPECT_TRUE(disk.Counts(0)) << "nobody tells of an end";
}

TEST_F(PlaceJournalsTest, TheRunIsSaidOnce) {
  EXPECT_FALSE(journals_.SetRun("run2"));
  EXPECT_EQ(journals_.run(), "run1");
  PlaceJournals unknown(WithDurability("disk"));
  EXPECT_FALSE(unknown.SetRun(""));
  EXPECT_TRUE(unknown.SetRun("run2"));
}

TEST_F(PlaceJournalsTest, OneThatHasEndedCountsAgainOnceItsNextGenerationIsWhole) {
  EXPECT_TRUE(journals_.Lose(0, "its disk is full"));
  journals_.BeginAnew(0, 5);
  EXPECT_FALSE(journals_.Counts(0));
  EXPECT_TRUE(journals_.Counts(1));
  EXPECT_FALSE(journals_.SetWhole(0, 4)) << "an earlier one never counts again";
  EXPECT_FALSE(journals_.Counts(0));
  EXPECT_TRUE(journals_.SetWhole(0, 5));
  EXPECT_TRUE(journals_.Counts(0));
  EXPECT_FALSE(journals_.SetWhole(0, 5)) << "nothing is to be stored";
}

TEST_F(PlaceJournalsTest, OneThatEndsAgainBeforeItIsWholeKeepsItsGeneration) {
  EXPECT_TRUE(journals_.Lose(0, "its disk is full"));
  journals_.BeginAnew(0, 5);
  EXPECT_FALSE(journals_.Lose(0, "its disk is gone"));
  EXPECT_EQ(journals_.GenerationOf(0), 5u);
  EXPECT_EQ(journals_.WhyLost(0), "its disk is gone");
  EXPECT_THAT(journals_.WhyNotWhole(0),
              HasSubstr("no complete journal: its disk is gone"));
  EXPECT_THAT(journals_.WhyNotWhole(1), IsEmpty());
}

TEST_F(PlaceJournalsTest, WhatWasStoredCounts) {
  PlaceJournals restored(WithDurability("disk+peer"));
  restored.Add(0, "");
  restored.Add(5, "its disk is full");
  EXPECT_TRUE(restored.Counts(0));
  EXPECT_FALSE(restored.Counts(1));
  EXPECT_EQ(restored.GenerationOf(1), 5u);
}

TEST_F(PlaceJournalsTest, AJournalHasAllShardsOfItsPlaceInThePresentGeneration) {
  journals_.BeginAnew(0, 5);
  EXPECT_TRUE(journals_.IsAmong({Run({0, 1}, {5, 5})}, 0, {0, 1}));
  EXPECT_TRUE(journals_.IsAmong({Run({2}, {0}), Run({1, 0}, {5, 5})}, 0, {0, 1}));
  EXPECT_FALSE(journals_.IsAmong({Run({0}, {5}), Run({1}, {5})}, 0, {0, 1}))
      << "of two directories";
  EXPECT_FALSE(journals_.IsAmong({Run({0, 1}, {5, 4})}, 0, {0, 1}));
  EXPECT_FALSE(journals_.IsAmong({Run({0, 1}, {})}, 0, {0, 1})) << "of generation 0";
  EXPECT_TRUE(journals_.IsAmong({Run({0, 1}, {})}, 1, {0, 1}));
}

TEST_F(PlaceJournalsTest, ThoseOfOtherRunsAndJobsAreNone) {
  JournaledRun run = Run({0}, {});
  run.run = "run0";
  EXPECT_FALSE(journals_.IsAmong({run}, 0, {0}));
  run = Run({0}, {});
  run.job = "other";
  EXPECT_FALSE(journals_.IsAmong({run}, 0, {0}));
  PlaceJournals unknown(WithDurability("disk"));
  run = Run({0}, {});
  run.run = "";
  EXPECT_FALSE(unknown.IsAmong({run}, 0, {0}));
}

TEST_F(PlaceJournalsTest, AnEarlierGenerationOfAnyShardIsStale) {
  journals_.BeginAnew(0, 5);
  EXPECT_TRUE(journals_.HasEarlier({Run({0, 1}, {5, 4})}, 0, {0, 1}));
  EXPECT_FALSE(journals_.HasEarlier({Run({0, 1}, {5, 5})}, 0, {0, 1}));
  EXPECT_FALSE(journals_.HasEarlier({Run({2}, {4})}, 0, {0, 1})) << "of another place";
  EXPECT_FALSE(journals_.HasEarlier({Run({0}, {0})}, 1, {0}));
}

}  // namespace
}  // namespace syncline
