// A test fixture: a launcher whose services are shell scripts, in a temporary directory.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/launcher.h"
#include "comm/base/status.h"
#include "comm/base/temp_directory.h"
#include "comm/rpc/server.h"
#include "gtest/gtest.h"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {

// Replaces `syncline serve`: records its arguments, reports ready, and waits to be
// stopped.
inline constexpr char kFakeServe[] = R"(#!/bin/sh
echo "$@" ${SYNCLINE_JOURNAL_DIR:+inherited} >> "$(dirname "$0")/calls"
case "$*" in *coordinator*--state-dir*) port=1111 ;; *) port=2222 ;; esac
echo "starting"
echo "syncline: ready control=127.0.0.1:$port admin=127.0.0.1:3333"
trap 'echo stopped >> "$(dirname "$0")/calls"; exit 0' TERM
while :; do sleep 0.01; done
)";

// The coordinator of another user. It answers, but knows no job.
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
    options_.log_dir = Path("logs");
    WriteServe(kFakeServe);
  }

  std::string Path(const std::string& name) const { return directory_.File(name); }

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

  const TempDirectory directory_;
  RunOptions options_;
};

}  // namespace syncline
