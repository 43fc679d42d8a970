#include "server/links/worker_link.h"

namespace syncline {
namespace {

// Within a host nothing queues on a wire; the limit only bounds the memory.
constexpr uint64_t kLocalWindow = 2 * uint64_t{kDefaultWindowBytes};

MessageKind KindOf(const MessageHeader& header) {
  return static_cast<MessageKind>(header.kind);
}

bool IsLarge(const MessageHeader& header) {
  return KindOf(header) == MessageKind::kPublish ||
         KindOf(header) == MessageKind::kAverage || KindOf(header) == MessageKind::kState;
}

}  // namespace

WorkerLink::Key WorkerLink::KeyOf(const MessageHeader& header) {
  switch (KindOf(header)) {
    case MessageKind::kPullAverage:
    case MessageKind::kAverage:
      return {MessageKind::kAverage, header.block};
    case MessageKind::kPullState:
    case MessageKind::kState:
      return {MessageKind::kState, header.block};
    default:
      return {MessageKind::kPublish, header.block};
  }
}

// There is only one array of averages.
std::pair<WorkerLink::Key, uint32_t> WorkerLink::ArrayOf(const MessageHeader& header) {
  const Key key = KeyOf(header);
  return {key, key.first == MessageKind::kState ? header.samples : 0};
}

// Returns whether the version, or a newer one, was sent over this connection.
bool WorkerLink::WasSent(const MessageHeader& header) const {
  if (KeyOf(header).first != MessageKind::kPublish) {
    const auto sent = sent_aside_.find(ArrayOf(header));
    return sent != sent_aside_.end() && sent->second > header.step;
  }
  const auto sent = sent_.find(header.block);
  return sent != sent_.end() && sent->second > header.step;
}

void WorkerLink::Answer(MessageKind kind, const MessageHeader& question) {
  MessageHeader header = question;
  header.kind = static_cast<uint16_t>(kind);
  header.flags = 0;
  unread_at_most_ += kMessageHeaderBytes;
  parts_.endpoint->SendAs(TrafficOf(header, 0), SealHeader(header), {},
                          [](const absl::Status&) {});
}

void WorkerLink::Welcome(const MessageHeader& hello) {
  welcomed_ = hello.step;
  Answer(MessageKind::kWelcome, hello);
}

void WorkerLink::Note(const MessageHeader& question) {
  Answer(MessageKind::kNoted, question);
}

bool WorkerLink::Send(const ShardReply& reply) {
  if (!IsLarge(reply.header)) {
    Transmit(reply);
    return true;
  }
  if (WasSent(reply.header)) return false;
  // Replaces a question for it, or an older version.
  queue_[KeyOf(reply.header)] = reply;
  return true;
}

void WorkerLink::Ask(const MessageHeader& question) {
  const Key key = KeyOf(question);
  if ((question.flags & kFlagResend) != 0) {
    if (key.first == MessageKind::kPublish) {
      sent_.erase(question.block);
      front_.Forget(question.block);
    }
    queue_.erase(key);
  }
  // A worker that asks for an array again wants it again, also at the same version. Older
  // workers have no flag for that.
  sent_aside_.erase(ArrayOf(question));
  const auto waiting = queue_.find(key);
  const ShardReply* answer =
      waiting == queue_.end() ? nullptr : std::get_if<ShardReply>(&waiting->second);
  // An array of state does not answer a question for another array.
  const bool is_answer =
      answer != nullptr &&
      (key.first != MessageKind::kState || answer->header.samples == question.samples);
  if (is_answer || WasSent(question)) return Note(question);
  queue_[key] = question;
}

TrafficClass WorkerLink::ClassOf(const MessageHeader& header) const {
  if (KeyOf(header).first != MessageKind::kPublish) return TrafficClass::kBackground;
  return front_.IsNext(header.block, header.step) ? TrafficClass::kUrgent
                                                  : TrafficClass::kOther;
}

bool WorkerLink::HasRoom(TrafficClass traffic_class, absl::Duration now) {
  const SendState state = parts_.endpoint->send_state();
  if (parts_.endpoint->IsLocal()) return state.waiting_bytes() < kLocalWindow;
  window_.Observe(state, now);
  return window_.Room(state, traffic_class) > 0;
}

double WorkerLink::window_fill() const {
  const uint64_t limit =
      parts_.endpoint->IsLocal() ? kLocalWindow : window_.limit_bytes();
  const uint64_t waiting = parts_.endpoint->send_state().waiting_bytes();
  return static_cast<double>(waiting) / static_cast<double>(limit);
}

std::map<WorkerLink::Key, WorkerLink::Waiting>::iterator WorkerLink::Next(
    absl::Duration now) {
  const auto header_of = [](const Waiting& waiting) -> const MessageHeader& {
    const auto* reply = std::get_if<ShardReply>(&waiting);
    return reply != nullptr ? reply->header : std::get<MessageHeader>(waiting);
  };
  const auto first = queue_.begin();
  if (first == queue_.end()) return first;
  if (HasRoom(ClassOf(header_of(first->second)), now)) return first;
  // Averages get a share even if there are always views; otherwise they would never be
  // sent.
  const auto aside = queue_.lower_bound({MessageKind::kAverage, 0});
  if (aside == queue_.end() || aside == first) return queue_.end();
  return HasRoom(TrafficClass::kBackground, now) ? aside : queue_.end();
}

void WorkerLink::Pump(absl::Duration now,
                      absl::FunctionRef<void(const MessageHeader&)> look) {
  // The loop below sends what `look` queues.
  if (is_pumping_) return;
  is_pumping_ = true;
  for (auto at = Next(now); at != queue_.end(); at = Next(now)) {
    const Waiting next = std::move(at->second);
    queue_.erase(at);
    if (const auto* question = std::get_if<MessageHeader>(&next)) {
      look(*question);
    } else {
      Transmit(std::get<ShardReply>(next));
    }
  }
  is_pumping_ = false;
}

void WorkerLink::Transmit(const ShardReply& reply) {
  MessageHeader header = reply.header;
  const Traffic traffic = TrafficOf(header, PayloadBytes(reply.payload), ClassOf(header));
  if (KindOf(header) == MessageKind::kPublish) {
    sent_[header.block] = header.step + 1;
    front_.Sent(header.block, header.step);
  } else if (IsLarge(header)) {
    sent_aside_[ArrayOf(header)] = header.step + 1;
  }
  SendDone done = [](const absl::Status&) {};
  if (IsLarge(header)) {
    done = [shard = parts_.shard, sent = parts_.sent,
            header](const absl::Status& status) {
      if (!status.ok()) return;
      if (const std::shared_ptr<Shard> alive = shard.lock()) alive->Delivered(header);
      if (sent) sent();
    };
  }
  unread_at_most_ += kMessageHeaderBytes + PayloadBytes(reply.payload);
  parts_.endpoint->SendAs(traffic, SealHeader(header), reply.payload, std::move(done));
}

bool WorkerLink::IsClogged() {
  if (unread_at_most_ <= parts_.most_unread_bytes) return false;
  unread_at_most_ = parts_.endpoint->send_state().waiting_bytes();
  return unread_at_most_ > parts_.most_unread_bytes;
}

uint64_t WorkerLink::TakeCrossedBytes() {
  const uint64_t crossed =
      parts_.endpoint->send_state().gone_bytes + parts_.endpoint->received_bytes();
  const uint64_t since = crossed - crossed_;
  crossed_ = crossed;
  return since;
}

}  // namespace syncline
