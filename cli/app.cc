#include "cli/app.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/str_replace.h"
#include "cli/parse_failure.h"
#include "cli/settings.h"
#include "cli/version.h"
#include "comm/base/exit_codes.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

// Name of the positional of subcommands that run a program. The program's arguments are
// not flags of `syncline`.
constexpr char kProgram[] = "program";

const CLI::App* FindCommand(const CLI::App& app,
                            const std::vector<std::string>& arguments) {
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (!arguments.empty() && command->get_name() == arguments.front()) return command;
  }
  return nullptr;
}

bool TakesProgram(const CLI::App& command) {
  return command.get_option_no_throw(kProgram) != nullptr;
}

// Replaces underscores in a flag's name: "--nproc_per_node=2" becomes
// "--nproc-per-node=2". torchrun accepts both spellings.
void SpellWithDashes(const CLI::App& command, std::string& word) {
  const std::string given = word.substr(0, word.find('='));
  const std::string dashed = absl::StrReplaceAll(given, {{"_", "-"}});
  if (command.get_option_no_throw(given) != nullptr ||
      command.get_option_no_throw(dashed) == nullptr) {
    return;
  }
  word.replace(0, given.size(), dashed);
}

// Moves the program and its arguments from `arguments` to the result. They follow "--",
// or start at the first word that is neither a flag nor a flag's value.
std::vector<std::string> CutProgram(CLI::App& app, std::vector<std::string>& arguments) {
  const CLI::App* command = FindCommand(app, arguments);
  if (command == nullptr || !TakesProgram(*command)) return {};
  size_t at = 1;
  while (at < arguments.size() && arguments[at] != "--" &&
         arguments[at].starts_with('-')) {
    std::string& word = arguments[at];
    SpellWithDashes(*command, word);
    const CLI::Option* flag = command->get_option_no_throw(word);
    const bool takes_next = flag != nullptr && flag->get_items_expected_max() > 0;
    at += takes_next ? 2 : 1;
  }
  at = std::min(at, arguments.size());
  std::vector<std::string> program(arguments.begin() + static_cast<std::ptrdiff_t>(at),
                                   arguments.end());
  arguments.resize(at);
  if (!program.empty() && program.front() == "--") program.erase(program.begin());
  return program;
}

// A misspelled variable has no effect, so it must not go unnoticed.
void WarnOfMisspelledVariables(CLI::App& app) {
  for (const std::string& warning : MisspelledVariables(app, environ)) {
    std::cerr << "syncline: warning: " << warning << std::endl;
  }
}

absl::StatusOr<int> ParseAndRun(CLI::App& app, std::vector<std::string> arguments,
                                const Command* selected) {
  std::string config_file;
  for (CLI::App* command : app.get_subcommands(nullptr)) {
    command->add_option("--config", config_file, "YAML file with values for these flags");
  }
  const std::vector<std::string> program = CutProgram(app, arguments);
  // CLI11 reports errors by exceptions; none of them leaves this block.
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return ParseFailure(app, error, arguments);
  }
  CLI::App& command = *app.get_subcommands().front();
  if (!program.empty()) {
    CLI::Option* option = command.get_option(kProgram);
    for (const std::string& word : program) option->add_result(word);
    option->run_callback();
  }
  WarnOfMisspelledVariables(app);
  SettingSources sources = {
      .config_file = config_file,
      .environment = [](const char* name) { return std::getenv(name); }};
  if (TakesProgram(command)) sources.prefixes.emplace_back("PET_");  // torchrun's prefix
  SYNCLINE_RETURN_IF_ERROR(ApplySettings(FlagsOf(command), sources));
  return (*selected)();
}

}  // namespace

int RunApp(std::span<const char* const> argv, std::span<const AddCommand> commands) {
  CLI::App app(
      "Syncline: elastic parameter servers and collectives for mixed-precision training",
      "syncline");
  app.require_subcommand(1);
  app.set_version_flag(
      "--version", [] { return VersionLine(); }, "Print the version in one line");
  app.footer(
      "Every flag can also be set by SYNCLINE_<FLAG> in the environment or by\n"
      "'flag: value' in the file of --config; the command line wins, then the\n"
      "environment. Commands that start programs also read PET_<FLAG>, like torchrun.");
  Command selected;
  for (const AddCommand add : commands) add(app, &selected);
  const absl::StatusOr<int> result =
      ParseAndRun(app, {argv.begin() + 1, argv.end()}, &selected);
  if (result.ok()) return *result;
  std::fflush(stdout);
  std::cerr << ErrorLine(result.status()) << std::endl;
  return ExitCodeOf(result.status());
}

}  // namespace syncline
