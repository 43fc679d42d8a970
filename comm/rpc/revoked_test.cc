#include "comm/rpc/revoked.h"

#include <atomic>
#include <cstdio>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Revoked : public ::testing::Test {
 protected:
  std::string Path() const { return folder_.File("revoked"); }
  // Like `certs revoke`: a new file replaces the old one.
  void Write(const std::string& contents) const {
    std::ofstream(Path() + ".new") << contents;
    std::rename((Path() + ".new").c_str(), Path().c_str());
  }
  absl::StatusOr<std::unique_ptr<RevokedList>> Open() {
    return RevokedList::Open({.path = Path(), .clock = &clock_});
  }

  TempDirectory folder_;
  FakeClock clock_;
};

TEST_F(Revoked, SerialsAreReadAsToolsWriteThem) {
  EXPECT_EQ(*ParseSerial("0A1B"), "0A1B");
  EXPECT_EQ(*ParseSerial("A1B"), "0A1B");
  EXPECT_EQ(*ParseSerial("00:0A:1B"), "0A1B");
  EXPECT_EQ(*ParseSerial("a1:b0"), "A1B0");
  for (const char* wrong : {"", "0", "0x12", "A1 ", "worker", ":"}) {
    EXPECT_FALSE(ParseSerial(wrong).ok()) << wrong;
  }
  EXPECT_FALSE(ParseSerial(std::string(41, '1')).ok());
}

TEST_F(Revoked, AFileHasASerialInEachLine) {
  EXPECT_THAT(*ParseRevoked("# for people\n\n 0A1B  worker of job 'x'\nff\t\n"),
              ElementsAre("0A1B", "FF"));
  EXPECT_THAT(std::string(ParseRevoked("0A\n\nbob\n").status().message()),
              HasSubstr("line 3: 'bob'"));
}

TEST_F(Revoked, WhatChangesIsSeenWithinASecond) {
  Write("");
  const auto list = Open();
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_FALSE((*list)->Contains("0A1B"));
  Write("0a1b taken back\n");
  EXPECT_FALSE((*list)->Contains("0A1B")) << "not looked at yet";
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE((*list)->Contains("0A1B"));
  EXPECT_FALSE((*list)->Contains("0A1C"));
  EXPECT_FALSE((*list)->Contains(""));
}

TEST_F(Revoked, AFileThatIsGoneOrDamagedGivesNothingBack) {
  Write("0A1B\n");
  const auto list = Open();
  ASSERT_TRUE(list.ok()) << list.status();
  for (const char* damage : {"", "nonsense\n"}) {
    std::remove(Path().c_str());
    if (*damage != 0) Write(damage);
    clock_.Advance(absl::Seconds(1));
    EXPECT_TRUE((*list)->Contains("0A1B")) << damage;
  }
  Write("FF\n");
  clock_.Advance(absl::Seconds(1));
  EXPECT_FALSE((*list)->Contains("0A1B"));
}

// scp writes into the existing file.
TEST_F(Revoked, AListThatIsBeingCopiedInPlaceGivesNothingBack) {
  const std::string whole = "# for people\n0A1B\nFF\n";
  Write(whole);
  const auto list = Open();
  ASSERT_TRUE(list.ok()) << list.status();
  for (const char* part : {"", "# for", "# for people\n0A", "# for people\n0A1B\nFF"}) {
    std::ofstream(Path(), std::ios::trunc) << part;
    clock_.Advance(absl::Seconds(1));
    EXPECT_TRUE((*list)->Contains("0A1B")) << part;
    EXPECT_TRUE((*list)->Contains("FF")) << part;
  }
  std::ofstream(Path(), std::ios::trunc) << "# for people\n0A1B\nEE\n";
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE((*list)->Contains("EE"));
  EXPECT_FALSE((*list)->Contains("FF"));
  Write("# none\n");
  clock_.Advance(absl::Seconds(1));
  EXPECT_FALSE((*list)->Contains("EE"));
}

TEST_F(Revoked, ManyAskWhileTheListChanges) {
  Write("AA\nBB\n");
  const auto list = Open();
  ASSERT_TRUE(list.ok()) << list.status();
  std::atomic<bool> ends = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      while (!ends) {
        if (!(*list)->Contains("AA") || (*list)->Contains("CC")) ++wrong;
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    Write(i % 2 == 0 ? "AA\n" : "AA\nBB\n");
    clock_.Advance(absl::Seconds(1));
    (*list)->Contains("BB");
  }
  ends = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE((*list)->Contains("BB"));
}

TEST_F(Revoked, AListThatIsNotThereIsAMistake) {
  EXPECT_EQ(FailureOf(Open().status()), Failure::kUsage);
  EXPECT_THAT(std::string(Open().status().message()), HasSubstr("--revoked"));
  for (const char* wrong : {"nonsense\n", "0A1B"}) {
    Write(wrong);
    EXPECT_EQ(FailureOf(Open().status()), Failure::kUsage) << wrong;
  }
  const auto none = RevokedList::Open({});
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE((*none)->Contains("0A1B"));
}

}  // namespace
}  // namespace syncline
