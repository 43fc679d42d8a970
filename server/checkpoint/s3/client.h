// Sends signed requests to one bucket, and repeats each until it is answered. If the
// server cannot answer now (5xx, 429), or a connection breaks or stalls, the request is
// sent again after growing pauses. Every request may therefore be carried out twice.
//
//   S3Client client(settings, {});
//   const auto answer = client.Do({.method = "HEAD", .key = "night/run1/manifest.json"});
//
// Thread safety: any thread. Each call uses a connection of its own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
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

namespace syncline {

struct S3ClientOptions {
  // After this time no further attempt begins. An attempt that has begun gets the time
  // that is left, plus the time that its bytes take.
  absl::Duration patience = absl::Minutes(2);
  // Limit of one attempt: this time, plus the time that its bytes take at
  // kSlowestBytesPerSecond.
  absl::Duration attempt = absl::Seconds(30);
  absl::Duration connect = absl::Seconds(10);
  // Called instead of waiting between two attempts. Null: the client waits.
  std::function<void(absl::Duration)> pause = {};
  // Requested when the process is about to end. From then on, failed requests are not
  // repeated, and callers that wait to repeat one give up. Requests under way are cut and
  // sent once more with little time, and later requests get as little time. A server that
  // answers still serves them; a silent one delays nobody.
  std::stop_token hurry = {};
};

struct S3Call {
  std::string method = "GET";
  std::string key = {};  // empty: the bucket itself
  std::map<std::string, std::string> query = {};
  std::map<std::string, std::string> headers = {};  // names in lower case
  ByteView body = {};
  // Buffer for the answer's bytes if the request succeeds. Empty: they go to
  // S3Answer::body. If the server ignores the requested range and sends the whole object,
  // its first `offset` bytes are skipped.
  MutableByteView out = {};
  uint64_t offset = 0;
  // HTTP statuses other than 2xx that the caller handles itself.
  std::set<int> expected = {};
  // The client's patience applies if it is shorter.
  absl::Duration patience = absl::InfiniteDuration();
};

struct S3Answer {
  int status = 0;
  std::map<std::string, std::string> headers = {};  // names in lower case
  std::string body = {};
  uint64_t received = 0;  // bytes in `out`
  int attempts = 1;       // earlier attempts may have been carried out too

  std::string Header(const std::string& name) const;
};

class S3Client {
 public:
  static constexpr uint64_t kSlowestBytesPerSecond = uint64_t{128} << 10;

  S3Client(S3Settings settings, S3ClientOptions options);
  ~S3Client();
  S3Client(const S3Client&) = delete;
  S3Client& operator=(const S3Client&) = delete;

  // Sends the request. Errors say what was asked, what the server answered, and what to
  // do about it.
  absl::StatusOr<S3Answer> Do(const S3Call& call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the error that an unsuccessful `answer` means.
  absl::Status ErrorOf(const S3Call& call, const S3Answer& answer) const;
  const S3Settings& settings() const { return settings_; }

 private:
  // A connection, with a copy of its descriptor, by which it can be cut.
  struct Connection;
  // The result of one attempt: an answer, or the reason why there is none.
  struct Attempt {
    S3Answer answer = {};
    absl::Status status = {};
    bool may_try_again = false;
    bool was_cut = false;
    absl::Duration wait = {};  // the pause that the server asks for
  };

  // Makes one attempt. `left` is the time left of the patience.
  Attempt Try(const S3Call& call, absl::Duration left) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the time limit of an attempt that begins now.
  absl::Duration LimitOf(const S3Call& call, absl::Duration left)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits before the next attempt. Returns false if there must be none.
  bool Pause(absl::Duration wait) ABSL_LOCKS_EXCLUDED(mutex_);
  std::string NameOf(const S3Call& call) const;
  std::unique_ptr<Connection> TakeConnection() ABSL_LOCKS_EXCLUDED(mutex_);
  std::unique_ptr<Connection> NewConnection() ABSL_LOCKS_EXCLUDED(mutex_);
  void Opened(Connection& connection, int socket) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns false if the connection was cut meanwhile.
  bool Done(Connection& connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(std::unique_ptr<Connection> connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void Hurry() ABSL_LOCKS_EXCLUDED(mutex_);

  const S3Settings settings_;
  const S3ClientOptions options_;
  const SteadyClock clock_;
  absl::Mutex mutex_;
  SteadyCondition hurried_;
  std::vector<std::unique_ptr<Connection>> idle_ ABSL_GUARDED_BY(mutex_);
  std::set<Connection*> busy_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Duration> hurried_at_ ABSL_GUARDED_BY(mutex_);

  // Last member: it uses the others.
  const std::stop_callback<std::function<void()>> on_hurry_;
};

}  // namespace syncline
