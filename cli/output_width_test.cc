#include "cli/output_width.h"

#include <unistd.h>

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using Align = WordTable::Column::Align;

TEST(OutputWidth, IsWhatColumnsSaysWhereThereIsNoTerminal) {
  if (isatty(STDOUT_FILENO) != 0) GTEST_SKIP() << "run by hand";
  setenv("COLUMNS", "80", 1);
  EXPECT_EQ(OutputColumns(), 80u);
  setenv("COLUMNS", "wide", 1);
  EXPECT_EQ(OutputColumns(), 0u);
  unsetenv("COLUMNS");
  EXPECT_EQ(OutputColumns(), 0u);
}

TEST(OutputWidth, BreaksLinesBetweenWordsAndNeverInside) {
  EXPECT_EQ(BrokenLine("one two three", 0, 2), "one two three");
  EXPECT_EQ(BrokenLine("one two three", 13, 2), "one two three");
  EXPECT_EQ(BrokenLine("one two three", 12, 2), "one two\n  three");
  EXPECT_EQ(BrokenLine("one two three", 7, 2), "one two\n  three");
  EXPECT_EQ(BrokenLine("  one  a-very-long-name b", 8, 2),
            "  one\n  a-very-long-name\n  b");
  EXPECT_EQ(BrokenLine("a-very-long-name", 8, 2), "a-very-long-name");
  EXPECT_EQ(BrokenLine("", 8, 2), "");
  EXPECT_EQ(BrokenLine("one two   ", 7, 2), "one two   ") << "nothing is left to show";
  EXPECT_EQ(BrokenLines("one two\n\nthree four\n", 7, 1), "one two\n\nthree\n four\n");
}

TEST(OutputWidth, CountsCharactersAndNotBytes) {
  const std::string word = "\xc3\xa4\xc3\xb6\xc3\xbc";  // three characters
  EXPECT_EQ(BrokenLine(word + " " + word, 7, 0), word + " " + word);
  EXPECT_EQ(BrokenLine(word + " " + word, 6, 1), word + "\n " + word);
  WordTable table({{"NAME"}, {"STATE"}});
  table.Add({word, "x"});
  table.Add({"abcd", "y"});
  EXPECT_EQ(table.Written(0), "NAME  STATE\n" + word + "   x\nabcd  y\n");
}

TEST(OutputWidth, FitsWordsOfAnyCharactersIntoColumns) {
  const std::string word = "\xc3\xa4\xc3\xb6\xc3\xbc";  // three characters
  EXPECT_EQ(CharactersOf(word + "a"), 4u);
  EXPECT_EQ(Clipped(word, 2), "\xc3\xa4\xc3\xb6");
  EXPECT_EQ(Clipped(word, 4), word);
  EXPECT_EQ(Padded(word, 5), word + "  ");
  EXPECT_EQ(Padded(word, 2), word);
  EXPECT_EQ(Fitted("abc" + word, 4), "abc\xc3\xa4");
  EXPECT_EQ(FittedAtEnd("abcd" + word, 5), ".." + word);
  EXPECT_EQ(FittedAtEnd(word, 4), word + " ");
}

TEST(OutputWidth, ATableLeavesOutWhatMattersLeastAndKeepsNames) {
  WordTable table({{"RANK"},
                   {"NAME"},
                   {"LIFE", Align::kRight, 2},
                   {"BYTES", Align::kRight, 1},
                   {"STATE"}});
  table.Add({"0", "host:17", "1", "12 MB", "working"});
  table.Add({"1", "another-host:18", "2", "1 GB", "waiting"});
  EXPECT_EQ(table.Written(0),
            "RANK  NAME             LIFE  BYTES  STATE\n"
            "0     host:17             1  12 MB  working\n"
            "1     another-host:18     2   1 GB  waiting\n");
  EXPECT_EQ(table.Written(43), table.Written(0));
  EXPECT_EQ(table.Written(42),
            "RANK  NAME             BYTES  STATE\n"
            "0     host:17          12 MB  working\n"
            "1     another-host:18   1 GB  waiting\n");
  EXPECT_EQ(table.Written(31),
            "RANK  NAME             STATE\n"
            "0     host:17          working\n"
            "1     another-host:18  waiting\n");
  EXPECT_EQ(table.Written(24),
            "RANK  NAME\n        STATE\n"
            "0     host:17\n        working\n"
            "1     another-host:18\n        waiting\n");
}

TEST(OutputWidth, LongWordsStandBelowEachOtherInTheirColumn) {
  WordTable table({{"SERVER"}, {"LANES"}});
  table.Add({"0", "shared memory in this host, TLS 1.3 to others"});
  EXPECT_EQ(table.Written(36),
            "SERVER  LANES\n"
            "0       shared memory in this host,\n"
            "        TLS 1.3 to others\n");
}

}  // namespace
}  // namespace syncline
