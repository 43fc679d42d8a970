// The one binary, `syncline`. A subcommand is one file of this folder and one line here.

#include "cli/app.h"
#include "cli/run.h"

int main(int argc, char** argv) {
  constexpr syncline::AddCommand kCommands[] = {
      syncline::AddRun,
  };
  return syncline::RunApp({argv, argv + argc}, kCommands);
}
