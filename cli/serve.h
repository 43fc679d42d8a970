// `syncline serve`: runs the coordinator, a server, or both in one process.
//
// When everything is up it prints to standard output
//   syncline: ready control=HOST:PORT admin=HOST:PORT
// where control is the coordinator's address (a server is attached to it by then) and
// admin is its own. SIGTERM and SIGINT stop it cleanly; it exits with 143 or 130.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddServe(CLI::App& app, Command* selected);

}  // namespace syncline
