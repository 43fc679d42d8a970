#include "cli/app.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/flags.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Adds a subcommand with one flag of each kind, which prints the flags that it got.
void AddSample(CLI::App& app, Command* selected) {
  struct Options {
    int workers = 1;
    std::string failure_timeout = "10s";
    bool insecure = false;
    OutputFormat format = OutputFormat::kTable;
    std::vector<std::string> program;
  };
  auto options = std::make_shared<Options>();
  CLI::App* sample = app.add_subcommand("sample", "For tests");
  sample->add_option("program", options->program, "Program");
  sample->add_option("--workers", options->workers, "Workers");
  sample->add_option("--failure-timeout,--timeout", options->failure_timeout, "Timeout");
  sample->add_flag("--insecure", options->insecure, "Insecure");
  AddOutputFlag(*sample, &options->format);
  sample->callback([=] {
    *selected = [options]() -> absl::StatusOr<int> {
      if (options->format == OutputFormat::kJson) printf("json ");
      printf("%d %s %d [%s]\n", options->workers, options->failure_timeout.c_str(),
             options->insecure ? 1 : 0, absl::StrJoin(options->program, "|").c_str());
      fflush(stdout);
      return kExitDone;
    };
  });
}

// Adds a subcommand that takes no program.
void AddPlain(CLI::App& app, Command* selected) {
  auto format = std::make_shared<std::string>("text");
  CLI::App* plain = app.add_subcommand("plain", "For tests");
  plain->add_option("--format", *format, "Format");
  plain->callback([=] {
    *selected = [format]() -> absl::StatusOr<int> {
      printf("%s\n", format->c_str());
      fflush(stdout);
      return kExitDone;
    };
  });
}

void AddFailing(CLI::App& app, Command* selected) {
  app.add_subcommand("failing", "For tests")->callback([=] {
    *selected = []() -> absl::StatusOr<int> {
      return WithFailure(absl::UnavailableError("127.0.0.1:7070 is in use\nstop it"),
                         Failure::kPortInUse);
    };
  });
}

class App : public testing::Test {
 protected:
  int Run(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "syncline");
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const AddCommand commands[] = {AddSample, AddFailing, AddPlain};
    const int code = RunApp(arguments, commands);
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }

  std::string WriteConfig(const std::string& text) {
    const std::string path = directory_.File("config.yaml");
    std::ofstream(path) << text;
    return path;
  }

  void TearDown() override {
    unsetenv("SYNCLINE_WORKERS");
    unsetenv("SYNCLINE_FAILURE_TIMEOUT");
    unsetenv("SYNCLINE_INSECURE");
  }

  const TempDirectory directory_;
  std::string out_;
  std::string err_;
};

TEST_F(App, PrefersFlagThenEnvironmentThenFileThenDefault) {
  EXPECT_EQ(Run({"sample"}), 0);
  EXPECT_EQ(out_, "1 10s 0 []\n");
  const std::string config =
      WriteConfig("workers: 2\nfailure-timeout: 2s\ninsecure: true\n");
  EXPECT_EQ(Run({"sample", "--config", config.c_str()}), 0);
  EXPECT_EQ(out_, "2 2s 1 []\n");
  setenv("SYNCLINE_WORKERS", "3", 1);
  setenv("SYNCLINE_FAILURE_TIMEOUT", "3s", 1);
  EXPECT_EQ(Run({"sample", "--config", config.c_str()}), 0);
  EXPECT_EQ(out_, "3 3s 1 []\n");
  EXPECT_EQ(Run({"sample", "--config", config.c_str(), "--workers", "4", "--timeout=4s"}),
            0);
  EXPECT_EQ(out_, "4 4s 1 []\n");
}

TEST_F(App, TreatsAnEmptyVariableAsUnset) {
  setenv("SYNCLINE_WORKERS", "", 1);
  EXPECT_EQ(Run({"sample"}), 0);
  EXPECT_EQ(out_, "1 10s 0 []\n");
}

TEST_F(App, WarnsOfAMisspelledVariable) {
  setenv("SYNCLINE_FAILURE_TIMEOT", "3s", 1);
  setenv("SYNCLINE_WORKERS_PORT", "tcp://10.0.0.1:1", 1);
  setenv("SYNCLINE_SOMETHING_ELSE", "1", 1);
  EXPECT_EQ(Run({"sample"}), 0);
  for (const char* name :
       {"SYNCLINE_FAILURE_TIMEOT", "SYNCLINE_WORKERS_PORT", "SYNCLINE_SOMETHING_ELSE"}) {
    unsetenv(name);
  }
  EXPECT_EQ(
      err_,
      "syncline: warning: SYNCLINE_FAILURE_TIMEOT is not a setting and has no effect; "
      "did you mean SYNCLINE_FAILURE_TIMEOUT?\n");
  EXPECT_EQ(out_, "1 10s 0 []\n");
}

TEST_F(App, SaysWhatIsWrongWithAFlagInItsOwnWords) {
  EXPECT_EQ(Run({"sample", "--workers=many"}), kExitUsage);
  EXPECT_EQ(err_,
            "syncline: error: --workers 'many' is not a whole number; see syncline "
            "sample --help\n");
  EXPECT_EQ(Run({"sample", "--workers"}), kExitUsage);
  EXPECT_EQ(err_,
            "syncline: error: --workers needs a value: Workers; see syncline sample "
            "--help\n");
  EXPECT_EQ(Run({"sample", "--timeout", "1s", "--timeout", "2s"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--timeout is given 2 times; keep one"));
  EXPECT_EQ(Run({"sample", "--output", "xml"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--output 'xml' is not a valid value: table or json"));
  EXPECT_EQ(Run({"sample", "--workers", "1", "2\x1b[31m"}), 0);
  EXPECT_EQ(Run({"failing", "x\x1b"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("'x\\x1b' is not expected here; see syncline failing"));
}

TEST_F(App, ShowsItsVersionInALine) {
  EXPECT_EQ(Run({"--version"}), 0);
  EXPECT_THAT(out_, StartsWith("syncline " SYNCLINE_VERSION " (git "));
  EXPECT_THAT(out_, testing::EndsWith(")\n"));
}

TEST_F(App, LeavesTheProgramsArgumentsAlone) {
  EXPECT_EQ(
      Run({"sample", "--workers", "2", "--", "train", "--workers", "9", "--", "-x"}), 0);
  EXPECT_EQ(out_, "2 10s 0 [train|--workers|9|--|-x]\n");
  EXPECT_EQ(
      Run({"sample", "--insecure", "--workers=2", "train.py", "--lr", "0.1", "failing"}),
      0);
  EXPECT_EQ(out_, "2 10s 1 [train.py|--lr|0.1|failing]\n");
}

TEST_F(App, TakesUnderscoresForDashesBeforeAProgram) {
  EXPECT_EQ(Run({"sample", "--failure_timeout", "2s", "train", "--failure_timeout=3"}),
            0);
  EXPECT_EQ(out_, "1 2s 0 [train|--failure_timeout=3]\n");
  EXPECT_EQ(Run({"sample", "--failure_timeout=2s", "--", "--failure_timeout"}), 0);
  EXPECT_EQ(out_, "1 2s 0 [--failure_timeout]\n");
  EXPECT_EQ(Run({"sample", "--failure_timout=2s"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("unknown flag --failure_timout; did you mean "));
}

// PET_ is the prefix of torchrun's variables. A service does not read them, though some
// of its flags have the same names.
TEST_F(App, TakesTheVariablesOfTorchrunForWhatStartsAProgram) {
  const std::string config = WriteConfig("timeout: 9s\n");
  setenv("PET_TIMEOUT", "4s", 1);
  setenv("PET_WORKERS", "3", 1);
  EXPECT_EQ(Run({"sample", "--config", config.c_str()}), 0);
  EXPECT_EQ(out_, "3 4s 0 []\n");
  EXPECT_EQ(Run({"sample", "--workers", "2"}), 0);
  EXPECT_EQ(out_, "2 4s 0 []\n");
  setenv("SYNCLINE_FAILURE_TIMEOUT", "5s", 1);
  EXPECT_EQ(Run({"sample"}), 0);
  EXPECT_EQ(out_, "3 5s 0 []\n");
  setenv("PET_WORKERS", "many", 1);
  EXPECT_EQ(Run({"sample"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("PET_WORKERS: 'many' is not a valid value of --workers"));
  setenv("PET_WORKERS", "", 1);
  EXPECT_EQ(Run({"sample"}), 0);
  EXPECT_EQ(out_, "1 5s 0 []\n");
  setenv("PET_FORMAT", "json", 1);
  EXPECT_EQ(Run({"plain"}), 0);
  EXPECT_EQ(out_, "text\n");
  for (const char* name : {"PET_TIMEOUT", "PET_WORKERS", "PET_FORMAT"}) unsetenv(name);
}

TEST_F(App, NamesTheNearestFlag) {
  EXPECT_EQ(Run({"sample", "--wrokers", "2"}), kExitUsage);
  EXPECT_EQ(err_, "syncline: error: unknown flag --wrokers; did you mean --workers?\n");
  EXPECT_EQ(Run({"sample", "--failure-timout=2s"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("did you mean --failure-timeout?"));
}

TEST_F(App, TakesJsonAsTheShortFormOfOutputJson) {
  EXPECT_EQ(Run({"sample", "--json"}), kExitDone);
  EXPECT_THAT(out_, testing::StartsWith("json "));
  EXPECT_EQ(Run({"sample", "-o", "json"}), kExitDone);
  EXPECT_THAT(out_, testing::StartsWith("json "));
  EXPECT_EQ(Run({"sample", "--json", "-o", "table"}), kExitUsage);
  setenv("SYNCLINE_OUTPUT", "table", 1);
  EXPECT_EQ(Run({"sample", "--json"}), kExitDone);
  EXPECT_THAT(out_, testing::StartsWith("json "));
  unsetenv("SYNCLINE_OUTPUT");
  setenv("SYNCLINE_JSON", "true", 1);
  EXPECT_EQ(Run({"sample"}), kExitDone);
  EXPECT_THAT(out_, testing::StartsWith("json "));
  EXPECT_EQ(Run({"sample", "-o", "table"}), kExitDone);
  EXPECT_THAT(out_, testing::Not(HasSubstr("json")));
  unsetenv("SYNCLINE_JSON");
}

TEST_F(App, SuggestsNothingForNonsense) {
  EXPECT_EQ(Run({"sample", "--qqqqqqqq"}), kExitUsage);
  EXPECT_EQ(err_,
            "syncline: error: unknown flag --qqqqqqqq; see syncline sample --help\n");
  EXPECT_EQ(Run({"qqqqqqqq"}), kExitUsage);
  EXPECT_EQ(err_, "syncline: error: unknown command 'qqqqqqqq'; see syncline --help\n");
  const std::string config = WriteConfig("qqqqqqqq: 2\n");
  EXPECT_EQ(Run({"sample", "--config", config.c_str()}), kExitUsage);
  EXPECT_EQ(err_,
            absl::StrCat("syncline: error: ", config,
                         ":1: qqqqqqqq is not a setting of this command; see --help\n"));
}

// Otherwise a file could write to the terminal.
TEST_F(App, QuotesOnlyPrintableTextOfAFile) {
  const std::string config = WriteConfig("\"w\\e[2J\": 2\n");
  EXPECT_EQ(Run({"sample", "--config", config.c_str()}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr(":1: w\\x1b[2J is not a setting"));
}

TEST_F(App, NamesTheNearestCommand) {
  EXPECT_EQ(Run({"smaple"}), kExitUsage);
  EXPECT_EQ(err_, "syncline: error: unknown command 'smaple'; did you mean sample?\n");
  EXPECT_EQ(Run({}), kExitUsage);
  EXPECT_EQ(err_,
            "syncline: error: no command is given; choose one of sample, failing, plain; "
            "see syncline --help\n");
}

TEST_F(App, NamesTheNearestKeyOfTheFile) {
  const std::string config = WriteConfig("workers: 2\nfailure_timeout: 3s\n");
  EXPECT_EQ(Run({"sample", "--config", config.c_str()}), kExitUsage);
  EXPECT_EQ(
      err_,
      absl::StrCat("syncline: error: ", config,
                   ":2: failure_timeout is not a setting of this command; did you mean "
                   "failure-timeout?\n"));
}

TEST_F(App, NamesTheSourceOfAWrongValue) {
  EXPECT_EQ(Run({"sample", "--workers", "many"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--workers"));
  setenv("SYNCLINE_WORKERS", "many", 1);
  EXPECT_EQ(Run({"sample"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("SYNCLINE_WORKERS: 'many'"));
  unsetenv("SYNCLINE_WORKERS");
  EXPECT_EQ(Run({"sample", "--config", WriteConfig("workers: {a: 1}\n").c_str()}),
            kExitUsage);
  EXPECT_THAT(err_, HasSubstr("workers must be a value or a list"));
  EXPECT_EQ(Run({"sample", "--config", WriteConfig("workers: [1\n").c_str()}),
            kExitUsage);
  EXPECT_THAT(err_, StartsWith("syncline: error: "));
  EXPECT_EQ(Run({"sample", "--config", "/nonexistent.yaml"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("cannot read --config"));
}

TEST_F(App, RefusesAConfigThatIsNoFileOfSettings) {
  EXPECT_EQ(Run({"sample", "--config", directory_.path().c_str()}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("it is a directory; name a file of it"));
  EXPECT_EQ(Run({"sample", "--config", "/dev/zero"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("check the path"));
  EXPECT_EQ(Run({"sample", "--config", "/dev/null"}), kExitDone);
}

TEST_F(App, PrintsOneLineAndTheExitCodeOfTheFailure) {
  EXPECT_EQ(Run({"failing"}), kExitPortInUse);
  EXPECT_EQ(err_, "syncline: error: 127.0.0.1:7070 is in use; stop it\n");
}

TEST_F(App, ShowsHelp) {
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_, HasSubstr("sample"));
  EXPECT_EQ(Run({"sample", "--help"}), 0);
  EXPECT_THAT(out_, HasSubstr("--failure-timeout"));
}

TEST(ExitCodes, FollowTheFailureThenTheCode) {
  const auto with = [](Failure failure) {
    return ExitCodeOf(WithFailure(absl::InternalError("x"), failure));
  };
  EXPECT_EQ(with(Failure::kUsage), 2);
  EXPECT_EQ(with(Failure::kPortInUse), 3);
  EXPECT_EQ(with(Failure::kStateUnusable), 4);
  EXPECT_EQ(with(Failure::kUnreachable), 5);
  EXPECT_EQ(with(Failure::kVersionMismatch), 6);
  EXPECT_EQ(with(Failure::kJobRefused), 7);
  EXPECT_EQ(with(Failure::kDeviceFailed), 8);
  EXPECT_EQ(with(Failure::kRetryable), 138);
  EXPECT_EQ(with(Failure::kExcluded), 140);
  EXPECT_EQ(with(Failure::kNone), 1);
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("x")), 2);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("x")), 5);
}

}  // namespace
}  // namespace syncline
