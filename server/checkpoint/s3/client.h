// Signed requests to one bucket, each tried again until it is answered: what a server cannot
// answer now (5xx, 429), and connections that break or stand still, are asked again with
// growing pauses. All that goes through it may be done twice.
//
//   S3Client client(settings, {});
//   const auto answer = client.Do({.method = "HEAD", .key = "night/run1/manifest.json"});
//
// Thread safety: any thread; each call has a connection of its own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "comm/base/env.h"
#include "comm/base/steady_condition.h"
#include "server/checkpoint/s3/answers.h"
#include "server/checkpoint/s3/settings.h"

namespace httplib {
class Client;
}

namespace syncline {

struct S3ClientOptions {
  // After that no other attempt begins.
  absl::Duration patience = absl::Minutes(2);
  // How long one may take: this, and what its bytes take at kSlowestBytesPerSecond.
  absl::Duration attempt = absl::Seconds(30);
  absl::Duration connect = absl::Seconds(10);
  // Instead of waiting between two attempts.
  std::function<void(absl::Duration)> pause = {};
  // Once it is requested (the process is to end) nothing is asked again, and whoever waits
  // to do so gives up.
  std::stop_token hurry = {};
};

struct S3Call {
  std::string method = "GET";
  std::string key = {};  // empty: the bucket itself
  std::map<std::string, std::string> query = {};
  std::map<std::string, std::string> headers = {};  // names in lower case
  ByteView body = {};
  // Where the answer's bytes go if it is a success; empty: S3Answer::body. With offset: that
  // many bytes are left out where the server sends the object from its beginning.
  MutableByteView out = {};
  uint64_t offset = 0;
  // Statuses beside 2xx that the caller understands.
  std::set<int> expected = {};
  absl::Duration patience = absl::InfiniteDuration();  // if shorter than the client's
};

struct S3Answer {
  int status = 0;
  std::map<std::string, std::string> headers = {};  // names in lower case
  std::string body = {};
  uint64_t received = 0;  // bytes in `out`
  int attempts = 1;       // the earlier ones may have been carried out, too

  std::string Header(const std::string& name) const;
};

class S3Client {
 public:
  static constexpr uint64_t kSlowestBytesPerSecond = uint64_t{128} << 10;

  S3Client(S3Settings settings, S3ClientOptions options);
  ~S3Client();
  S3Client(const S3Client&) = delete;
  S3Client& operator=(const S3Client&) = delete;

  // Errors say what was asked, what the server said, and what to do about it.
  absl::StatusOr<S3Answer> Do(const S3Call& call) ABSL_LOCKS_EXCLUDED(mutex_);

  // What `answer` means where it is no success.
  absl::Status ErrorOf(const S3Call& call, const S3Answer& answer) const;
  const S3Settings& settings() const { return settings_; }

 private:
  // Of one attempt: an answer, or why there is none.
  struct Tried {
    S3Answer answer = {};
    absl::Status status = {};
    bool may_try_again = false;
    absl::Duration wait = {};  // what the server asks for
  };

  Tried Try(const S3Call& call) ABSL_LOCKS_EXCLUDED(mutex_);
  // False: there is to be no other attempt.
  bool Pause(absl::Duration wait) ABSL_LOCKS_EXCLUDED(mutex_);
  std::string NameOf(const S3Call& call) const;
  std::unique_ptr<httplib::Client> Connection() ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(std::unique_ptr<httplib::Client> client) ABSL_LOCKS_EXCLUDED(mutex_);

  const S3Settings settings_;
  const S3ClientOptions options_;
  const SteadyClock clock_;
  absl::Mutex mutex_;
  SteadyCondition hurried_;
  std::vector<std::unique_ptr<httplib::Client>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
