// `syncline version`: prints the version of this binary and of its libraries.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

struct BuildInfo {
  std::string version;       // "0.1.0"
  std::string git;           // git describe, or "unknown"
  int protocol_version = 0;  // of the control plane; must be equal on all peers
  int wire_version = 0;      // of data messages; must be equal on all peers
  std::string compiler;      // "GCC 12.2.0"
  std::string build_type;    // "Release"
  std::vector<std::pair<std::string, std::string>> libraries;  // name and version
};

BuildInfo GetBuildInfo();

// "syncline 0.1.0 (git v0.1.0-3-gabc)".
std::string VersionLine();

// Returns the version of the loaded UCX library. Declared here so that only
// comm/transport/ucx includes UCX.
std::string UcxVersion();

void AddVersion(CLI::App& app, Command* selected);

}  // namespace syncline
