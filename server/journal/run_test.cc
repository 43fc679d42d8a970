// Where journals are: which run is found, and which folders are not runs.
#include "server/journal/run.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/folder.h"
#include "server/journal/journal.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JournalRuns : public ::testing::Test {
 protected:
  // Writes a run of one segment without records.
  std::string Write(const std::string& run, int64_t created_unix_ms) {
    const std::string folder = directory_.path() + "/night/" + run;
    EXPECT_TRUE(MakeFolder(folder).ok());
    std::string path = folder + "/" + SegmentName(0, 1);
    EXPECT_TRUE(
        SegmentWriter::Create(path, {.job = "night", .created_unix_ms = created_unix_ms})
            .ok());
    return path;
  }
  absl::StatusOr<JournalRun> Find(const std::string& name = "") {
    return FindRun({directory_.path(), directory_.path() + "/none"}, "night", name);
  }

  TempDirectory directory_;
};

TEST_F(JournalRuns, TheLastIsFoundOrTheOneThatIsNamed) {
  Write("a", 2000);
  Write("b", 1000);
  EXPECT_EQ(Find()->name, "a");
  EXPECT_EQ(Find()->Describe(), "a, begun 1970-01-01T00:00:02+00:00");
  EXPECT_THAT(Find()->others, ElementsAre("b, begun 1970-01-01T00:00:01+00:00"));
  EXPECT_EQ(Find("b")->name, "b");
  EXPECT_THAT(Find("c").status().ToString(), HasSubstr("no run 'c' of job 'night'"));
  EXPECT_THAT(Find("c").status().ToString(), HasSubstr("b, begun 1970"));
}

TEST_F(JournalRuns, OneThatIsDamagedIsSaidAndStopsNoOther) {
  Write("a", 1000);
  const std::string damaged = Write("b", 2000);
  {  // of a newer format
    std::fstream file(damaged, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8);
    file.put(99);
  }
  ASSERT_TRUE(Find().ok()) << Find().status();
  EXPECT_EQ(Find()->name, "a");
  EXPECT_THAT(Find()->others, ElementsAre(HasSubstr(damaged)));
  EXPECT_THAT(Find("b").status().ToString(), HasSubstr("use a newer Syncline"));
}

// A running server has deleted the segment since it was listed. Here it never existed.
TEST_F(JournalRuns, AnotherShardsSegmentThatIsGoneByNowStopsNoRestore) {
  Write("a", 1000);
  const std::string folder = directory_.path() + "/night/a/";
  std::filesystem::rename(folder + SegmentName(0, 1), folder + SegmentName(1, 1));
  std::filesystem::create_symlink("nowhere", folder + SegmentName(0, 1));
  ASSERT_TRUE(Find("a").ok()) << Find("a").status();
  EXPECT_EQ(Find("a")->head.created_unix_ms, 1000);
}

TEST_F(JournalRuns, APlaceThatCannotBeReadIsNoEmptyOne) {
  std::ofstream(directory_.File("night")) << "a file is not a directory";
  EXPECT_THAT(Find().status().ToString(), HasSubstr("cannot list " + directory_.path()));
}

TEST_F(JournalRuns, ARunIsMissedUntilItIsSettled) {
  const std::string segment = Write("a", 1000);
  const JournalRun run = *Find();
  EXPECT_FALSE(IsSettled(run));
  ASSERT_TRUE(Settle(run, "checkpoint run1-step7 has its last step").ok());
  EXPECT_TRUE(IsSettled(run));
  EXPECT_EQ(Find()->name, "a") << "it can still be played";
  std::ifstream file(directory_.path() + "/night/a/settled");
  std::string said;
  std::getline(file, said);
  EXPECT_EQ(said, "checkpoint run1-step7 has its last step");
  Write("b", 2000);
  EXPECT_FALSE(IsSettled(*Find()));
}

TEST_F(JournalRuns, OneWithoutARecordIsNotMissed) {
  Write("a", 1000);
  const auto has_records = HasRecords(*Find());
  ASSERT_TRUE(has_records.ok()) << has_records.status();
  EXPECT_FALSE(*has_records);
}

TEST_F(JournalRuns, WhatAServerWritesIsLocked) {
  Write("a", 1000);
  const JournalRun run = *Find();
  {
    const auto mine = LockRun(run);
    ASSERT_TRUE(mine.ok()) << mine.status();
    const auto second = LockRun(run);
    EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
    EXPECT_THAT(second.status().ToString(), HasSubstr("has not ended"));
  }
  EXPECT_TRUE(LockRun(run).ok());
}

TEST(JournalFolders, WhereNoFilesCanBeNoJobBegins) {
  const TempDirectory directory;
  const std::string file = directory.File("journal");
  std::ofstream(file) << "a file is not a directory";
  Journal journal({.directory = file});
  const absl::Status begun = journal.Begin({.job = 7, .head = {.job = "night"}});
  EXPECT_THAT(begun.ToString(), HasSubstr(file));
  EXPECT_FALSE(journal.State(7));
}

}  // namespace
}  // namespace syncline
