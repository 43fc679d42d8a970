// Tests of the table of a job's settings, with values as users write and read them.
#include "comm/job/job_settings.h"

#include <fstream>
#include <set>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

std::string Refusal(std::string_view name, const std::string& value) {
  JobSettings settings;
  const absl::Status refused = SetJobSetting(*FindJobSetting(name), value, settings);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(settings, JobSettings{}) << "a refused value changes nothing";
  return std::string(refused.message());
}

// For each setting a value that is not its default, as users write it.
const std::pair<std::string_view, std::string> kOthers[] = {
    {"push_codec", "int8"},         {"publish_codec", "fp32"},
    {"checkpoint_every", "10 min"}, {"checkpoint_keep", "7"},
    {"resume", "run12-step5000"},   {"durability", "disk"},
    {"goals", "step_p95_ms<=150"},  {"answers", "exclude_straggler,min_workers=2"},
    {"total_steps", "1000"}};

TEST(JobSettings, EachIsReadAndWrittenAlike) {
  std::set<std::string_view> tried;
  for (const auto& [name, value] : kOthers) {
    const JobSetting* setting = FindJobSetting(name);
    ASSERT_NE(setting, nullptr) << name;
    tried.insert(setting->name);
    JobSettings settings;
    EXPECT_TRUE(SetJobSetting(*setting, value, settings).ok()) << name;
    EXPECT_EQ(GetJobSetting(*setting, settings), value);
    EXPECT_NE(settings, JobSettings{}) << name;
    EXPECT_TRUE(CheckJobSettings(settings).ok()) << name;
    EXPECT_TRUE(SetJobSetting(*setting, "", settings).ok()) << name;
    EXPECT_EQ(settings, JobSettings{}) << "empty is the default";
  }
  EXPECT_EQ(tried.size(), kJobSettings.size()) << "a setting is missing in kOthers";
  EXPECT_EQ(FindJobSetting("durabilty"), nullptr);
}

TEST(JobSettings, DefaultsAreAllowed) {
  EXPECT_TRUE(CheckJobSettings({}).ok()) << CheckJobSettings({});
  EXPECT_EQ(FindDifference({}, {}), nullptr);
}

TEST(JobSettings, RefusalsSayWhatIsAllowed) {
  EXPECT_THAT(Refusal("answers", "exclude_straggler"), HasSubstr("needs min_workers=N"));
  EXPECT_EQ(Refusal("durability", "paper"),
            "durability is 'paper', allowed are none, disk, peer and disk+peer");
  for (const char* wrong : {"0", "10001", "-1", "three"}) {
    EXPECT_THAT(Refusal("checkpoint_keep", wrong),
                HasSubstr("allowed are whole numbers from 1 to 10000"));
  }
  EXPECT_THAT(Refusal("resume", "yesterday"), HasSubstr("run1-step500"));
  EXPECT_THAT(Refusal("checkpoint_every", "2 bananas"),
              HasSubstr("checkpoint_every: '2 bananas' does not say when to save"));
  EXPECT_THAT(Refusal("push_codec", "int3"), HasSubstr("push_codec"));
  EXPECT_THAT(Refusal("publish_codec", "int3"), HasSubstr("publish_codec"));
  EXPECT_THAT(Refusal("goals", "step_p95_ms>=150"), HasSubstr("step_p95_ms<=NUMBER"));
  EXPECT_THAT(Refusal("durability", "a\nb"), HasSubstr("'a\\x0ab'"));
}

// Values in messages are checked like those that users write.
TEST(JobSettings, ChecksValuesThatNobodyWrote) {
  EXPECT_THAT(std::string(CheckJobSettings({.checkpoint_keep = 0}).message()),
              HasSubstr("checkpoint_keep is '0'"));
  EXPECT_THAT(
      std::string(CheckJobSettings({.checkpoint_every = {.seconds = -1}}).message()),
      HasSubstr("checkpoint_every is 0 steps or -1 s: out of range"));
  EXPECT_FALSE(CheckJobSettings({.push_codec = ""}).ok());
  EXPECT_FALSE(CheckJobSettings({.durability = ""}).ok());
}

TEST(JobSettings, DifferOnlyWhereTheyMeanSomethingElse) {
  const JobSettings ours = {.push_codec = "topk:ratio=0.01,min_elements=5"};
  JobSettings theirs = {.push_codec = "topk:min_elements=5,ratio=0.01", .goals = ""};
  EXPECT_EQ(FindDifference(ours, theirs), nullptr);
  theirs.durability = "peer";
  ASSERT_NE(FindDifference(ours, theirs), nullptr);
  EXPECT_EQ(FindDifference(ours, theirs)->name, "durability");
  theirs.checkpoint_keep = 4;
  EXPECT_EQ(FindDifference(ours, theirs)->name, "checkpoint_keep") << "the first";
}

TEST(JobSettings, NamesAreThoseOfFlagsAndVariables) {
  const JobSetting& keep = *FindJobSetting("checkpoint_keep");
  EXPECT_EQ(FlagOf(keep), "--checkpoint-keep");
  EXPECT_EQ(VariableOf(keep), "SYNCLINE_CHECKPOINT_KEEP");
  std::set<std::string_view> names, options;
  for (const JobSetting& setting : kJobSettings) {
    EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
    EXPECT_TRUE(options.insert(setting.option).second) << setting.option;
    EXPECT_FALSE(setting.meaning.empty()) << setting.name;
  }
  EXPECT_EQ(FindJobSetting("push_codec")->option, "push");
}

TEST(JobSettings, ThePageHasTheTable) {
  std::ifstream file(SETTINGS_PAGE);
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_THAT(page.str(), HasSubstr(JobSettingsTable()))
      << "put this table into docs/settings.md";
}

}  // namespace
}  // namespace syncline
