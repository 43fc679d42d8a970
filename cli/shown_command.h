// The command line of this process as `ps` and `pgrep -f` show it. A forked child that
// runs no other program can replace its own.
//
//   const ShownCommand shown = ShownCommand::OfThisProcess();
//   if (fork() == 0) shown.Become("a title");
//
// Thread safety: const methods from any thread.
#pragma once

#include <cstdint>

namespace syncline {

class ShownCommand {
 public:
  static ShownCommand OfThisProcess();

  // Sets the title of a child. Async-signal-safe, for use after fork. Cuts the title to
  // the length of the old command line. Does nothing if the place of the command line is
  // unknown.
  void Become(const char* title) const;

 private:
  uintptr_t begin_ = 0;
  uintptr_t end_ = 0;
};

}  // namespace syncline
