#include "cli/completion.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/run.h"
#include "cli/serve.h"
#include "cli/status.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

class Completion : public testing::Test {
 protected:
  Completion() {
    AddServe(app_, &selected_);
    AddRun(app_, &selected_);
    AddStatus(app_, &selected_);
    CLI::App* bench = app_.add_subcommand("bench", "Measure");
    bench->add_subcommand("codec", "It's one")->add_option("--elements", "How many");
    bench->add_subcommand("optimizer", "Another");
  }

  std::string Script(const std::string& shell) const {
    const auto script = CompletionScript(app_, shell);
    EXPECT_TRUE(script.ok()) << script.status();
    return script.ok() ? *script : "";
  }

  // Returns what bash offers after `words`, of which the last is incomplete.
  std::string Offers(const std::string& words) const {
    const TempDirectory directory;
    std::ofstream(directory.File("try.sh"))
        << Script("bash") << "COMP_WORDS=(syncline " << words
        << ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_syncline\necho "
           "\"${COMPREPLY[@]}\"\n";
    FILE* pipe =
        popen(absl::StrCat("bash ", directory.File("try.sh"), " 2>&1").c_str(), "r");
    std::string text;
    for (int c = 0; (c = fgetc(pipe)) != EOF && c != '\n';) {
      text.push_back(static_cast<char>(c));
    }
    pclose(pipe);
    return text;
  }

  // Checks that `shell` accepts the script, if it is installed.
  void ExpectTakenBy(const std::string& shell) const {
    if (std::system(absl::StrCat("command -v ", shell, " >/dev/null").c_str()) != 0) {
      GTEST_SKIP() << "SKIPPED: no " << shell << ", its completion is not tried";
    }
    const TempDirectory directory;
    std::ofstream(directory.File("script")) << Script(shell);
    EXPECT_EQ(std::system(absl::StrCat(shell, " -n ", directory.File("script")).c_str()),
              0);
  }

  CLI::App app_{"Syncline", "syncline"};
  Command selected_;
};

TEST_F(Completion, OffersCommandsAndTheirFlagsInBash) {
  EXPECT_EQ(Offers("''"), "serve run status bench");
  EXPECT_EQ(Offers("s"), "serve status");
  EXPECT_EQ(Offers("bench ''"), "codec optimizer");
  EXPECT_EQ(Offers("bench codec --el"), "--elements");
  EXPECT_EQ(Offers("serve --listen 1:1 --admin-l"), "--admin-listen");
  EXPECT_EQ(Offers("run --rdzv-e"), "--rdzv-endpoint");
}

TEST_F(Completion, OffersTheValuesOfAFlagInBash) {
  EXPECT_EQ(Offers("serve --role ''"), "all coordinator server");
  EXPECT_EQ(Offers("status -o j"), "json");
  EXPECT_EQ(Offers("status --j"), "--json");
}

TEST_F(Completion, LeavesTheProgramOfALaunchToBash) {
  EXPECT_EQ(Offers("run --workers 2 -- train --w"), "");
}

TEST_F(Completion, NamesEveryFlagForEveryShell) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = Script(shell);
    for (const char* name :
         {"failure-timeout", "admin-listen", "elements", "optimizer"}) {
      EXPECT_THAT(script, HasSubstr(name)) << shell;
    }
  }
  EXPECT_THAT(Script("fish"), HasSubstr("-d 'It'\\''s one'"));
}

TEST_F(Completion, IsTakenByBash) { ExpectTakenBy("bash"); }
TEST_F(Completion, IsTakenByZsh) { ExpectTakenBy("zsh"); }
TEST_F(Completion, IsTakenByFish) { ExpectTakenBy("fish"); }

TEST_F(Completion, RefusesOtherShells) {
  EXPECT_EQ(FailureOf(CompletionScript(app_, "").status()), Failure::kUsage);
  EXPECT_THAT(std::string(CompletionScript(app_, "tcsh").status().message()),
              HasSubstr("bash, zsh and fish"));
}

}  // namespace
}  // namespace syncline
