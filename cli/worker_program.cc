#include "cli/worker_program.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cli/process.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

bool IsFile(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// A name without a slash is first looked up in PATH, then in the working directory.
bool IsScript(const std::string& word) {
  if (!word.ends_with(".py")) return false;
  if (word.find('/') == word.npos) return !CheckProgram(word).ok();
  return access(word.c_str(), X_OK) != 0;
}

std::string Interpreter() {
  const char* python = std::getenv("PYTHON_EXEC");
  return python != nullptr && *python != '\0' ? python : "python3";
}

}  // namespace

absl::StatusOr<ProgramKind> KindOfProgram(const ProgramFlags& flags) {
  if (flags.module && (flags.no_python || flags.run_path)) {
    return WithFailure(
        absl::InvalidArgumentError(absl::StrCat(
            "-m starts a module by python; drop -m, or ",
            flags.no_python ? "--no-python, with which the program is started as it is"
                            : "--run-path, with which a script is")),
        Failure::kUsage);
  }
  // --run-path takes precedence over --no-python, as in torchrun.
  if (flags.run_path) return ProgramKind::kScript;
  if (flags.module) return ProgramKind::kModule;
  return flags.no_python ? ProgramKind::kAsIs : ProgramKind::kGuess;
}

absl::StatusOr<std::vector<std::string>> ProgramCommand(
    const std::vector<std::string>& words, ProgramKind kind) {
  if (words.empty() || kind == ProgramKind::kAsIs) return words;
  const bool is_module = kind == ProgramKind::kModule;
  if (kind == ProgramKind::kGuess && !IsScript(words.front())) return words;
  if (!is_module && !IsFile(words.front())) {
    return WithFailure(
        absl::NotFoundError(absl::StrCat("there is no script '", Printable(words.front()),
                                         "'; check the path")),
        Failure::kUsage);
  }
  std::vector<std::string> command = {Interpreter(), "-u"};
  if (is_module) command.emplace_back("-m");
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

}  // namespace syncline
