// Starts and drives test_peer/main.cc. Tests only.
#pragma once

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace syncline {

// A process running test_peer/main.cc.
class PeerProcess {
 public:
  explicit PeerProcess(const std::string& reach = "host") {
    int to_peer[2], from_peer[2];
    EXPECT_EQ(pipe(to_peer), 0);
    EXPECT_EQ(pipe(from_peer), 0);
    process_ = fork();
    if (process_ == 0) {
      dup2(to_peer[0], STDIN_FILENO);
      dup2(from_peer[1], STDOUT_FILENO);
      for (const int fd : {to_peer[0], to_peer[1], from_peer[0], from_peer[1]}) close(fd);
      execl(UCX_TEST_PEER, UCX_TEST_PEER, reach.c_str(), nullptr);
      _exit(127);
    }
    close(to_peer[0]);
    close(from_peer[1]);
    in_ = fdopen(from_peer[0], "r");
    out_ = to_peer[1];
    address_ = absl::HexStringToBytes(Answer("address "));
  }

  ~PeerProcess() {
    close(out_);
    Kill();
    fclose(in_);
  }

  void Kill() {
    if (process_ == 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = 0;
  }

  void Tell(const std::string& command) {
    EXPECT_GT(write(out_, (command + "\n").data(), command.size() + 1), 0);
  }

  // Returns the rest of the next line, which must begin with `prefix`.
  std::string Answer(const std::string& prefix) {
    std::string line;
    for (int c; (c = fgetc(in_)) != EOF && c != '\n';)
      line.push_back(static_cast<char>(c));
    EXPECT_TRUE(absl::StartsWith(line, prefix)) << "'" << line << "'";
    return line.substr(std::min(prefix.size(), line.size()));
  }

  const std::string& address() const { return address_; }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = 0;
  FILE* in_ = nullptr;
  int out_ = -1;
  std::string address_;
};

}  // namespace syncline
