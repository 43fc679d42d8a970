#include "cli/worker_program.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WorkerProgram : public testing::Test {
 protected:
  void SetUp() override { unsetenv("PYTHON_EXEC"); }
  void TearDown() override { unsetenv("PYTHON_EXEC"); }

  std::string File(const std::string& name, std::filesystem::perms permissions) {
    const std::string path = directory_.File(name);
    std::ofstream(path) << "pass\n";
    std::filesystem::permissions(path, permissions);
    return path;
  }

  static std::vector<std::string> Command(const std::vector<std::string>& words,
                                          ProgramKind kind = ProgramKind::kGuess) {
    const auto command = ProgramCommand(words, kind);
    EXPECT_TRUE(command.ok()) << command.status();
    return command.value_or(std::vector<std::string>{});
  }

  const TempDirectory directory_;
  const std::string script_ = File("train.py", std::filesystem::perms::owner_read);
};

TEST_F(WorkerProgram, StartsAScriptByPythonWithoutBuffering) {
  EXPECT_THAT(Command({script_, "--lr", "0.1"}),
              ElementsAre("python3", "-u", script_, "--lr", "0.1"));
  setenv("PYTHON_EXEC", "/opt/venv/bin/python", 1);
  EXPECT_THAT(Command({script_}), ElementsAre("/opt/venv/bin/python", "-u", script_));
  setenv("PYTHON_EXEC", "", 1);
  EXPECT_THAT(Command({script_}), ElementsAre("python3", "-u", script_));
}

TEST_F(WorkerProgram, FindsAScriptOfTheWorkingDirectoryByItsName) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory_.path());
  const auto command = ProgramCommand({"train.py"}, ProgramKind::kGuess);
  std::filesystem::current_path(before);
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_THAT(*command, ElementsAre("python3", "-u", "train.py"));
}

TEST_F(WorkerProgram, LeavesPrograms) {
  const std::string executable = File("run.py", std::filesystem::perms::owner_all);
  EXPECT_THAT(Command({executable, "x"}), ElementsAre(executable, "x"))
      << "its first line names an interpreter";
  EXPECT_THAT(Command({"python", script_}), ElementsAre("python", script_));
  EXPECT_THAT(Command({"./no/such/trainer"}), ElementsAre("./no/such/trainer"))
      << "the launcher says so";
  EXPECT_THAT(Command({script_}, ProgramKind::kAsIs), ElementsAre(script_));
  EXPECT_THAT(Command({}), ElementsAre());
}

TEST_F(WorkerProgram, StartsModulesAndFilesOfOtherNames) {
  EXPECT_THAT(Command({"package.train", "-x"}, ProgramKind::kModule),
              ElementsAre("python3", "-u", "-m", "package.train", "-x"));
  const std::string other = File("train", std::filesystem::perms::owner_read);
  EXPECT_THAT(Command({other}, ProgramKind::kScript),
              ElementsAre("python3", "-u", other));
}

TEST_F(WorkerProgram, NamesAScriptThatIsNotThere) {
  for (const char* name : {"/no/such/train.py", "no_such_train.py"}) {
    const auto command = ProgramCommand({name}, ProgramKind::kGuess);
    EXPECT_EQ(FailureOf(command.status()), Failure::kUsage);
    EXPECT_THAT(std::string(command.status().message()),
                HasSubstr(absl::StrCat("there is no script '", name, "'")));
  }
}

TEST_F(WorkerProgram, FollowsTheFlagsOfTorchrun) {
  EXPECT_EQ(*KindOfProgram({}), ProgramKind::kGuess);
  EXPECT_EQ(*KindOfProgram({.module = true}), ProgramKind::kModule);
  EXPECT_EQ(*KindOfProgram({.no_python = true}), ProgramKind::kAsIs);
  EXPECT_EQ(*KindOfProgram({.no_python = true, .run_path = true}), ProgramKind::kScript);
  const auto both = KindOfProgram({.module = true, .no_python = true});
  EXPECT_EQ(FailureOf(both.status()), Failure::kUsage);
  EXPECT_THAT(std::string(both.status().message()), HasSubstr("drop -m, or --no-python"));
}

}  // namespace
}  // namespace syncline
