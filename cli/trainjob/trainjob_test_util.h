// A status server of Kubeflow Trainer in this process, for tests: HTTPS on loopback, with
// a certificate of a CA of its own.
//
// Thread safety: any thread may call the methods. `answer` runs on threads of the server.
#pragma once

#include <httplib.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/trainjob/target.h"
#include "comm/rpc/certificates_test_util.h"

namespace syncline {

class TrainJobServer {
 public:
  using Answer = std::function<void(const httplib::Request&, httplib::Response&)>;

  // Without an `answer` it answers 200.
  explicit TrainJobServer(Answer answer = {}) : answer_(std::move(answer)) {
    certificates_.MakeCa("ca");
    certificates_.MakeCa("other");
    certificates_.MakeLeaf("server", "ca", {.who = {.role = Role::kServer}});
    const TlsOptions identity = certificates_.Identity("server");
    server_ = std::make_unique<httplib::SSLServer>(identity.cert_file.c_str(),
                                                   identity.key_file.c_str());
    server_->Post(".*", [this](const httplib::Request& in, httplib::Response& out) {
      if (answer_) answer_(in, out);
      absl::MutexLock lock(&mutex_);
      bodies_.push_back(in.body);
      tokens_.push_back(in.get_header_value("Authorization"));
    });
    server_->set_keep_alive_timeout(1);
    port_ = server_->bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    while (!server_->is_running()) std::this_thread::yield();
    WriteToken("secret");
  }
  ~TrainJobServer() {
    server_->stop();
    thread_.join();
  }
  TrainJobServer(const TrainJobServer&) = delete;
  TrainJobServer& operator=(const TrainJobServer&) = delete;

  TrainJobTarget target(const std::string& ca = "ca") const {
    return {.origin = absl::StrCat("https://127.0.0.1:", port_),
            .path = "/apis/trainjobs/bert/status",
            .token_file = certificates_.Path("token"),
            .ca_file = certificates_.Path(ca + ".crt")};
  }

  void WriteToken(const std::string& token) {
    certificates_.Write("token", token + "\n");
  }

  // What arrived so far, and was answered.
  std::vector<std::string> bodies() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return bodies_;
  }
  std::vector<std::string> tokens() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return tokens_;
  }

 private:
  const Answer answer_;
  TestCertificates certificates_;
  std::unique_ptr<httplib::SSLServer> server_;
  int port_ = 0;
  std::thread thread_;
  mutable absl::Mutex mutex_;
  std::vector<std::string> bodies_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> tokens_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
