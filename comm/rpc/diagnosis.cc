#include "comm/rpc/diagnosis.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/env.h"
#include "comm/base/status.h"
#include "comm/base/steady_condition.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/address.h"
#include "comm/rpc/tls_probe.h"

namespace syncline {
namespace {

constexpr absl::string_view kNothingWrong = "nothing is wrong with it now; try again";
constexpr absl::string_view kSpeaksTls =
    "it seems to speak TLS; give --tls-ca, --tls-cert and --tls-key";

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};

std::string Explain(int error) {
  switch (error) {
    case ECONNREFUSED:
      return "nothing listens there; check that it runs and that the port is right";
    case EINPROGRESS:
    case EAGAIN:
    case ETIMEDOUT:
      return "nothing answers there; check the address, and firewalls on the way";
    default:
      return absl::StrCat(std::strerror(error), "; check the address and the network");
  }
}

// Sends the first bytes of an HTTP/2 client, and checks the first frame of the answer.
Diagnosis ProbePlainText(int fd) {
  constexpr absl::string_view kPreface(
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  constexpr size_t kFrameHeader = 9;
  constexpr char kSettings = 4;
  if (send(fd, kPreface.data(), kPreface.size(), MSG_NOSIGNAL) < 0) {
    return {std::string(kSpeaksTls)};
  }
  std::array<char, kFrameHeader> first = {};
  const ssize_t got = recv(fd, first.data(), first.size(), MSG_WAITALL);
  // A peer that expects a TLS handshake closes the connection, with or without an alert.
  if (got == 0 || (got < 0 && errno == ECONNRESET)) {
    return {std::string(kSpeaksTls)};
  }
  if (got < 0) {
    return {"it accepts connections but sends nothing; check that it is not stopped"};
  }
  const absl::string_view head(first.data(), static_cast<size_t>(got));
  if (absl::StartsWith(head, "HTTP/1")) {
    return {"it speaks HTTP/1, perhaps it is an admin port; give the control address",
            true};
  }
  if (head[0] == '\x15' || head[0] == '\x16') {
    return {std::string(kSpeaksTls)};
  }
  if (head.size() == kFrameHeader && head[3] == kSettings) {
    return {std::string(kNothingWrong)};
  }
  return {"something that is not Syncline listens there; check the port", true};
}

}  // namespace

absl::StatusOr<UniqueFd> ConnectTo(const HostPort& target, absl::Duration limit,
                                   absl::FunctionRef<void()> looked_up) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int found = getaddrinfo(target.host.c_str(), std::to_string(target.port).c_str(),
                                &hints, &list);
  if (found != 0) {
    return absl::NotFoundError(absl::StrCat("no host is called '", target.host,
                                            "' here (", gai_strerror(found),
                                            "); check the name"));
  }
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(list);
  looked_up();
  const timeval timeout = absl::ToTimeval(limit);
  int error = ETIMEDOUT;
  for (const addrinfo* next = list; next != nullptr; next = next->ai_next) {
    UniqueFd fd(socket(next->ai_family, next->ai_socktype | SOCK_CLOEXEC, 0));
    if (!fd.valid()) {
      error = errno;
      continue;
    }
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    if (connect(fd.get(), next->ai_addr, next->ai_addrlen) == 0) return fd;
    error = errno;
  }
  return absl::UnavailableError(Explain(error));
}

namespace {

Diagnosis Diagnose(const std::string& address, const TlsOptions& tls,
                   absl::Duration limit, absl::FunctionRef<void()> looked_up) {
  const auto target = ParseHostPort(address.substr(0, address.find(',')));
  if (!target.ok()) return {std::string(target.status().message())};
  const auto socket = ConnectTo(*target, limit, looked_up);
  if (!socket.ok()) return {std::string(socket.status().message())};
  if (!tls.HasTls()) {
    Diagnosis found = ProbePlainText(socket->get());
    if (found.cause != kSpeaksTls) return found;
    const auto again = ConnectTo(*target, limit);
    found.is_lasting = again.ok() && AnswersTls(again->get(), target->host);
    return found;
  }
  const Diagnosis found = ProbeTls(socket->get(), target->host, tls);
  return found.cause.empty() ? Diagnosis{std::string(kNothingWrong)} : found;
}

}  // namespace

Diagnosis DiagnoseConnection(const std::string& address, const TlsOptions& tls,
                             absl::Duration limit) {
  return Diagnose(address, tls, limit, [] {});
}

struct Inquiry::Answer {
  absl::Mutex mutex;
  SteadyCondition changed;
  bool is_looked_up ABSL_GUARDED_BY(mutex) = false;
  std::optional<Diagnosis> found ABSL_GUARDED_BY(mutex);
};

Inquiry::Inquiry(const std::string& address, const TlsOptions& tls, absl::Duration limit)
    : answer_(std::make_shared<Answer>()) {
  std::thread([answer = answer_, address, tls, limit] {
    Diagnosis found = Diagnose(address, tls, limit, [&] {
      absl::MutexLock lock(&answer->mutex);
      answer->is_looked_up = true;
    });
    absl::MutexLock lock(&answer->mutex);
    answer->found = std::move(found);
    answer->changed.SignalAll();
  }).detach();
}

std::optional<Diagnosis> Inquiry::found() const {
  absl::MutexLock lock(&answer_->mutex);
  return answer_->found;
}

Diagnosis Inquiry::Within(absl::Duration patience) const {
  {
    const SteadyClock clock;
    const absl::Duration deadline = clock.Now() + patience;
    absl::MutexLock lock(&answer_->mutex);
    while (!answer_->found &&
           answer_->changed.WaitUntil(answer_->mutex, clock, deadline)) {
    }
    if (answer_->found) return *answer_->found;
  }
  return SoFar();
}

Diagnosis Inquiry::SoFar() const {
  absl::MutexLock lock(&answer_->mutex);
  if (!answer_->is_looked_up) {
    return {"its name is still being looked up; check the name and the name server"};
  }
  return {
      "its name was looked up, but nothing has answered there so far; check the address, "
      "and firewalls on the way"};
}

}  // namespace syncline
