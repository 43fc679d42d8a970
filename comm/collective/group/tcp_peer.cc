#include "comm/collective/group/tcp_peer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace syncline::collective {
namespace {

// An attempt that takes longer was not refused, but not answered.
constexpr absl::Duration kRefusal = absl::Milliseconds(200);

}  // namespace

TcpPeer::TcpPeer(const TcpPeerOptions& options, BufferPool& pool)
    : options_(options),
      pool_(pool),
      lanes_{TcpLane(pool, options.touched), TcpLane(pool, options.touched)},
      liveness_(options.failure_timeout) {}

absl::Status TcpPeer::About(absl::StatusCode code, const std::string& what) const {
  const absl::string_view place = options_.card.address;
  absl::Status status(code, absl::StrCat("rank ", options_.rank, " on ",
                                         absl::StripPrefix(place, "tcp:"), " ", what));
  SetFailedRank(status, options_.rank);
  return status;
}

// ---- Meeting ----

bool TcpPeer::MayDial(absl::Duration now, absl::Duration again) const {
  const bool is_under_way = endpoint_ != nullptr && gone_.ok();
  return !is_under_way && now - dialled_at_ >= again;
}

ConnectOptions TcpPeer::Take(std::unique_ptr<Endpoint> endpoint) {
  endpoint_ = std::move(endpoint);
  gone_ = absl::OkStatus();
  return {.on_failure = [this](const absl::Status& status) { gone_ = status; },
          .receiver = this};
}

void TcpPeer::Dialled(std::unique_ptr<Endpoint> endpoint, absl::Duration now) {
  endpoint_ = std::move(endpoint);
  dialled_ = true;
  if (now - dialled_at_ > kRefusal) dialled_first_ = now;
  dialled_at_ = now;
}

// The dialling rank answers, so that the other one knows that its hello arrived.
void TcpPeer::OnHello() {
  if (std::exchange(has_met_, true)) return;
  if (dialled_) Send({.kind = TcpWireMessage::kHello});
}

// ---- Moving ----

void TcpPeer::Send(const TcpWireMessage& message, Payload payload) {
  if (endpoint_ == nullptr || !gone_.ok()) return;
  endpoint_->Send({reinterpret_cast<const std::byte*>(&message), sizeof message},
                  std::move(payload), nullptr);
}

void TcpPeer::Flush() {
  for (uint8_t k = 0; k < 2; ++k) {
    if (Payload unsent = lanes_[k].TakeUnsent(); !unsent.empty()) {
      Send({.kind = TcpWireMessage::kBytes, .lane = k}, std::move(unsent));
    }
    if (const auto consumed = lanes_[k].TakeConsumed()) {
      Send({.kind = TcpWireMessage::kConsumed, .lane = k, .number = *consumed});
    }
  }
}

bool TcpPeer::HasUnacknowledged() const {
  return endpoint_ != nullptr && gone_.ok() &&
         endpoint_->send_state().waiting_bytes() > 0;
}

absl::Status TcpPeer::CheckMessage(const TcpWireMessage& message,
                                   size_t payload_bytes) const {
  size_t most = 0;
  switch (message.kind) {
    case TcpWireMessage::kBytes:
      if (message.lane < 2) return lanes_[message.lane].CheckArrival(payload_bytes);
      break;
    case TcpWireMessage::kConsumed:
      if (message.lane >= 2) most = 1;  // never valid
      break;
    case TcpWireMessage::kEntered:
      if (payload_bytes != sizeof(CallHeader)) break;
      return absl::OkStatus();
    case TcpWireMessage::kFailed:
      most = kLongestReport;
      break;
    case TcpWireMessage::kHello:
    case TcpWireMessage::kBeat:
    case TcpWireMessage::kLeft:
      break;
    default:
      return absl::InvalidArgumentError("it sent a message of an unknown kind");
  }
  if (message.lane < 2 && payload_bytes <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("it sent a message of kind ", static_cast<int>(message.kind), " with ",
                   payload_bytes, " bytes for lane ", static_cast<int>(message.lane)));
}

absl::StatusOr<Buffer> TcpPeer::Allocate(ByteView header, size_t payload_bytes) {
  TcpWireMessage message;
  absl::Status status =
      absl::InvalidArgumentError("it sent something that is not a message");
  if (header.size() == sizeof message) {
    std::memcpy(&message, header.data(), sizeof message);
    status = CheckMessage(message, payload_bytes);
  }
  if (status.ok() && gone_.ok()) {
    return payload_bytes > 0 ? pool_.Allocate(payload_bytes) : Buffer();
  }
  if (gone_.ok()) gone_ = status;
  return absl::InvalidArgumentError("refused");
}

void TcpPeer::OnMessage(ByteView header, Buffer payload) {
  if (!gone_.ok()) return;
  TcpWireMessage message;
  if (header.size() != sizeof message) return;
  std::memcpy(&message, header.data(), sizeof message);
  switch (message.kind) {
    case TcpWireMessage::kHello:
      return OnHello();
    case TcpWireMessage::kBytes:
      return lanes_[message.lane].Land(std::move(payload));
    case TcpWireMessage::kConsumed:
      gone_.Update(lanes_[message.lane].OnConsumed(message.number));
      return;
    case TcpWireMessage::kEntered:
      entered_.emplace();
      std::memcpy(&*entered_, payload.data(), sizeof *entered_);
      return;
    case TcpWireMessage::kFailed:
      reported_ =
          absl::Status(static_cast<absl::StatusCode>(message.code),
                       absl::string_view(reinterpret_cast<const char*>(payload.data()),
                                         payload.size()));
      if (reported_.ok()) reported_ = absl::AbortedError("the group has failed");
      if (message.rank >= 0) SetFailedRank(reported_, message.rank);
      return;
    case TcpWireMessage::kLeft:
      has_left_ = true;
      return;
    default:
      return;  // a heartbeat
  }
}

// ---- What is known of it ----

absl::Status TcpPeer::CheckThere() const {
  if (has_left_) {
    return About(absl::StatusCode::kAborted,
                 "has left the group: form a new one without it");
  }
  if (!gone_.ok()) {
    return About(
        absl::StatusCode::kAborted,
        absl::StrCat("is gone: its process has died, or the network to it is cut (",
                     gone_.message(), "); form a new group without it"));
  }
  return absl::OkStatus();
}

absl::Status TcpPeer::CheckAlive(absl::Duration now) {
  absl::Status status = CheckThere();
  if (!status.ok()) return status;
  if (liveness_.Look(endpoint_->received_bytes(), now)) return absl::OkStatus();
  return About(absl::StatusCode::kAborted,
               absl::StrCat("hangs: nothing has come from it for ",
                            absl::FormatDuration(options_.failure_timeout),
                            ", so its process is stopped or the network to it is cut; "
                            "form a new group without it"));
}

}  // namespace syncline::collective
