#include "cli/trainjob/client.h"

#include <fcntl.h>
#include <httplib.h>
#include <pthread.h>
#include <sys/socket.h>

#include <csignal>
#include <exception>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/base/steady_condition.h"
#include "comm/base/unique_fd.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

constexpr size_t kMaxAnswerBytes = 64 << 10;
// Time for a thread whose connection was cut to end.
constexpr absl::Duration kToEnd = absl::Milliseconds(500);

std::string Explain(httplib::Error error, const TrainJobTarget& target) {
  switch (error) {
    case httplib::Error::Connection:
    case httplib::Error::ConnectionTimeout:
      return "nothing answers there, or its name is unknown";
    case httplib::Error::SSLConnection:
      return "the TLS handshake failed";
    case httplib::Error::SSLLoadingCerts:
      return absl::StrCat("the CA's file ", Printable(target.ca_file),
                          " (KUBEFLOW_TRAINER_SERVER_CA_CERT) cannot be read");
    case httplib::Error::SSLServerVerification:
      return absl::StrCat("its certificate is not vouched for by ",
                          target.ca_file.empty() ? "this machine's authorities; set "
                                                   "KUBEFLOW_TRAINER_SERVER_CA_CERT"
                                                 : Printable(target.ca_file));
    default:
      return "the connection broke";
  }
}

// Returns what an answer other than 2xx means. Kubernetes answers with a Status object.
std::string Explain(int status, const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto message =
      json.is_object() ? json.value("message", nlohmann::json()) : nlohmann::json();
  std::string text = absl::StrCat("HTTP ", status);
  if (message.is_string()) {
    absl::StrAppend(&text, ", ", Printable(message.get<std::string>()));
  }
  if (status == 401 || status == 403) {
    absl::StrAppend(&text,
                    "; the token in KUBEFLOW_TRAINER_SERVER_TOKEN may not be one of this "
                    "TrainJob");
  }
  return text;
}

absl::Duration RetryAfter(const std::string& text) {
  int seconds = 0;
  const bool is_asked = absl::SimpleAtoi(text, &seconds) && seconds > 0;
  return is_asked ? absl::Seconds(seconds) : absl::ZeroDuration();
}

}  // namespace

// What the thread of one request shares with the caller, which may give up on it.
struct TrainJobClient::Attempt {
  // The library calls this before it connects, so that a slow connection can be cut, too.
  // It may close its own descriptor at any time, so a copy is kept.
  void Opened(int fd) {
    UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    absl::MutexLock lock(&mutex);
    socket = std::move(copy);
    if (was_cut) (void)shutdown(socket.get(), SHUT_RDWR);
  }

  void Cut() {
    absl::MutexLock lock(&mutex);
    was_cut = true;
    if (socket.valid()) (void)shutdown(socket.get(), SHUT_RDWR);
    changed.SignalAll();
  }

  void End(absl::Status status, absl::Duration wait) {
    absl::MutexLock lock(&mutex);
    result = std::move(status);
    retry_after = wait;
    socket = UniqueFd();
    changed.SignalAll();
  }

  // Waits until the request has ended, or was cut, or until `deadline`.
  void Await(const Clock& clock, absl::Duration deadline) {
    absl::MutexLock lock(&mutex);
    while (!result && !was_cut && changed.WaitUntil(mutex, clock, deadline)) {
    }
  }

  // Waits until the request has ended or until `deadline`. Returns whether it has ended.
  bool HasEnded(const Clock& clock, absl::Duration deadline) {
    absl::MutexLock lock(&mutex);
    while (!result && changed.WaitUntil(mutex, clock, deadline)) {
    }
    return result.has_value();
  }

  // Throws nothing: it runs on a thread of its own.
  void Run(const TrainJobTarget& target, const std::string& token,
           const std::string& message, absl::Duration limit) {
    try {
      Send(target, token, message, limit);
    } catch (const std::exception& error) {
      End(absl::UnavailableError(absl::StrCat(target.origin, ": ", error.what())), {});
    }
  }

  void Send(const TrainJobTarget& target, const std::string& token,
            const std::string& message, absl::Duration limit);

  absl::Mutex mutex;
  SteadyCondition changed;
  UniqueFd socket ABSL_GUARDED_BY(mutex);
  bool was_cut ABSL_GUARDED_BY(mutex) = false;
  std::optional<absl::Status> result ABSL_GUARDED_BY(mutex);
  absl::Duration retry_after ABSL_GUARDED_BY(mutex) = {};
};

void TrainJobClient::Attempt::Send(const TrainJobTarget& target, const std::string& token,
                                   const std::string& message, absl::Duration limit) {
  // A peer that closes its connection must not end the process.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);

  httplib::Client http(target.origin);
  http.set_socket_options([this](int fd) { Opened(fd); });
  http.enable_server_certificate_verification(true);
  if (!target.ca_file.empty()) http.set_ca_cert_path(target.ca_file);
  const auto silence = absl::ToChronoMicroseconds(limit);
  http.set_connection_timeout(silence);
  http.set_read_timeout(silence);
  http.set_write_timeout(silence);

  std::string body;
  httplib::Request request;
  request.method = "POST";
  request.path = target.path;
  request.body = message;
  request.headers = {{"Authorization", absl::StrCat("Bearer ", token)},
                     {"Content-Type", "application/json"},
                     {"User-Agent", "syncline"}};
  request.content_receiver = [&body](const char* data, size_t size, uint64_t, uint64_t) {
    if (body.size() + size > kMaxAnswerBytes) return false;
    body.append(data, size);
    return true;
  };
  const httplib::Result answer = http.send(request);
  const std::string where = absl::StrCat(target.origin, ": ");
  if (!answer) {
    return End(absl::UnavailableError(where + Explain(answer.error(), target)), {});
  }
  const absl::Duration wait = RetryAfter(answer->get_header_value("Retry-After"));
  if (answer->status >= 200 && answer->status < 300) return End(absl::OkStatus(), wait);
  End(absl::UnavailableError(where + Explain(answer->status, body)), wait);
}

absl::Status TrainJobClient::Post(const std::string& message, absl::Duration limit,
                                  absl::Duration* retry_after) {
  if (retry_after != nullptr) *retry_after = absl::ZeroDuration();
  SYNCLINE_ASSIGN_OR_RETURN(const std::string token, target_.ReadToken());
  const auto fails = [this](std::string_view why) {
    return absl::UnavailableError(absl::StrCat(target_.origin, ": ", std::string(why)));
  };
  std::shared_ptr<Attempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    if (is_cut_) return absl::CancelledError("no more messages are sent");
    if (attempt_ != nullptr && !attempt_->HasEnded(clock_, clock_.Now())) {
      return fails("its name is still being looked up");
    }
    attempt = attempt_ = std::make_shared<Attempt>();
  }
  std::thread thread;
  try {
    thread = std::thread([attempt, token, message, limit, target = target_] {
      attempt->Run(target, token, message, limit);
    });
  } catch (const std::system_error& error) {
    const absl::Status failed = fails(absl::StrCat("no thread: ", error.what()));
    attempt->End(failed, {});
    return failed;
  }
  attempt->Await(clock_, clock_.Now() + limit);
  const bool has_answered = attempt->HasEnded(clock_, clock_.Now());
  if (!has_answered) attempt->Cut();
  // Nothing can end the look-up of a name.
  if (attempt->HasEnded(clock_, clock_.Now() + kToEnd)) {
    thread.join();
  } else {
    thread.detach();
  }
  {
    absl::MutexLock lock(&mutex_);
    if (is_cut_) return absl::CancelledError("the message was cut");
  }
  if (!has_answered) {
    return fails(absl::StrCat("no answer within ", absl::FormatDuration(limit)));
  }
  absl::MutexLock lock(&attempt->mutex);
  if (retry_after != nullptr) *retry_after = attempt->retry_after;
  return *attempt->result;
}

void TrainJobClient::Cut() {
  absl::MutexLock lock(&mutex_);
  is_cut_ = true;
  if (attempt_ != nullptr) attempt_->Cut();
}

}  // namespace syncline
