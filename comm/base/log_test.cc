#include "comm/base/log.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

nlohmann::json OnlyLine(const std::ostringstream& stream) {
  const std::string text = stream.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  return nlohmann::json::parse(text);
}

TEST(Logger, JsonLineHasTimeLevelMessageAndTypedFields) {
  std::ostringstream stream;
  const Logger log = Logger::Create({.format = LogFormat::kJson, .stream = &stream})
                         .With({{"role", "server"}, {"rank", 1}});
  log.Warning("epoch begins",
              {{"epoch", uint64_t{4}}, {"seconds", 0.5}, {"reason", "a \"b\" {}"}});
  const nlohmann::json line = OnlyLine(stream);
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["msg"], "epoch begins");
  EXPECT_EQ(line["role"], "server");
  EXPECT_EQ(line["rank"], 1);
  EXPECT_EQ(line["epoch"], 4);
  EXPECT_EQ(line["seconds"], 0.5);
  EXPECT_EQ(line["reason"], "a \"b\" {}");
  EXPECT_THAT(line["ts"].get<std::string>(), EndsWith("Z"));
}

TEST(Logger, JsonSurvivesBytesThatAreNotUtf8AndNumbersThatAreNotJson) {
  std::ostringstream stream;
  const Logger log = Logger::Create({.format = LogFormat::kJson, .stream = &stream});
  log.Info("name \xff\n", {{"loss", std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_EQ(OnlyLine(stream)["loss"], "nan");
}

TEST(Logger, TextLineIsOneLineWithQuotedFields) {
  std::ostringstream stream;
  const Logger log = Logger::Create({.stream = &stream}).With({{"rank", 2}});
  log.Info("left\nforged", {{"reason", "silent for 5s"}, {"kind", "worker"}});
  EXPECT_THAT(
      stream.str(),
      EndsWith(" info left forged rank=2 reason=\"silent for 5s\" kind=worker\n"));
}

TEST(Logger, DropsWhatIsBelowItsLevel) {
  std::ostringstream stream;
  const Logger log = Logger::Create({.level = LogLevel::kWarning, .stream = &stream});
  EXPECT_FALSE(log.Enabled(LogLevel::kInfo));
  log.Debug("no");
  log.Info("no");
  EXPECT_THAT(stream.str(), IsEmpty());
  log.Error("yes");
  EXPECT_THAT(stream.str(), HasSubstr("yes"));
}

TEST(Logger, WithLeavesTheOriginalAlone) {
  std::ostringstream stream;
  const Logger log = Logger::Create({.stream = &stream});
  const Logger bound = log.With({{"rank", 2}});
  log.Info("plain");
  EXPECT_THAT(stream.str(), Not(HasSubstr("rank")));
}

TEST(Logger, DefaultConstructedDropsEverything) {
  const Logger log;
  EXPECT_FALSE(log.Enabled(LogLevel::kError));
  log.With({{"a", 1}}).Error("nowhere");
}

TEST(Logger, LevelAndFormatNamesAreCheckedWithTheValidOnesNamed) {
  EXPECT_EQ(*ParseLogLevel("debug"), LogLevel::kDebug);
  EXPECT_EQ(*ParseLogFormat("json"), LogFormat::kJson);
  EXPECT_THAT(std::string(ParseLogLevel("loud").status().message()),
              HasSubstr("warning"));
  EXPECT_THAT(std::string(ParseLogFormat("xml").status().message()),
              HasSubstr("text or json"));
}

TEST(Logger, AFunctionTakesLevelAndLineInPlaceOfAStream) {
  std::vector<std::pair<LogLevel, std::string>> lines;
  const Logger log =
      Logger::Create({.level = LogLevel::kInfo,
                      .function = [&](LogLevel level, const std::string& line) {
                        lines.emplace_back(level, line);
                      }});
  log.Debug("unseen");
  log.Info("waits", {{"rank", 3}});
  log.Warning("careful {}");
  log.Error("over");
  EXPECT_THAT(lines,
              ::testing::ElementsAre(::testing::Pair(LogLevel::kInfo, "waits rank=3"),
                                     ::testing::Pair(LogLevel::kWarning, "careful {}"),
                                     ::testing::Pair(LogLevel::kError, "over")));
}

}  // namespace
}  // namespace syncline
