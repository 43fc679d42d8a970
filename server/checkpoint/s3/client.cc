#include "server/checkpoint/s3/client.h"

#include <httplib.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/failure.h"
#include "server/checkpoint/s3/signature.h"

namespace syncline {
namespace {

constexpr int kMaxAttempts = 12;
constexpr absl::Duration kFirstPause = absl::Milliseconds(250);
constexpr absl::Duration kLongestPause = absl::Seconds(20);
constexpr size_t kMaxIdle = 16;
// A page of a list has at most 1,000 names of 1,024 bytes, encoded.
constexpr size_t kMaxAnswerBytes = size_t{16} << 20;
// So often the time is looked at while a body goes out.
constexpr size_t kBodyPiece = size_t{256} << 10;

// A peer that closes its end must not end the process; signal handlers are the program's.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec now = {};
    if (!was_pending_) {
      while (sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  bool was_pending_ = false;
  sigset_t pipe_ = {};
  sigset_t before_ = {};
};

bool MayTryAgain(int status, const std::string& code) {
  if (status == 408 || status == 429) return true;
  if (status >= 500) return status != 501 && status != 505 && status != 507;
  // A connection that stood still, and others who do the same at this moment.
  return code == "RequestTimeout" || code == "OperationAborted" ||
         code == "ConditionalRequestConflict" || code == "SlowDown" ||
         code == "InternalError" || code == "ServiceUnavailable";
}

bool IsUnderstood(const S3Call& call, int status) {
  return (status >= 200 && status < 300) || call.expected.count(status) > 0;
}

absl::Duration PauseAfter(int attempt, absl::Duration asked) {
  std::random_device random;
  const double part = 0.5 + 0.5 * (random() % 1000) / 1000;
  const absl::Duration grown = kFirstPause * (int64_t{1} << std::min(attempt - 1, 10));
  return std::min(std::max(std::min(grown, kLongestPause) * part, asked), kLongestPause);
}

httplib::Request Signed(const S3Settings& settings, const S3Call& call) {
  const absl::Time now = absl::Now();
  SignedRequest request = {.method = call.method,
                           .path = settings.root,
                           .query = CanonicalQuery(call.query),
                           .headers = call.headers,
                           .payload_sha256 = Sha256Hex(call.body)};
  absl::StrAppend(&request.path, "/", UriEncodePath(call.key));
  request.headers["host"] = settings.host;
  request.headers["x-amz-date"] = AmzDate(now);
  request.headers["x-amz-content-sha256"] = request.payload_sha256;
  if (const std::string& token = settings.credentials.session_token; !token.empty()) {
    request.headers["x-amz-security-token"] = token;
  }
  httplib::Request out;
  out.method = call.method;
  out.path = request.path;
  if (!request.query.empty()) absl::StrAppend(&out.path, "?", request.query);
  for (const auto& [name, value] : request.headers) out.headers.emplace(name, value);
  out.headers.emplace("Authorization", Authorization(request, {.region = settings.region},
                                                     settings.credentials, now));
  out.headers.emplace("Accept-Encoding", "identity");
  out.headers.emplace("User-Agent", "syncline");
  return out;
}

// Takes an answer's bytes: those of a success to `call.out`, all others to a string.
class Receiver {
 public:
  Receiver(const S3Call& call, S3Answer& answer) : call_(call), answer_(answer) {}

  bool OnHead(const httplib::Response& response) {
    answer_.status = response.status;
    for (const auto& [name, value] : response.headers) {
      answer_.headers[absl::AsciiStrToLower(name)] = value;
    }
    to_out_ = !call_.out.empty() && (response.status == 200 || response.status == 206);
    skip_ = response.status == 200 ? call_.offset : 0;
    return true;
  }

  bool OnBody(const char* data, size_t size) {
    if (!to_out_) {
      if (answer_.body.size() + size > kMaxAnswerBytes) return false;
      answer_.body.append(data, size);
      return true;
    }
    const auto skipped = static_cast<size_t>(std::min<uint64_t>(skip_, size));
    skip_ -= skipped;
    data += skipped;
    const size_t taken =
        std::min<uint64_t>(size - skipped, call_.out.size() - answer_.received);
    if (taken > 0) std::memcpy(call_.out.data() + answer_.received, data, taken);
    answer_.received += taken;
    return taken == size - skipped;
  }

  // All that was asked for is there; what else comes is not wanted.
  bool IsFull() const { return to_out_ && answer_.received == call_.out.size(); }

 private:
  const S3Call& call_;
  S3Answer& answer_;
  bool to_out_ = false;
  uint64_t skip_ = 0;
};

void AddBody(const S3Call& call, const std::function<bool()>& in_time,
             httplib::Request& request) {
  if (call.body.empty()) return;
  request.content_length_ = call.body.size();
  request.content_provider_ = [&call, in_time](size_t offset, size_t length,
                                               httplib::DataSink& sink) {
    if (!in_time()) return false;
    const auto* data = reinterpret_cast<const char*>(call.body.data());
    return sink.write(data + offset, std::min(length, kBodyPiece));
  };
}

std::string Explain(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
    case httplib::Error::ConnectionTimeout:
      return "it does not answer there, or its name is unknown";
    case httplib::Error::SSLConnection:
      return "no TLS can be agreed on; is it http:// rather than https://?";
    case httplib::Error::Write:
    case httplib::Error::Read:
      return "the connection broke, or stood still for too long";
    case httplib::Error::Canceled:
      return "it took too long";
    default:
      return httplib::to_string(error);
  }
}

}  // namespace

std::string S3Answer::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

S3Client::S3Client(S3Settings settings, S3ClientOptions options)
    : settings_(std::move(settings)), options_(std::move(options)) {}

S3Client::~S3Client() {
  const WithoutSigpipe without_sigpipe;  // TLS says good-bye
  absl::MutexLock lock(&mutex_);
  idle_.clear();
}

std::unique_ptr<httplib::Client> S3Client::Connection() {
  {
    absl::MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      auto client = std::move(idle_.back());
      idle_.pop_back();
      return client;
    }
  }
  auto client = std::make_unique<httplib::Client>(settings_.origin);
  client->set_url_encode(false);
  client->set_decompress(false);
  client->set_keep_alive(true);
  client->set_tcp_nodelay(true);
  client->set_connection_timeout(absl::ToChronoMicroseconds(options_.connect));
  client->set_read_timeout(absl::ToChronoMicroseconds(options_.attempt));
  client->set_write_timeout(absl::ToChronoMicroseconds(options_.attempt));
  client->enable_server_certificate_verification(true);
  if (!settings_.ca_bundle.empty()) client->set_ca_cert_path(settings_.ca_bundle);
  return client;
}

void S3Client::GiveBack(std::unique_ptr<httplib::Client> client) {
  absl::MutexLock lock(&mutex_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(client));
}

S3Client::Tried S3Client::Try(const S3Call& call) {
  const absl::Duration end =
      clock_.Now() + options_.attempt +
      absl::Seconds(static_cast<double>(call.body.size() + call.out.size()) /
                    kSlowestBytesPerSecond);
  const auto in_time = [&] { return clock_.Now() < end; };
  Tried tried;
  Receiver receiver(call, tried.answer);
  httplib::Request request = Signed(settings_, call);
  AddBody(call, in_time, request);
  request.response_handler = [&](const httplib::Response& r) {
    return receiver.OnHead(r);
  };
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    return receiver.OnBody(data, size) && in_time();
  };
  std::unique_ptr<httplib::Client> client = Connection();
  const httplib::Result result = client->send(request);
  // Where there is no body, the handler of heads is not asked.
  if (result && tried.answer.status == 0) (void)receiver.OnHead(*result);
  if (result || receiver.IsFull()) {
    if (result) GiveBack(std::move(client));
    const bool is_post = call.method == "POST" && tried.answer.status == 200;
    const bool is_fine = !is_post && IsUnderstood(call, tried.answer.status);
    const std::string code = is_fine ? "" : ParseErrorBody(tried.answer.body).code;
    // What takes long is answered with 200 before it is known how it ends.
    if (is_post && !code.empty()) tried.answer.status = MayTryAgain(0, code) ? 503 : 400;
    tried.may_try_again = !IsUnderstood(call, tried.answer.status) &&
                          MayTryAgain(tried.answer.status, code);
    int seconds = 0;
    if (absl::SimpleAtoi(tried.answer.Header("retry-after"), &seconds) && seconds > 0) {
      tried.wait = absl::Seconds(seconds);
    }
    return tried;
  }
  if (result.error() == httplib::Error::SSLServerVerification ||
      result.error() == httplib::Error::SSLLoadingCerts) {
    tried.status = absl::PermissionDeniedError(
        absl::StrCat(NameOf(call),
                     ": its certificate is not trusted; name the file of its authority "
                     "in AWS_CA_BUNDLE",
                     settings_.ca_bundle.empty() ? "" : ", now ", settings_.ca_bundle));
    return tried;
  }
  tried.status =
      absl::UnavailableError(absl::StrCat(NameOf(call), ": ", Explain(result.error())));
  tried.may_try_again = true;
  return tried;
}

bool S3Client::Pause(absl::Duration wait) {
  const std::stop_token& hurry = options_.hurry;
  if (options_.pause) {
    options_.pause(wait);
    return !hurry.stop_requested();
  }
  const std::stop_callback wake(hurry, [this] {
    absl::MutexLock lock(&mutex_);
    hurried_.SignalAll();
  });
  absl::MutexLock lock(&mutex_);
  const absl::Duration end = clock_.Now() + wait;
  while (!hurry.stop_requested() && hurried_.WaitUntil(mutex_, clock_, end)) {
  }
  return !hurry.stop_requested();
}

absl::StatusOr<S3Answer> S3Client::Do(const S3Call& call) {
  const WithoutSigpipe without_sigpipe;
  const absl::Duration end = clock_.Now() + std::min(options_.patience, call.patience);
  for (int attempt = 1;; ++attempt) {
    Tried tried = Try(call);
    tried.answer.attempts = attempt;
    const absl::Duration wait = PauseAfter(attempt, tried.wait);
    const bool again =
        tried.may_try_again && attempt < kMaxAttempts && clock_.Now() + wait < end;
    if (again && Pause(wait)) continue;
    if (!tried.status.ok()) {
      if (!tried.may_try_again) return tried.status;
      return WithFailure(
          absl::UnavailableError(absl::StrCat(std::string(tried.status.message()),
                                              "; asked ", attempt, " times")),
          Failure::kUnreachable);
    }
    if (IsUnderstood(call, tried.answer.status)) return std::move(tried.answer);
    return ErrorOf(call, tried.answer);
  }
}

}  // namespace syncline
