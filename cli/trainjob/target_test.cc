#include "cli/trainjob/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "comm/base/temp_directory.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::optional<TrainJobTarget>> From(
    std::map<std::string, std::string> variables) {
  return TrainJobTarget::From([&](const char* name) { return variables[name]; });
}

constexpr char kUrl[] = "KUBEFLOW_TRAINER_SERVER_URL";
constexpr char kToken[] = "KUBEFLOW_TRAINER_SERVER_TOKEN";

TEST(TrainJobTarget, IsNothingOutsideOfTrainJobs) {
  const auto target = From({{kToken, "/token"}});
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_FALSE(target->has_value());
}

TEST(TrainJobTarget, HasHostPathAndFiles) {
  const auto target = From({{kUrl, "https://trainer.kubeflow.svc:10443/apis/a/status"},
                            {kToken, "/run/token"},
                            {"KUBEFLOW_TRAINER_SERVER_CA_CERT", "/run/ca.crt"}});
  ASSERT_TRUE(target.ok() && target->has_value()) << target.status();
  EXPECT_EQ((*target)->origin, "https://trainer.kubeflow.svc:10443");
  EXPECT_EQ((*target)->path, "/apis/a/status");
  EXPECT_EQ((*target)->token_file, "/run/token");
  EXPECT_EQ((*target)->ca_file, "/run/ca.crt");
  EXPECT_EQ(From({{kUrl, "https://host"}, {kToken, "t"}}).value()->path, "/");
}

TEST(TrainJobTarget, NamesTheVariableThatIsWrong) {
  const auto refusal = [](std::map<std::string, std::string> variables) {
    const absl::Status refused = From(std::move(variables)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    return std::string(refused.message());
  };
  EXPECT_THAT(refusal({{kUrl, "http://host/x"}, {kToken, "t"}}),
              HasSubstr("must not travel in the clear"));
  EXPECT_THAT(refusal({{kUrl, "https://host/x"}}), HasSubstr("_TOKEN is not set"));
  for (const char* url : {"https:///x", "https://a b/x", "https://me:pw@host/x"}) {
    EXPECT_THAT(refusal({{kUrl, url}, {kToken, "t"}}), HasSubstr("names no host")) << url;
  }
  for (const char* url : {"https://host:99999999999/x", "https://host:/x",
                          "https://host:0", "https://[fd00::1]:65536/x"}) {
    EXPECT_THAT(refusal({{kUrl, url}, {kToken, "t"}}), HasSubstr("1 to 65535")) << url;
  }
  for (const char* url : {"https://[fd00::1]/x", "https://[fd00::1]:443/x"}) {
    EXPECT_TRUE(From({{kUrl, url}, {kToken, "t"}}).ok()) << url;
  }
}

TEST(TrainJobTarget, ReadsTheTokenAnew) {
  const TempDirectory directory;
  const TrainJobTarget target = {.token_file = directory.File("token")};
  const auto write = [&](const std::string& text) {
    std::ofstream(target.token_file, std::ios::binary) << text;
  };
  EXPECT_THAT(std::string(target.ReadToken().status().message()),
              HasSubstr("cannot be opened"));
  write("first\n");
  EXPECT_EQ(target.ReadToken().value(), "first");
  write("second");
  EXPECT_EQ(target.ReadToken().value(), "second");
  for (const std::string& none :
       {std::string(" \n"), std::string("a\r\nX-Evil: b"), std::string(20'000, 'x')}) {
    write(none);
    EXPECT_TRUE(absl::IsFailedPrecondition(target.ReadToken().status()));
  }
}

}  // namespace
}  // namespace syncline
