// A launcher whose services are shell scripts, in a directory of its own.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/launcher.h"
#include "comm/base/status.h"
#include "comm/rpc/server.h"
#include "gtest/gtest.h"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {

// Stands in for `syncline serve`: notes how it was called, reports ready, and waits to be
// stopped.
inline constexpr char kFakeServe[] = R"(#!/bin/sh
echo "$@" ${SYNCLINE_JOURNAL_DIR:+inherited} >> "$(dirname "$0")/calls"
case "$*" in *coordinator*--state-dir*) port=1111 ;; *) port=2222 ;; esac
echo "starting"
echo "syncline: ready control=127.0.0.1:$port admin=127.0.0.1:3333"
trap 'echo stopped >> "$(dirname "$0")/calls"; exit 0' TERM
while :; do sleep 0.01; done
)";

// Of somebody else: it answers, and knows nothing.
class AnsweringCoordinator {
 public:
  AnsweringCoordinator() {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.services = {&service_};
    running_ = StartServer(options);
  }
  std::string address() const { return running_->address; }

 private:
  v1::Coordinator::Service service_;
  absl::StatusOr<RunningServer> running_;
};

class LauncherTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "launch.XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    options_.log_dir = Path("logs");
    WriteServe(kFakeServe);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const {
    return absl::StrCat(directory_, "/", name);
  }

  std::string Read(const std::string& name) const {
    std::ifstream file(Path(name));
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  void WriteServe(const std::string& script) {
    std::ofstream(Path("serve")) << script;
    std::filesystem::permissions(Path("serve"), std::filesystem::perms::owner_all);
  }

  absl::StatusOr<int> Run(const std::string& script) {
    options_.program = {"/bin/sh", "-c", script};
    SYNCLINE_ASSIGN_OR_RETURN(LaunchPlan plan, MakeLaunchPlan(options_, {}));
    return Launcher(options_, std::move(plan), Path("serve")).Run();
  }

  std::string directory_;
  RunOptions options_;
};

}  // namespace syncline
