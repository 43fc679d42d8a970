#include "cli/shown_command.h"

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace syncline {
namespace {

std::string CommandLine() {
  std::ifstream file("/proc/self/cmdline");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str().c_str();
}

TEST(ShownCommand, OfAChildIsAnotherOne) {
  const std::string before = CommandLine();
  const ShownCommand shown = ShownCommand::OfThisProcess();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    shown.Become("guard");
    _exit(CommandLine() == "guard" ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(CommandLine(), before) << "its parent keeps its own";
}

TEST(ShownCommand, IsCutToTheLengthOfWhatWasThere) {
  const ShownCommand shown = ShownCommand::OfThisProcess();
  const std::string title(1 << 20, 'x');
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    shown.Become(title.c_str());
    const std::string cut = CommandLine();
    _exit(!cut.empty() && cut == title.substr(0, cut.size()) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace syncline
