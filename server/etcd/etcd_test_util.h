// Real etcd members for tests: processes on loopback, each with its own data folder.
//
//   if (!TestEtcd::IsInstalled()) GTEST_SKIP() << "etcd is not installed";
//   TestEtcd etcd({.members = 3});
//   auto client = etcd.Connect("/prefix");
//   etcd.Kill(0);   // with SIGKILL
//   etcd.Start(0);  // again, with its data
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/check.h"
#include "comm/base/env.h"
#include "comm/base/eventually.h"
#include "comm/base/temp_directory.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/address.h"
#include "server/etcd/etcd_client.h"

namespace syncline {

// An address that refuses connections, and that no other process can get meanwhile.
class DeadEtcd {
 public:
  DeadEtcd() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in name = {};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(name);
    auto* any = reinterpret_cast<sockaddr*>(&name);
    SYNCLINE_CHECK(bind(fd_.get(), any, bytes) == 0);
    SYNCLINE_CHECK(getsockname(fd_.get(), any, &bytes) == 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(name.sin_port));
  }
  const std::string& address() const { return address_; }

 private:
  UniqueFd fd_;
  std::string address_;
};

struct TestEtcdOptions {
  size_t members = 1;
  // Certificate of the members, and the authority of clients. Empty: plain text.
  EtcdTls server = {};
  EtcdTls client = {};
};

class TestEtcd {
 public:
  static bool IsInstalled() { return access(kProgram, X_OK) == 0; }

  explicit TestEtcd(TestEtcdOptions options = {}) : options_(std::move(options)) {
    // Another process may take a port before etcd does.
    bool is_there = false;
    for (int i = 0; i < 5 && !is_there; ++i) is_there = StartAll();
    SYNCLINE_CHECK(is_there);
  }
  ~TestEtcd() {
    for (size_t i = 0; i < members_.size(); ++i) Kill(i);
  }
  TestEtcd(const TestEtcd&) = delete;
  TestEtcd& operator=(const TestEtcd&) = delete;

  std::unique_ptr<EtcdClient> Connect(const std::string& prefix) const {
    return *EtcdClient::Create(Address(prefix), options_.client, absl::Seconds(1));
  }
  EtcdAddress Address(const std::string& prefix) const {
    EtcdAddress address{.members = {}, .prefix = prefix};
    for (const Member& member : members_) address.members.push_back(member.clients);
    return address;
  }

  void Kill(size_t member) {
    pid_t& pid = members_[member].pid;
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = 0;
  }
  void Signal(size_t member, int signal) const { kill(members_[member].pid, signal); }
  void Start(size_t member) { members_[member].pid = Spawn(members_[member]); }

 private:
  static constexpr char kProgram[] = "/usr/bin/etcd";

  struct Member {
    std::string name;
    std::string clients;  // HOST:PORT
    std::string peers;
    pid_t pid = 0;
  };

  bool StartAll() {
    for (size_t i = 0; i < members_.size(); ++i) Kill(i);
    members_.clear();
    ++round_;
    for (size_t i = 0; i < options_.members; ++i) {
      members_.push_back(
          {.name = absl::StrCat("m", round_, "-", i),
           .clients = absl::StrCat("127.0.0.1:", *PickFreePort("127.0.0.1")),
           .peers = absl::StrCat("127.0.0.1:", *PickFreePort("127.0.0.1"))});
    }
    for (Member& member : members_) member.pid = Spawn(member);
    const auto client = Connect("/");
    etcdserverpb::RangeRequest request;
    request.set_key("/");
    return Eventually([&] {
             return AnyHasEnded() || client->Range(request, absl::Seconds(1)).ok();
           }) &&
           !AnyHasEnded();
  }

  bool AnyHasEnded() {
    for (Member& member : members_) {
      if (waitpid(member.pid, nullptr, WNOHANG) == member.pid) member.pid = 0;
      if (member.pid == 0) return true;
    }
    return false;
  }

  pid_t Spawn(const Member& member) const {
    const std::string scheme = options_.server.cert_file.empty() ? "http://" : "https://";
    std::vector<std::string> cluster;
    for (const Member& other : members_) {
      cluster.push_back(absl::StrCat(other.name, "=http://", other.peers));
    }
    std::vector<std::string> words = {
        kProgram,
        "--name=" + member.name,
        absl::StrCat("--data-dir=", directory_.path(), "/", member.name),
        absl::StrCat("--listen-client-urls=", scheme, member.clients),
        absl::StrCat("--advertise-client-urls=", scheme, member.clients),
        absl::StrCat("--listen-peer-urls=http://", member.peers),
        absl::StrCat("--initial-advertise-peer-urls=http://", member.peers),
        absl::StrCat("--initial-cluster=", absl::StrJoin(cluster, ","))};
    if (!options_.server.cert_file.empty()) {
      words.push_back("--cert-file=" + options_.server.cert_file);
      words.push_back("--key-file=" + options_.server.key_file);
      words.push_back("--trusted-ca-file=" + options_.server.ca_file);
      words.push_back("--client-cert-auth");
    }
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string log = absl::StrCat(directory_.path(), "/", member.name, ".log");
    const pid_t pid = fork();
    SYNCLINE_CHECK(pid >= 0);
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    execv(kProgram, arguments.data());
    _exit(127);
  }

  const TestEtcdOptions options_;
  TempDirectory directory_;
  int round_ = 0;
  std::vector<Member> members_;
};

}  // namespace syncline
