#include "server/service/link_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

// The minimum is long enough that nobody else draws the same key. The maximum limits what
// is kept.
constexpr size_t kMinKeyBytes = 16;
constexpr size_t kMaxKeyBytes = 64;

// Messages of a member are acknowledged with each heartbeat, and whenever this many have
// come.
constexpr uint64_t kAcknowledgeEvery = 64;

bool IsHello(const v1::MemberMessage& message) {
  return message.has_server_hello() || message.has_worker_hello();
}

}  // namespace

void LinkTable::Began(LinkStream* stream, absl::Duration now) {
  if (without_hello_.size() >= options_.max_silent_streams) {
    streams_[stream] = 0;
    return stream->Close(absl::UnavailableError(
        absl::StrCat(without_hello_.size(), " streams have not said hello; try again")));
  }
  without_hello_[stream] = now;
}

LinkTable::Arrival LinkTable::Heard(LinkStream* stream,
                                    const v1::MemberMessage& message) {
  if (without_hello_.erase(stream) > 0) return Greeted(stream, message);
  const auto found = streams_.find(stream);
  if (found == streams_.end() || found->second == 0) return {};
  return HeardOn(found->second, message);
}

LinkTable::Arrival LinkTable::Refuse(LinkStream* stream, const absl::Status& status) {
  streams_[stream] = 0;
  stream->Close(status);
  return {.kind = Arrival::kRefused, .status = status};
}

LinkTable::Arrival LinkTable::Greeted(LinkStream* stream,
                                      const v1::MemberMessage& message) {
  const std::string& key = message.link_key();
  const bool is_resume = message.has_resume();
  if (!is_resume && !IsHello(message)) {
    return Refuse(stream, absl::InvalidArgumentError(
                              "the first message of a stream must be a hello"));
  }
  const bool key_fits = key.size() >= kMinKeyBytes && key.size() <= kMaxKeyBytes;
  if (!key_fits && (is_resume || !key.empty())) {
    return Refuse(stream, absl::InvalidArgumentError(absl::StrCat(
                              "a link key of ", key.size(), " bytes; it must have ",
                              kMinKeyBytes, " to ", kMaxKeyBytes)));
  }
  if (message.term() > term_) {
    return Refuse(stream, absl::UnavailableError(absl::StrCat(
                              "this coordinator has term ", term_,
                              ", but the member has seen term ", message.term(),
                              ": it is an old coordinator, or lost its state")));
  }
  const auto known = by_key_.find(key);
  if (known != by_key_.end()) return Returned(known->second, stream, message);
  if (is_resume && message.term() > 0 && message.term() < term_)
    return AskForHello(stream);
  if (is_resume) {
    return Refuse(stream,
                  WithFailure(absl::UnavailableError(
                                  "the coordinator does not know this session; it was "
                                  "restarted, or dropped the session long ago"),
                              Failure::kRetryable));
  }
  const ConnectionId connection = next_++;
  links_.emplace(connection,
                 Link{.key = key,
                      .owner = stream->owner(),
                      .stream = stream,
                      .queue = ReliableQueue<v1::CoordinatorMessage>(options_.queue),
                      .stream_number = message.beat()});
  streams_[stream] = connection;
  if (!key.empty()) {
    by_key_[key] = connection;
    v1::CoordinatorMessage ready;
    ready.mutable_link_ready();
    ready.set_term(term_);
    stream->Send(std::make_shared<const v1::CoordinatorMessage>(std::move(ready)));
  }
  return {.kind = Arrival::kHello, .connection = connection};
}

LinkTable::Arrival LinkTable::AskForHello(LinkStream* stream) {
  v1::CoordinatorMessage unknown;
  unknown.mutable_link_unknown();
  unknown.set_term(term_);
  stream->Send(std::make_shared<const v1::CoordinatorMessage>(std::move(unknown)));
  streams_[stream] = 0;
  stream->Close(absl::UnavailableError("the coordinator was restarted"));
  return {};
}

// `message` says what the member had received when it connected: nothing if it repeats
// its hello. Acknowledgements that came later on the old stream count too. A coordinator
// that was paused may read those first.
LinkTable::Arrival LinkTable::Returned(ConnectionId connection, LinkStream* stream,
                                       const v1::MemberMessage& message) {
  Link& link = links_.at(connection);
  if (link.owner != stream->owner()) {
    return Refuse(stream, WithFailure(absl::PermissionDeniedError(absl::StrCat(
                                          "the session is that of the ", link.owner,
                                          ", but this is the ", stream->owner(),
                                          "; use the certificate with which it began")),
                                      Failure::kUsage));
  }
  // The status must not be final, because the member uses the stream that it was told is
  // ready.
  if (message.beat() <= link.stream_number) {
    return Refuse(stream, absl::UnavailableError("the member has a newer stream"));
  }
  if (message.seen() > link.queue.last()) {
    return Refuse(stream, absl::AbortedError(absl::StrCat(
                              "a session asks to continue after message ", message.seen(),
                              ", which the coordinator never sent; connect again")));
  }
  link.stream_number = message.beat();
  if (link.stream != nullptr) {
    streams_[link.stream] = 0;
    link.stream->Close(absl::UnavailableError("a newer stream has replaced this one"));
  }
  link.stream = stream;
  streams_[stream] = connection;
  v1::CoordinatorMessage ready;
  ready.mutable_link_ready();
  ready.set_term(term_);
  ready.set_seen(link.received.last());
  stream->Send(std::make_shared<const v1::CoordinatorMessage>(std::move(ready)));
  link.queue.Acknowledge(message.seen());
  for (const auto& [number, missed] : link.queue.After(message.seen())) {
    stream->Send(missed);
  }
  if (!link.is_closed) return {.kind = Arrival::kReturned, .connection = connection};
  stream->Close(link.end);
  streams_[stream] = 0;
  link.stream = nullptr;
  return {};
}

LinkTable::Arrival LinkTable::HeardOn(ConnectionId connection,
                                      const v1::MemberMessage& message) {
  Link& link = links_.at(connection);
  link.queue.Acknowledge(message.seen());
  if (message.beat() > link.beat) {
    link.beat = message.beat();
    Answer(link);
  }
  if (message.body_case() == v1::MemberMessage::BODY_NOT_SET) {
    if (message.seen() > 0) return {};  // only an acknowledgement
  }
  if (message.number() == 0) return {Arrival::kMessage, connection, {}};
  switch (link.received.Take(message.number())) {
    case ReceivedNumbers::Verdict::kRepeated:
      return {};
    case ReceivedNumbers::Verdict::kNew:
      if (link.received.last() % kAcknowledgeEvery == 0) Answer(link);
      return {Arrival::kMessage, connection, {}};
    case ReceivedNumbers::Verdict::kGap:
      break;
  }
  LinkStream* const stream = std::exchange(link.stream, nullptr);
  Arrival refused = Refuse(stream, absl::InvalidArgumentError(absl::StrCat(
                                       "message ", message.number(),
                                       " came after message ", link.received.last())));
  refused.connection = connection;
  return refused;
}

// Acknowledges what was received. Members take a heartbeat without an answer for silence
// of the coordinator.
void LinkTable::Answer(Link& link) const {
  v1::CoordinatorMessage answer;
  answer.set_seen(link.received.last());
  answer.set_beat(link.beat);
  answer.set_term(term_);
  link.stream->Send(std::make_shared<const v1::CoordinatorMessage>(std::move(answer)));
}

ConnectionId LinkTable::Ended(LinkStream* stream) {
  without_hello_.erase(stream);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return 0;
  const ConnectionId connection = found->second;
  streams_.erase(found);
  if (connection != 0) links_.at(connection).stream = nullptr;
  return connection;
}

absl::Status LinkTable::Send(ConnectionId connection, v1::CoordinatorMessage message) {
  const auto found = links_.find(connection);
  if (found == links_.end() || found->second.is_closed) return absl::OkStatus();
  Link& link = found->second;
  message.set_number(link.queue.next());
  message.set_seen(link.received.last());
  message.set_term(term_);
  const size_t bytes = message.ByteSizeLong();
  auto shared = std::make_shared<const v1::CoordinatorMessage>(std::move(message));
  SYNCLINE_RETURN_IF_ERROR(link.queue.Push(shared, bytes).status());
  // Without a key the member cannot return for messages that were lost.
  if (link.key.empty()) link.queue.Acknowledge(link.queue.last());
  if (link.stream != nullptr) link.stream->Send(std::move(shared));
  return absl::OkStatus();
}

void LinkTable::Close(ConnectionId connection, const absl::Status& status,
                      absl::Duration now) {
  const auto found = links_.find(connection);
  if (found == links_.end() || found->second.is_closed) return;
  Link& link = found->second;
  if (link.stream != nullptr) {
    streams_[link.stream] = 0;
    std::exchange(link.stream, nullptr)->Close(status);
  }
  link.is_closed = true;
  link.end = status;
  link.closed_at = now;
  if (link.key.empty()) return Forget(connection);
  closed_.push_back(connection);
  if (closed_.size() <= options_.max_closed_links) return;
  Forget(closed_.front());
  closed_.erase(closed_.begin());
}

void LinkTable::Forget(ConnectionId connection) {
  const auto link = links_.find(connection);
  if (!link->second.key.empty()) by_key_.erase(link->second.key);
  links_.erase(link);
}

void LinkTable::Tick(absl::Duration now) {
  const Timeouts& timeouts = options_.timeouts;
  std::vector<LinkStream*> late;
  for (const auto& [stream, since] : without_hello_) {
    if (now - since >= timeouts.reconnect_grace) late.push_back(stream);
  }
  for (LinkStream* stream : late) {
    without_hello_.erase(stream);
    Refuse(stream,
           absl::DeadlineExceededError(absl::StrCat(
               "no hello within ", absl::FormatDuration(timeouts.reconnect_grace))));
  }
  const auto is_old = [&](ConnectionId connection) {
    return now - links_.at(connection).closed_at >= 2 * timeouts.failure_timeout;
  };
  auto kept = closed_.begin();
  for (; kept != closed_.end() && is_old(*kept); ++kept) Forget(*kept);
  closed_.erase(closed_.begin(), kept);
}

void LinkTable::CloseAll(const absl::Status& status) {
  for (const auto& [stream, since] : without_hello_) stream->Close(status);
  for (const auto& [stream, connection] : streams_) stream->Close(status);
}

}  // namespace syncline
