// Computes the command of a worker of `syncline run` from the user's command line: a
// program, or a Python script or module as torchrun takes it.
//
//   train.py --lr 0.1            a file that is not executable: python3 -u train.py --lr 0.1
//   -m package.train --lr 0.1    python3 -u -m package.train --lr 0.1
//   ./trainer, python train.py   as they are
//
// The interpreter is PYTHON_EXEC, which `python -m syncline.run` sets to its own;
// otherwise python3 in PATH.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncline {

enum class ProgramKind {
  kGuess,   // decided by the file's name and permissions
  kModule,  // -m: a Python module
  kScript,  // --run-path: a Python script, whatever its name
  kAsIs,    // --no-python
};

// The flags of torchrun that were given.
struct ProgramFlags {
  bool module = false;
  bool no_python = false;
  bool run_path = false;
};

// InvalidArgument (Failure::kUsage) when the flags contradict each other.
absl::StatusOr<ProgramKind> KindOfProgram(const ProgramFlags& flags);

// Returns `words`, with the interpreter before them if needed. Fails with NotFound
// (Failure::kUsage) for a missing script. Reads the file system and the environment.
absl::StatusOr<std::vector<std::string>> ProgramCommand(
    const std::vector<std::string>& words, ProgramKind kind);

}  // namespace syncline
