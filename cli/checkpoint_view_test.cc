#include "cli/checkpoint_view.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::SizeIs;

const absl::Time kWhen = absl::FromUnixSeconds(1795442700);  // 2026-11-23 14:05 UTC

CheckpointInfo Info(const std::string& job, CheckpointName name, uint64_t bytes) {
  return {.folder = job,
          .name = name,
          .is_complete = name.step != 7,
          .bytes = bytes,
          .written = kWhen};
}

TEST(CheckpointTable, ShowsWhenHowLargeAndWhetherItIsComplete) {
  const std::vector<CheckpointInfo> all = {Info("bert", {1, 500}, 402'100'000),
                                           Info("bert", {12, 7}, 999)};
  EXPECT_EQ(CheckpointTable(all, absl::UTCTimeZone()),
            "JOB       CHECKPOINT    WRITTEN                SIZE  STATE\n"
            "bert      run1-step500  2026-11-23 14:05   402.1 MB  complete\n"
            "bert      run12-step7   2026-11-23 14:05      999 B  unfinished\n");
}

TEST(CheckpointTable, FitsIntoEightyColumnsAndKeepsTheEndsOfLongNames) {
  const std::vector<CheckpointInfo> all = {
      Info(std::string(100, 'x') + "-lr3", {1234, 123456789}, 402'100'000),
      Info("\u00fc\u00fc", {1, 7}, 5)};
  const std::string table = CheckpointTable(all, absl::UTCTimeZone());
  EXPECT_THAT(table, HasSubstr("x-lr3  run1234-step123456789"));
  std::string ascii;
  for (const char byte : table) {
    if ((static_cast<unsigned char>(byte) & 0xC0) != 0x80) ascii += byte;
  }
  const std::vector<std::string> lines = absl::StrSplit(ascii, '\n');
  EXPECT_THAT(lines, Each(SizeIs(Le(80))));
}

TEST(CheckpointTable, ShowsNoControlCharacterOfAnybody) {
  const std::vector<CheckpointInfo> all = {
      Info("a\033[2Jb\x9b"
           "c\u202e",
           {1, 5}, 5)};
  Manifest manifest = {.job = "job\033]0;x\007", .name = {1, 5}};
  manifest.tensors = {{.name = "w\nfrozen\033[31m", .shape = {2}}};
  manifest.push_codec = "fp32\r";
  manifest.training.optimizer.name = "sgd\b";
  for (const std::string& shown :
       {CheckpointTable(all, absl::UTCTimeZone()), CheckpointJson(all),
        ManifestTable(manifest, all[0], absl::UTCTimeZone()), ManifestJson(manifest)}) {
    for (const char byte : shown) {
      EXPECT_TRUE(byte == '\n' || (byte >= ' ' && byte < 0x7F)) << shown;
    }
  }
  EXPECT_THAT(ManifestTable(manifest, all[0], absl::UTCTimeZone()),
              HasSubstr("w\\x0afrozen\\x1b[31m  [2]"));
}

TEST(CheckpointJson, SaysTheTimeInUtc) {
  const std::vector<CheckpointInfo> all = {Info("bert", {1, 500}, 1000)};
  EXPECT_THAT(CheckpointJson(all), HasSubstr(R"("written": "2026-11-23T14:05:00Z")"));
  EXPECT_EQ(CheckpointJson({}), "[]\n");
}

}  // namespace
}  // namespace syncline
