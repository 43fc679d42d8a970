#include "server/checkpoint/s3/client.h"

#include <fcntl.h>
#include <httplib.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

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
#include "comm/base/unique_fd.h"
#include "server/checkpoint/s3/signature.h"

namespace syncline {
namespace {

// More attempts than the patience has room for, so that the patience decides.
constexpr int kMaxAttempts = 32;
constexpr absl::Duration kFirstPause = absl::Milliseconds(250);
constexpr absl::Duration kLongestPause = absl::Seconds(20);
constexpr size_t kMaxIdle = 16;
// When the process is about to end: the time for all further requests together, and the
// least that each gets, however many there are.
constexpr absl::Duration kInAHurry = absl::Seconds(3);
constexpr absl::Duration kLeastInAHurry = absl::Milliseconds(500);
// httplib takes 0 for "forever".
constexpr absl::Duration kLeastAttempt = absl::Milliseconds(1);
// A page of a list has at most 1,000 names of 1,024 bytes, which are then URL-encoded.
constexpr size_t kMaxAnswerBytes = size_t{16} << 20;
// A body is sent in pieces of this size; the time limit is checked before each.
constexpr size_t kBodyPiece = size_t{256} << 10;

// Blocks SIGPIPE on this thread: a peer that closes its connection must not end the
// process. Signal handlers belong to the program, so none is installed.
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
  // The connection stalled, or another client does the same thing at this moment.
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

// Receives an answer. The body goes to `call.out` if the request succeeded, and to a
// string otherwise.
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

  // Returns true if all requested bytes have arrived. Bytes after them are not needed.
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
      return "the TLS handshake failed; is it http:// rather than https://?";
    case httplib::Error::Write:
    case httplib::Error::Read:
      return "the connection broke, or stalled for too long";
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

// ---- Connections ----

struct S3Client::Connection {
  explicit Connection(const std::string& origin) : http(origin) {}

  httplib::Client http;
  // Both are guarded by the S3Client's lock. The descriptor is a copy, because the
  // library may close its own at any time, and its number may then belong to another
  // file.
  UniqueFd socket;
  bool was_cut = false;
};

S3Client::S3Client(S3Settings settings, S3ClientOptions options)
    : settings_(std::move(settings)),
      options_(std::move(options)),
      on_hurry_(options_.hurry, [this] { Hurry(); }) {}

S3Client::~S3Client() {
  const WithoutSigpipe without_sigpipe;  // closing a TLS connection writes to it
  // Connections are destroyed after the lock is released: Opened takes this lock while
  // the library holds its own.
  std::vector<std::unique_ptr<Connection>> idle;
  absl::MutexLock lock(&mutex_);
  idle.swap(idle_);
}

std::unique_ptr<S3Client::Connection> S3Client::TakeConnection() {
  std::unique_ptr<Connection> connection;
  {
    absl::MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (connection == nullptr) connection = NewConnection();
  absl::MutexLock lock(&mutex_);
  busy_.insert(connection.get());
  return connection;
}

std::unique_ptr<S3Client::Connection> S3Client::NewConnection() {
  auto connection = std::make_unique<Connection>(settings_.origin);
  httplib::Client& http = connection->http;
  http.set_url_encode(false);
  http.set_decompress(false);
  http.set_keep_alive(true);
  http.set_tcp_nodelay(true);
  http.set_socket_options(
      [this, opened = connection.get()](int socket) { Opened(*opened, socket); });
  http.enable_server_certificate_verification(true);
  if (!settings_.ca_bundle.empty()) http.set_ca_cert_path(settings_.ca_bundle);
  return connection;
}

// The library calls this before it connects, so that a slow connect can be cut too.
void S3Client::Opened(Connection& connection, int socket) {
  UniqueFd copy(fcntl(socket, F_DUPFD_CLOEXEC, 0));
  absl::MutexLock lock(&mutex_);
  connection.socket = std::move(copy);
  if (connection.was_cut) (void)shutdown(connection.socket.get(), SHUT_RDWR);
}

bool S3Client::Done(Connection& connection) {
  absl::MutexLock lock(&mutex_);
  busy_.erase(&connection);
  return !connection.was_cut;
}

void S3Client::GiveBack(std::unique_ptr<Connection> connection) {
  absl::MutexLock lock(&mutex_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(connection));
}

void S3Client::Hurry() {
  absl::MutexLock lock(&mutex_);
  hurried_at_ = clock_.Now();
  hurried_.SignalAll();
  for (Connection* connection : busy_) {
    connection->was_cut = true;
    if (connection->socket.valid()) (void)shutdown(connection->socket.get(), SHUT_RDWR);
  }
}

// ---- Attempts ----

absl::Duration S3Client::LimitOf(const S3Call& call, absl::Duration left) {
  const absl::Duration limit =
      std::min(options_.attempt, left) +
      absl::Seconds(static_cast<double>(call.body.size() + call.out.size()) /
                    kSlowestBytesPerSecond);
  absl::MutexLock lock(&mutex_);
  if (!hurried_at_) return std::max(limit, kLeastAttempt);
  return std::max(
      kLeastAttempt,
      std::min(limit, std::max(*hurried_at_ + kInAHurry - clock_.Now(), kLeastInAHurry)));
}

S3Client::Attempt S3Client::Try(const S3Call& call, absl::Duration left) {
  const absl::Duration limit = LimitOf(call, left);
  const absl::Duration end = clock_.Now() + limit;
  const auto in_time = [&] { return clock_.Now() < end; };
  Attempt attempt;
  Receiver receiver(call, attempt.answer);
  httplib::Request request = Signed(settings_, call);
  AddBody(call, in_time, request);
  request.response_handler = [&](const httplib::Response& r) {
    return receiver.OnHead(r);
  };
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    return receiver.OnBody(data, size) && in_time();
  };
  std::unique_ptr<Connection> connection = TakeConnection();
  const auto silence = absl::ToChronoMicroseconds(std::min(limit, options_.attempt));
  connection->http.set_connection_timeout(
      absl::ToChronoMicroseconds(std::min(limit, options_.connect)));
  connection->http.set_read_timeout(silence);
  connection->http.set_write_timeout(silence);
  const httplib::Result result = connection->http.send(request);
  attempt.was_cut = !Done(*connection);
  // httplib does not call the response handler if there is no body.
  if (result && attempt.answer.status == 0) (void)receiver.OnHead(*result);
  if (result || receiver.IsFull()) {
    if (result && !attempt.was_cut) GiveBack(std::move(connection));
    attempt.was_cut = false;  // the cut came too late
    const bool is_post = call.method == "POST" && attempt.answer.status == 200;
    const bool is_fine = !is_post && IsUnderstood(call, attempt.answer.status);
    const std::string code = is_fine ? "" : ParseErrorBody(attempt.answer.body).code;
    // S3 answers slow requests with 200 before it knows how they end.
    if (is_post && !code.empty())
      attempt.answer.status = MayTryAgain(0, code) ? 503 : 400;
    attempt.may_try_again = !IsUnderstood(call, attempt.answer.status) &&
                            MayTryAgain(attempt.answer.status, code);
    int seconds = 0;
    if (absl::SimpleAtoi(attempt.answer.Header("retry-after"), &seconds) && seconds > 0) {
      attempt.wait = absl::Seconds(seconds);
    }
    return attempt;
  }
  if (result.error() == httplib::Error::SSLServerVerification ||
      result.error() == httplib::Error::SSLLoadingCerts) {
    attempt.status = absl::PermissionDeniedError(
        absl::StrCat(NameOf(call),
                     ": its certificate is not trusted; name the file of its authority "
                     "in AWS_CA_BUNDLE",
                     settings_.ca_bundle.empty() ? "" : ", now ", settings_.ca_bundle));
    return attempt;
  }
  attempt.status =
      absl::UnavailableError(absl::StrCat(NameOf(call), ": ", Explain(result.error())));
  attempt.may_try_again = true;
  return attempt;
}

bool S3Client::Pause(absl::Duration wait) {
  const std::stop_token& hurry = options_.hurry;
  if (options_.pause) {
    options_.pause(wait);
    return !hurry.stop_requested();
  }
  absl::MutexLock lock(&mutex_);
  const absl::Duration end = clock_.Now() + wait;
  while (!hurry.stop_requested() && hurried_.WaitUntil(mutex_, clock_, end)) {
  }
  return !hurry.stop_requested();
}

absl::StatusOr<S3Answer> S3Client::Do(const S3Call& call) {
  const WithoutSigpipe without_sigpipe;
  const absl::Duration end = clock_.Now() + std::min(options_.patience, call.patience);
  for (int number = 1;; ++number) {
    Attempt attempt = Try(call, end - clock_.Now());
    attempt.answer.attempts = number;
    // This happens once: nothing cuts an attempt that begins after the cut.
    if (attempt.was_cut) continue;
    const absl::Duration wait = PauseAfter(number, attempt.wait);
    const bool again =
        attempt.may_try_again && number < kMaxAttempts && clock_.Now() + wait < end;
    if (again && Pause(wait)) continue;
    if (!attempt.status.ok()) {
      if (!attempt.may_try_again) return attempt.status;
      return WithFailure(
          absl::UnavailableError(absl::StrCat(std::string(attempt.status.message()),
                                              "; asked ", number, " times")),
          Failure::kUnreachable);
    }
    if (IsUnderstood(call, attempt.answer.status)) return std::move(attempt.answer);
    return ErrorOf(call, attempt.answer);
  }
}

}  // namespace syncline
