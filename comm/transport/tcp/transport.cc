#include "comm/transport/tcp/transport.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/failure.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "comm/transport/tcp/plain_channel.h"
#include "comm/transport/tcp/socket.h"

namespace syncline {
namespace {

// Bytes that one connection may move before others have their turn.
constexpr size_t kReadBudget = size_t{1} << 20;
constexpr size_t kWriteBudget = size_t{1} << 20;
// Number of such reads from a connection that cannot be written to any more. Together
// they exceed what a kernel holds.
constexpr int kLastReads = 16;

// With TLS, each read returns at most one record, directly into the payload. Only bytes
// that come together with a header are copied.
constexpr size_t kSealedStagingBytes = size_t{4} << 10;
constexpr size_t kPlainStagingBytes = size_t{64} << 10;

// Tags of the descriptors in epoll that are not connections.
constexpr uint64_t kWakeTag = 0;
constexpr uint64_t kListenerTag = 1;
constexpr uint64_t kFirstConnection = 2;

constexpr int kEventsAtOnce = 64;

absl::Status PortsInUse(const TcpOptions& options) {
  const bool is_range = options.last_port > options.first_port;
  return WithFailure(
      absl::UnavailableError(absl::StrCat(
          "data plane: ", is_range ? "all ports from " : "port ", options.first_port,
          is_range ? absl::StrCat(" to ", options.last_port) : "", " of ",
          options.listen_host, is_range ? " are" : " is",
          " already in use; stop the processes that listen there (ss -ltnp), or choose "
          "others with --data-plane-ports")),
      Failure::kPortInUse);
}

void Sum(const TrafficCounts& counts, TrafficCounts& into) {
  for (size_t i = 0; i < kTrafficClasses; ++i) {
    into.sent_bytes[i] += counts.sent_bytes[i];
    into.messages[i] += counts.messages[i];
    into.waited_seconds[i] += counts.waited_seconds[i];
  }
}

}  // namespace

TcpLoopTransport::TcpLoopTransport(const TcpOptions& options, Receiver& receiver)
    : options_(options),
      receiver_(receiver),
      clock_(options.clock != nullptr ? *options.clock : own_clock_),
      next_id_(kFirstConnection) {
  SYNCLINE_CHECK(options.listen_host.empty() || options.acceptor != nullptr);
}

absl::Status TcpLoopTransport::Open() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll_.valid() || !wake_.valid()) {
    return absl::ResourceExhaustedError("no descriptor left for a transport (ulimit -n)");
  }
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = kWakeTag}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  if (options_.security == TcpSecurity::kTls) {
    SYNCLINE_ASSIGN_OR_RETURN(tls_,
                              TlsContext::Create({.gather_bytes = options_.gather_bytes,
                                                  .rekey_bytes = options_.rekey_bytes,
                                                  .rekey_after = options_.rekey_after,
                                                  .clock = &clock_}));
  }
  return options_.listen_host.empty() ? absl::OkStatus() : Listen();
}

absl::Status TcpLoopTransport::Listen() {
  absl::StatusOr<Listener> listener;
  uint16_t port = options_.first_port;
  do {
    SYNCLINE_ASSIGN_OR_RETURN(const SocketAddress at,
                              MakeSocketAddress(options_.listen_host, port));
    listener = ListenAt(at);
  } while (!listener.ok() && port++ < options_.last_port);
  if (FailureOf(listener.status()) == Failure::kPortInUse) {
    return PortsInUse(options_);
  }
  SYNCLINE_RETURN_IF_ERROR(listener.status());
  listener_ = std::move(listener->fd);
  const std::string& host =
      options_.advertised_host.empty() ? options_.listen_host : options_.advertised_host;
  SYNCLINE_RETURN_IF_ERROR(MakeSocketAddress(host, listener->port).status());
  address_ = EncodeTcpAddress(host, listener->port);
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = kListenerTag}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event);
  return absl::OkStatus();
}

TcpLoopTransport::~TcpLoopTransport() {
  for (TcpEndpoint* endpoint : endpoints_) endpoint->transport_ = nullptr;
  while (!connections_.empty()) {
    const Shared connection = connections_.begin()->second;
    connection->options.on_failure = nullptr;
    Close(*connection, absl::CancelledError("transport was closed"));
  }
  failed_.clear();
  RunCallbacks();  // there is no Progress() after this
}

// ---- Connections ----

TcpLoopTransport::Shared TcpLoopTransport::Add(UniqueFd fd, TcpConnection::Side side,
                                               const std::string& peer) {
  TuneSocket(fd.get(), options_.failure_timeout, options_.gather_bytes);
  auto connection =
      std::make_shared<TcpConnection>(next_id_++, std::move(fd), side, peer);
  connections_[connection->id()] = connection;
  connection->deadline = clock_.Now() + options_.failure_timeout / 4;
  deadlines_.insert({connection->deadline, connection->id()});
  epoll_event event = {.events = 0, .data = {.u64 = connection->id()}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->fd(), &event);
  return connection;
}

std::unique_ptr<Channel> TcpLoopTransport::MakeChannel(TcpConnection::Side side, int fd,
                                                       const PeerKey& key) {
  if (side == TcpConnection::Side::kDialled) {
    return tls_ != nullptr ? tls_->Dial(fd, key) : DialPlain(fd, key);
  }
  KeyFinder find_key = [acceptor = options_.acceptor](std::string_view identity) {
    return acceptor->FindKey(identity);
  };
  return tls_ != nullptr ? tls_->Accept(fd, std::move(find_key))
                         : AcceptPlain(fd, std::move(find_key));
}

absl::StatusOr<std::unique_ptr<Endpoint>> TcpLoopTransport::Connect(
    const std::string& address, ConnectOptions options) {
  SYNCLINE_ASSIGN_OR_RETURN(const SocketAddress there, ParseTcpAddress(address));
  if (tls_ != nullptr && options.key.key.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no key for the connection to ", DescribeAddress(there)));
  }
  absl::StatusOr<UniqueFd> fd = DialTo(there);
  if (!fd.ok()) return FailedEndpoint(there, std::move(options), fd.status());
  const Shared connection =
      Add(*std::move(fd), TcpConnection::Side::kDialled, DescribeAddress(there));
  connection->set_channel(
      MakeChannel(TcpConnection::Side::kDialled, connection->fd(), options.key));
  options.key.key.Erase();
  connection->options = std::move(options);
  Watch(*connection);
  return std::make_unique<TcpEndpoint>(*this, connection);
}

// A failure inside Connect is reported in the same way as a later one.
std::unique_ptr<Endpoint> TcpLoopTransport::FailedEndpoint(const SocketAddress& there,
                                                           ConnectOptions options,
                                                           const absl::Status& status) {
  const auto connection = std::make_shared<TcpConnection>(
      next_id_++, UniqueFd(), TcpConnection::Side::kDialled, DescribeAddress(there));
  connection->options = std::move(options);
  connection->options.key.key.Erase();
  connection->failure = status;
  std::vector<SendDone> nothing;
  connection->Close(nothing);
  failed_.push_back(connection);
  return std::make_unique<TcpEndpoint>(*this, connection);
}

// ---- Reading ----

int TcpLoopTransport::Progress() {
  int events = 0;
  std::array<epoll_event, kEventsAtOnce> ready;
  const int count = epoll_wait(epoll_.get(), ready.data(), kEventsAtOnce, 0);
  const std::vector<Shared> unread = std::exchange(unread_, {});
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = ready[i].data.u64;
    ++events;
    if (tag == kWakeTag) {
      uint64_t wakes = 0;
      (void)!read(wake_.get(), &wakes, sizeof(wakes));
    } else if (tag == kListenerTag) {
      Accept();
    } else if (const auto found = connections_.find(tag); found != connections_.end()) {
      Serve(Shared(found->second));
    }
  }
  for (const Shared& connection : unread) {
    connection->is_unread = false;
    ReadFrom(connection);
  }
  CheckDeadlines();
  SendPaced();
  WriteAll();
  return events + static_cast<int>(unread.size()) + RunCallbacks();
}

void TcpLoopTransport::Serve(const Shared& connection) {
  if (connection->phase() != TcpConnection::Phase::kOpen) BeginOn(connection);
  ReadFrom(connection);
  if (connection->Interest() & EPOLLOUT) MarkDirty(connection);
}

void TcpLoopTransport::BeginOn(const Shared& connection) {
  if (connection->phase() == TcpConnection::Phase::kClosed) return;
  const absl::StatusOr<bool> is_open = connection->Begin();
  if (!is_open.ok()) return Broken(connection, is_open.status());
  if (*is_open) {
    Opened(connection);
  } else {
    Watch(*connection);
  }
}

void TcpLoopTransport::Opened(const Shared& connection) {
  Forget(*connection);
  if (connection->side() == TcpConnection::Side::kAccepted) {
    pending_.Remove(connection->id());
    auto endpoint = std::make_unique<TcpEndpoint>(*this, connection);
    connection->options =
        options_.acceptor->OnAccepted(connection->identity(), std::move(endpoint));
    if (connection->phase() == TcpConnection::Phase::kClosed) return;
  }
  Receiver* receiver = connection->options.receiver;
  connection->Open(receiver != nullptr ? *receiver : receiver_,
                   tls_ != nullptr ? kSealedStagingBytes : kPlainStagingBytes);
  MarkDirty(connection);
  Watch(*connection);
}

void TcpLoopTransport::ReadFrom(const Shared& connection) {
  if (connection->phase() != TcpConnection::Phase::kOpen || connection->is_unread) return;
  const absl::StatusOr<bool> has_more = connection->Read(kReadBudget);
  if (!has_more.ok()) return Broken(connection, has_more.status());
  if (!*has_more || connection->phase() != TcpConnection::Phase::kOpen) return;
  connection->is_unread = true;
  unread_.push_back(connection);
}

// ---- Sending ----

void TcpLoopTransport::MarkDirty(const Shared& connection) {
  if (connection->is_dirty || connection->phase() != TcpConnection::Phase::kOpen) return;
  connection->is_dirty = true;
  dirty_.push_back(connection);
}

void TcpLoopTransport::WriteAll() {
  const std::vector<Shared> dirty = std::exchange(dirty_, {});
  for (const Shared& connection : dirty) {
    connection->is_dirty = false;
    WriteTo(connection);
  }
}

void TcpLoopTransport::SendPaced() {
  if (paced_.empty()) return;
  const absl::Duration now = clock_.Now();
  std::erase_if(paced_, [&](const Shared& connection) {
    if (connection->look_at() > now && connection->look_at() < absl::InfiniteDuration()) {
      return false;
    }
    connection->is_paced = false;
    MarkDirty(connection);
    return true;
  });
}

void TcpLoopTransport::WriteTo(const Shared& connection) {
  if (connection->phase() != TcpConnection::Phase::kOpen) return;
  done_.clear();
  const absl::StatusOr<bool> has_more =
      connection->Write(kWriteBudget, clock_.Now(), done_);
  for (SendDone& done : done_) Complete(std::move(done), absl::OkStatus());
  if (!has_more.ok()) return ReadTheRest(connection, has_more.status());
  if (*has_more) MarkDirty(connection);
  const bool must_look = connection->look_at() < absl::InfiniteDuration();
  if (must_look && !std::exchange(connection->is_paced, true)) {
    paced_.push_back(connection);
  }
  Watch(*connection);
}

// Reads what the peer sent before the connection failed: it may say why the peer left.
// The number of reads is limited, in case the peer keeps sending.
void TcpLoopTransport::ReadTheRest(const Shared& connection, const absl::Status& why) {
  absl::StatusOr<bool> has_more = true;
  for (int i = 0; i < kLastReads && has_more.ok() && *has_more; ++i) {
    has_more = connection->Read(kReadBudget);
  }
  if (connection->phase() == TcpConnection::Phase::kOpen) Broken(connection, why);
}

void TcpLoopTransport::Watch(TcpConnection& connection) {
  const uint32_t interest = connection.Interest();
  if (interest == connection.watched) return;
  connection.watched = interest;
  epoll_event event = {.events = interest, .data = {.u64 = connection.id()}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.fd(), &event);
}

// ---- Closing ----

void TcpLoopTransport::Forget(TcpConnection& connection) {
  deadlines_.erase({connection.deadline, connection.id()});
  connection.deadline = absl::InfiniteDuration();
}

void TcpLoopTransport::CheckDeadlines() {
  if (deadlines_.empty() && accept_again_ == absl::InfiniteDuration()) return;
  const absl::Duration now = clock_.Now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const Shared late = connections_.at(deadlines_.begin()->second);
    const auto why = absl::UnavailableError(
        absl::StrCat("no handshake with ", late->peer(), " within ",
                     absl::FormatDuration(options_.failure_timeout / 4)));
    if (late->side() == TcpConnection::Side::kAccepted) {
      Refuse(*late, Refusal::kTimeout, why);
    } else {
      Broken(late, why);
    }
  }
  if (accept_again_ > now) return;
  accept_again_ = absl::InfiniteDuration();
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = kListenerTag}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event);
}

void TcpLoopTransport::Broken(const Shared& connection, const absl::Status& status) {
  const bool is_pending = pending_.contains(connection->id());
  if (is_pending && !absl::IsUnavailable(status)) {
    return Refuse(*connection,
                  IsUnknownIdentity(status) ? Refusal::kIdentity : Refusal::kHandshake,
                  status);
  }
  if (is_pending) return Close(*connection, status);  // the peer left by itself
  const bool is_accepted = connection->side() == TcpConnection::Side::kAccepted;
  if (is_accepted && !absl::IsUnavailable(status)) {
    Refuse(*connection, Refusal::kMalformed, status);
  } else {
    Close(*connection, status);
  }
  failed_.push_back(connection);
}

void TcpLoopTransport::Refuse(TcpConnection& connection, Refusal refusal,
                              const absl::Status& status) {
  const std::string peer = connection.peer();
  Close(connection, status);
  options_.acceptor->OnRefused({refusal, peer, std::string(status.message())});
}

void TcpLoopTransport::Close(TcpConnection& connection, const absl::Status& status) {
  if (connection.phase() == TcpConnection::Phase::kClosed) return;
  const Shared keep = connections_.at(connection.id());
  Forget(connection);
  pending_.Remove(connection.id());
  connections_.erase(connection.id());
  connection.failure = status;
  Sum(connection.traffic(), closed_);
  std::vector<SendDone> pending;
  connection.Close(pending);
  for (SendDone& done : pending) Complete(std::move(done), status);
}

void TcpLoopTransport::Complete(SendDone done, const absl::Status& status) {
  completed_.push_back({std::move(done), status});
}

// Callbacks may do anything except destroy the transport.
int TcpLoopTransport::RunCallbacks() {
  int ran = 0;
  while (!failed_.empty()) {
    const Shared connection = std::move(failed_.front());
    failed_.pop_front();
    const auto on_failure = std::exchange(connection->options.on_failure, nullptr);
    if (on_failure) on_failure(connection->failure);
    ++ran;
  }
  // Runs only the completions that exist now: a callback that sends may add another one
  // each time.
  for (size_t left = completed_.size(); left > 0; --left, ++ran) {
    const Completion completion = std::move(completed_.front());
    completed_.pop_front();
    if (completion.done) completion.done(completion.status);
  }
  return ran;
}

// ---- Sleeping ----

absl::Duration TcpLoopTransport::MaySleep() const {
  const bool is_busy =
      !completed_.empty() || !failed_.empty() || !dirty_.empty() || !unread_.empty();
  if (is_busy) return absl::ZeroDuration();
  absl::Duration until = accept_again_;
  if (!deadlines_.empty()) until = std::min(until, deadlines_.begin()->first);
  for (const Shared& connection : paced_) {
    until = std::min(until, connection->look_at());
  }
  if (until == absl::InfiniteDuration()) return until;
  return std::max(until - clock_.Now(), absl::ZeroDuration());
}

bool TcpLoopTransport::HasUnsent() const {
  return std::any_of(connections_.begin(), connections_.end(), [](const auto& entry) {
    const TcpConnection& connection = *entry.second;
    return connection.phase() == TcpConnection::Phase::kOpen && connection.has_unsent();
  });
}

TrafficCounts TcpLoopTransport::traffic() const {
  TrafficCounts all = closed_;
  for (const auto& [id, connection] : connections_) {
    Sum(connection->traffic(), all);
    for (size_t i = 0; i < kTrafficClasses; ++i) {
      all.queued_bytes[i] += connection->queued_bytes()[i];
    }
  }
  return all;
}

void TcpLoopTransport::Wait(absl::Duration timeout) {
  const absl::Duration sleep = std::min(timeout, MaySleep());
  if (sleep <= absl::ZeroDuration()) return;
  // Uses ppoll on the epoll descriptor, because epoll_wait counts in milliseconds.
  pollfd all = {epoll_.get(), POLLIN, 0};
  const timespec limit = absl::ToTimespec(sleep);
  ppoll(&all, 1, sleep == absl::InfiniteDuration() ? nullptr : &limit, nullptr);
}

void TcpLoopTransport::Wake() {
  const uint64_t one = 1;
  // This fails only if a wake-up is already pending.
  (void)!write(wake_.get(), &one, sizeof(one));
}

}  // namespace syncline
