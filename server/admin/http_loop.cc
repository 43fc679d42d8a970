#include "server/admin/http_loop.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/descriptors.h"
#include "comm/base/env.h"
#include "comm/base/status.h"
#include "server/admin/http_connection.h"
#include "server/admin/http_reply.h"
#include "server/admin/http_request.h"
#include "server/admin/page_maker.h"

namespace syncline {
namespace {

// Few at once, so that a request which has arrived is read before its connection is
// closed to make room, even when very many connections arrive.
constexpr int kAcceptsPerRound = 16;
constexpr int kEventsPerRound = 64;
// How long to wait when the process has no descriptor left.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// Values of epoll's user data. Connections have the numbers from kFirstConnection on.
constexpr uint64_t kListener = 0;
constexpr uint64_t kWake = 1;
constexpr uint64_t kFirstConnection = 2;

struct Connection {
  enum class State {
    kReading,
    kWaiting,  // for a page that is made on the second thread
    kWriting,
    kStreaming,
    kDraining,  // all was sent; the peer may still be reading
  };
  HttpConnection link;
  absl::Duration deadline;
  State state = State::kReading;
  uint32_t watched = EPOLLIN;  // events of epoll
  std::string received = {};
  HttpRequest asked = {};  // for a page that is made on the second thread
  bool head_only = false;

  // Errors are reported without being asked for.
  uint32_t wanted() const {
    const bool reads = state != State::kWaiting && state != State::kWriting;
    return (reads ? EPOLLIN : 0u) | (link.has_unsent() ? EPOLLOUT : 0u);
  }
};

absl::Status SystemError(std::string_view what) {
  return absl::InternalError(
      absl::StrCat("admin port: cannot ", std::string(what), ": ", std::strerror(errno)));
}

class EpollHttpLoop final : public HttpLoop {
 public:
  EpollHttpLoop(UniqueFd listener, HttpLoopOptions options)
      : options_(std::move(options)),
        listener_(std::move(listener)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  ~EpollHttpLoop() override {
    if (!thread_.joinable()) return;
    stopping_ = true;
    Wake();
    thread_.join();
  }

  absl::Status Begin() {
    if (!epoll_.valid() || !wake_.valid()) return SystemError("wait for connections");
    if (fcntl(listener_.get(), F_SETFL, O_NONBLOCK) != 0 ||
        !Watch(EPOLL_CTL_ADD, listener_.get(), kListener, EPOLLIN) ||
        !Watch(EPOLL_CTL_ADD, wake_.get(), kWake, EPOLLIN)) {
      return SystemError("watch the listener");
    }
    for (const auto& [path, page] : options_.pages) {
      if (page.next) stream_path_ = path;
    }
    maker_ = std::make_unique<PageMaker>([this] { Wake(); });
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

 private:
  using Connections = std::map<uint64_t, Connection>;  // oldest first

  void Run();
  void OnEvent(const epoll_event& event);
  void Accept();
  void Add(UniqueFd socket);
  // Returns false if all connections read the stream.
  bool CloseOldest();
  void PauseAccepting();
  void ResumeAccepting();
  void CloseOverdue();
  int MillisecondsToWait() const;
  // The next three return whether the connection stays open.
  bool Serve(uint64_t id, Connection& connection);
  bool Read(Connection& connection);
  bool Write(Connection& connection);
  void Answer(Connection& connection);
  std::optional<HttpReply> WhatAnswersInPlace(const Connection& connection,
                                              const HttpRequest& asked,
                                              const HttpPage* page) const;
  void Reply(Connection& connection, const HttpReply& reply);
  void WatchWhatItWants(uint64_t id, Connection& connection) const;
  void TakeMadePage();
  void MakeNextPage();
  bool ReadsStream(const Connection& connection) const;
  ptrdiff_t CountStreams() const;
  void BeginStream(Connection& connection, const HttpReply& first);
  void SendToStreams(const std::string& part);
  void BreakSilence();

  bool Watch(int operation, int fd, uint64_t id, uint32_t events) const {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = id;
    return epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
  }

  void Wake() const { eventfd_write(wake_.get(), 1); }

  const HttpLoopOptions options_;
  const UniqueFd listener_;
  const UniqueFd epoll_;
  const UniqueFd wake_;
  const SteadyClock clock_;
  std::atomic<bool> stopping_ = false;

  // Used by the loop's thread only.
  Connections connections_;
  uint64_t next_id_ = kFirstConnection;
  std::optional<absl::Duration> accept_again_at_;  // empty: accepting
  std::string making_;              // path of the page being made; empty: none
  bool making_next_ = false;        // a further part of the stream is being made
  std::vector<uint64_t> made_for_;  // connections that wait for the page
  std::string stream_path_;         // empty: no page is a stream
  absl::Duration next_part_at_ = absl::InfiniteDuration();  // infinite: no readers
  absl::Duration last_part_at_;

  std::unique_ptr<PageMaker> maker_;
  std::thread thread_;
};

void EpollHttpLoop::Run() {
  std::array<epoll_event, kEventsPerRound> events;
  while (!stopping_) {
    const int count =
        epoll_wait(epoll_.get(), events.data(), kEventsPerRound, MillisecondsToWait());
    for (int i = 0; i < count; ++i) OnEvent(events[static_cast<size_t>(i)]);
    CloseOverdue();
    ResumeAccepting();
    TakeMadePage();
    MakeNextPage();
    BreakSilence();
  }
}

void EpollHttpLoop::OnEvent(const epoll_event& event) {
  if (event.data.u64 == kListener) return Accept();
  if (event.data.u64 == kWake) {
    eventfd_t ignored = 0;
    eventfd_read(wake_.get(), &ignored);
    return;
  }
  const auto found = connections_.find(event.data.u64);
  if (found == connections_.end()) return;  // it was closed in this round to make room
  const bool broken = (event.events & (EPOLLERR | EPOLLHUP)) != 0;
  if (broken || !Serve(found->first, found->second)) connections_.erase(found);
}

void EpollHttpLoop::Accept() {
  for (int i = 0; i < kAcceptsPerRound; ++i) {
    UniqueFd socket(
        accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      Add(std::move(socket));
      continue;
    }
    if (!IsShortOfDescriptors(errno)) return;
    if (!CloseOldest()) return PauseAccepting();
  }
}

void EpollHttpLoop::Add(UniqueFd socket) {
  if (connections_.size() - static_cast<size_t>(CountStreams()) >=
      options_.max_connections) {
    CloseOldest();
  }
  const uint64_t id = next_id_++;
  if (!Watch(EPOLL_CTL_ADD, socket.get(), id, EPOLLIN)) return;
  auto session = options_.new_session ? options_.new_session() : nullptr;
  Connection connection = {.link = HttpConnection(std::move(socket), std::move(session)),
                           .deadline = clock_.Now() + options_.deadline};
  const auto added = connections_.emplace(id, std::move(connection)).first;
  // The request of a probe has usually arrived already.
  if (!Serve(id, added->second)) connections_.erase(added);
}

bool EpollHttpLoop::CloseOldest() {
  const auto oldest = std::ranges::find_if(
      connections_, [this](const auto& entry) { return !ReadsStream(entry.second); });
  if (oldest == connections_.end()) return false;
  connections_.erase(oldest);
  return true;
}

void EpollHttpLoop::PauseAccepting() {
  Watch(EPOLL_CTL_MOD, listener_.get(), kListener, 0);
  accept_again_at_ = clock_.Now() + kAcceptPause;
}

void EpollHttpLoop::ResumeAccepting() {
  if (!accept_again_at_.has_value() || clock_.Now() < *accept_again_at_) return;
  Watch(EPOLL_CTL_MOD, listener_.get(), kListener, EPOLLIN);
  accept_again_at_.reset();
}

void EpollHttpLoop::CloseOverdue() {
  const absl::Duration now = clock_.Now();
  std::erase_if(connections_,
                [now](const auto& entry) { return entry.second.deadline <= now; });
}

int EpollHttpLoop::MillisecondsToWait() const {
  absl::Duration until = absl::InfiniteDuration();
  for (const auto& [id, connection] : connections_) {
    until = std::min(until, connection.deadline);
  }
  if (next_part_at_ != absl::InfiniteDuration()) {
    // The end of a part that is being made wakes the loop.
    if (making_.empty()) until = std::min(until, next_part_at_);
    until = std::min(until, last_part_at_ + options_.stream_silence);
  }
  if (accept_again_at_.has_value()) until = std::min(until, *accept_again_at_);
  if (until == absl::InfiniteDuration()) return -1;
  const absl::Duration left = std::max(until - clock_.Now(), absl::ZeroDuration());
  // One more, so that the deadline has certainly passed.
  return static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
}

bool EpollHttpLoop::Serve(uint64_t id, Connection& connection) {
  if (!Read(connection) || !Write(connection)) return false;
  WatchWhatItWants(id, connection);
  return true;
}

bool EpollHttpLoop::Read(Connection& connection) {
  switch (connection.state) {
    case Connection::State::kReading:
      if (!connection.link.Receive(connection.received)) return false;
      if (!connection.received.empty()) Answer(connection);
      return true;
    case Connection::State::kStreaming:
    case Connection::State::kDraining:
      return connection.link.Discard();
    case Connection::State::kWaiting:
    case Connection::State::kWriting:
      return true;
  }
  return true;
}

std::optional<HttpReply> EpollHttpLoop::WhatAnswersInPlace(const Connection& connection,
                                                           const HttpRequest& asked,
                                                           const HttpPage* page) const {
  const bool is_probe = page != nullptr && page->door == HttpPage::Door::kProbe;
  if (connection.link.is_plain_text() && !is_probe) {
    return HttpReply{.status = 400,
                     .body =
                         "this port speaks TLS: ask by https:// (/livez and /readyz "
                         "answer by http:// as well)\n"};
  }
  const bool is_guarded = page == nullptr || page->door == HttpPage::Door::kGuarded;
  if (is_guarded && options_.judge) {
    if (std::optional<HttpReply> verdict = options_.judge(asked); verdict.has_value()) {
      return verdict;
    }
  }
  if (asked.method != "GET" && asked.method != "HEAD") {
    return HttpReply{.status = 405, .body = "this port is read-only\n"};
  }
  if (page == nullptr) return HttpReply{.status = 404, .body = "no such page; see /\n"};
  return std::nullopt;
}

void EpollHttpLoop::Answer(Connection& connection) {
  if (connection.received.size() > options_.max_request_bytes) {
    return Reply(connection, {.status = 431, .body = "the request is too long\n"});
  }
  auto request = ParseHttpRequest(connection.received);
  if (!request.ok()) {
    return Reply(connection,
                 {.status = 400,
                  .body = absl::StrCat(std::string(request.status().message()), "\n")});
  }
  if (!request->has_value()) return;
  HttpRequest& asked = **request;
  asked.source = connection.link.Source();
  connection.head_only = asked.method == "HEAD";
  const auto found = options_.pages.find(asked.path);
  const HttpPage* page = found == options_.pages.end() ? nullptr : &found->second;
  if (const auto reply = WhatAnswersInPlace(connection, asked, page); reply.has_value()) {
    return Reply(connection, *reply);
  }
  if (page->made == HttpPage::Made::kOnLoop) return Reply(connection, page->make());
  if (page->next && CountStreams() >= static_cast<ptrdiff_t>(options_.max_streams)) {
    return Reply(connection, {.status = 503,
                              .body = absl::StrCat(options_.max_streams,
                                                   " read this already; close one of "
                                                   "them, or ask again later\n"),
                              .headers = {"Retry-After: 30"}});
  }
  connection.asked = asked;
  connection.state = Connection::State::kWaiting;
}

void EpollHttpLoop::Reply(Connection& connection, const HttpReply& reply) {
  connection.link.Send(SerializeReply(reply, connection.head_only));
  connection.state = Connection::State::kWriting;
}

bool EpollHttpLoop::Write(Connection& connection) {
  if (!connection.link.Flush()) return false;
  if (connection.state == Connection::State::kStreaming &&
      !connection.link.has_unsent()) {
    connection.deadline = absl::InfiniteDuration();
  }
  if (connection.state != Connection::State::kWriting || connection.link.has_unsent()) {
    return true;
  }
  connection.link.EndSending();
  connection.state = Connection::State::kDraining;
  return true;
}

void EpollHttpLoop::WatchWhatItWants(uint64_t id, Connection& connection) const {
  if (connection.watched == connection.wanted()) return;
  connection.watched = connection.wanted();
  Watch(EPOLL_CTL_MOD, connection.link.fd(), id, connection.watched);
}

void EpollHttpLoop::TakeMadePage() {
  if (making_.empty()) return;
  const std::optional<HttpReply> reply = maker_->TakeReply();
  if (!reply.has_value()) return;
  if (making_next_) SendToStreams(reply->body);
  for (const uint64_t id : made_for_) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;  // closed at its deadline
    if (ReadsStream(found->second)) {
      BeginStream(found->second, *reply);
    } else {
      Reply(found->second, *reply);
    }
    if (!Serve(id, found->second)) connections_.erase(found);
  }
  made_for_.clear();
  making_.clear();
  making_next_ = false;
}

// Begins the page that was requested first, for all connections that wait for it.
void EpollHttpLoop::MakeNextPage() {
  if (!making_.empty()) return;
  if (const absl::Duration now = clock_.Now(); next_part_at_ <= now) {
    const bool is_read = std::ranges::any_of(connections_, [](const auto& entry) {
      return entry.second.state == Connection::State::kStreaming;
    });
    next_part_at_ = is_read ? now + options_.stream_period : absl::InfiniteDuration();
    if (is_read) {
      making_ = stream_path_;
      making_next_ = true;
      return maker_->Begin(options_.pages.at(making_).next);
    }
  }
  for (const auto& [id, connection] : connections_) {
    if (connection.state != Connection::State::kWaiting) continue;
    if (making_.empty()) making_ = connection.asked.path;
    if (connection.asked.path == making_) made_for_.push_back(id);
  }
  if (!making_.empty()) maker_->Begin(options_.pages.at(making_).make);
}

// Returns true also if the connection waits for the stream to begin.
bool EpollHttpLoop::ReadsStream(const Connection& connection) const {
  const bool is_made_aside = connection.state == Connection::State::kWaiting ||
                             connection.state == Connection::State::kStreaming;
  return is_made_aside && !connection.head_only && !stream_path_.empty() &&
         connection.asked.path == stream_path_;
}

ptrdiff_t EpollHttpLoop::CountStreams() const {
  return std::ranges::count_if(
      connections_, [this](const auto& entry) { return ReadsStream(entry.second); });
}

void EpollHttpLoop::BeginStream(Connection& connection, const HttpReply& first) {
  connection.link.Send(absl::StrCat(StreamHead(), first.body));
  connection.state = Connection::State::kStreaming;
  const absl::Duration now = clock_.Now();
  connection.deadline = now + options_.deadline;
  if (next_part_at_ != absl::InfiniteDuration()) return;
  next_part_at_ = now + options_.stream_period;
  last_part_at_ = now;
}

void EpollHttpLoop::SendToStreams(const std::string& part) {
  last_part_at_ = clock_.Now();
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto entry = next++;
    Connection& connection = entry->second;
    if (connection.state != Connection::State::kStreaming) continue;
    const HttpPage::Door door = options_.pages.at(stream_path_).door;
    if (door == HttpPage::Door::kGuarded && options_.judge &&
        options_.judge(connection.asked).has_value()) {
      connections_.erase(entry);  // the token has changed
      continue;
    }
    if (connection.link.has_unsent()) continue;  // it is behind, and skips this part
    connection.link.Send(part);
    connection.deadline = last_part_at_ + options_.deadline;
    if (!Serve(entry->first, connection)) connections_.erase(entry);
  }
}

void EpollHttpLoop::BreakSilence() {
  if (next_part_at_ == absl::InfiniteDuration()) return;
  if (clock_.Now() < last_part_at_ + options_.stream_silence) return;
  SendToStreams(std::string(kStreamComment));
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpLoop>> HttpLoop::Start(UniqueFd listener,
                                                          HttpLoopOptions options) {
  auto loop = std::make_unique<EpollHttpLoop>(std::move(listener), std::move(options));
  SYNCLINE_RETURN_IF_ERROR(loop->Begin());
  return loop;
}

}  // namespace syncline
