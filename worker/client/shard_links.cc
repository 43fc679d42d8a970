#include "worker/client/shard_links.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "comm/transport/network/address.h"
#include "comm/transport/tcp/member_key.h"

namespace syncline {

ShardLinks::ShardLinks(ShardLinksOptions options, Transport& transport)
    : options_(std::move(options)),
      transport_(transport),
      links_(options_.addresses.size()) {}

absl::Status ShardLinks::Connect(absl::Duration now) {
  looked_at_ = now;
  for (uint32_t shard = 0; shard < links_.size(); ++shard) {
    SYNCLINE_RETURN_IF_ERROR(Dial(shard, now));
  }
  return absl::OkStatus();
}

void ShardLinks::Move(ShardPlace place, absl::Duration now) {
  if (place.shard >= links_.size()) return;
  options_.addresses[place.shard] = std::move(place.address);
  if (place.shard < options_.keys.size()) options_.keys[place.shard] = place.key;
  if (!Dial(place.shard, now).ok()) {
    options_.log.Warning("a shard cannot be reached", {{"shard", place.shard}});
  }
}

// If the connection fails, the server may still be alive. So it is tried again until the
// coordinator decides.
absl::Status ShardLinks::Dial(uint32_t shard, absl::Duration now) {
  Link& link = links_[shard];
  link = {.number = link.number + 1, .is_two_way = link.is_two_way};
  const auto on_failure = [this, shard](const absl::Status& status) {
    options_.log.Warning("lost the connection to a shard",
                         {{"shard", shard}, {"error", std::string(status.message())}});
    links_[shard].has_failed = true;
  };
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = transport_.Connect(
      options_.addresses[shard],
      {.on_failure = on_failure,
       .receiver = options_.receiver_of ? options_.receiver_of(shard) : nullptr,
       .key = KeyFor(shard)});
  if (!endpoint.ok()) {
    link.reconnect_at = now + options_.timeouts.heartbeat_interval;
    return endpoint.status();
  }
  link.endpoint = *std::move(endpoint);
  link.is_two_way = link.endpoint->IsTwoWay();
  link.window.Observe(link.endpoint->send_state(), now);
  SayHello(shard);
  return absl::OkStatus();
}

PeerKey ShardLinks::KeyFor(uint32_t shard) const {
  if (shard >= options_.keys.size()) return {};
  return {EncodeIdentity({options_.job, options_.rank, options_.incarnation}),
          options_.keys[shard]};
}

std::string ShardLinks::Describe(uint32_t shard) const {
  return DescribeNetworkAddress(options_.addresses[shard]);
}

void ShardLinks::SayHello(uint32_t shard) {
  MessageHeader header;
  header.kind = static_cast<uint16_t>(MessageKind::kHello);
  header.job = options_.job;
  header.rank = options_.rank;
  header.incarnation = options_.incarnation;
  header.session_key = options_.session_key;
  header.step = links_[shard].number;
  header.shard = shard;
  const std::string& address = transport_.address();
  const Buffer payload = Buffer::CopyOf(
      std::as_bytes(std::span<const char>(address.data(), address.size())));
  links_[shard].endpoint->SendAs(TrafficOf(header, payload.size()), SealHeader(header),
                                 {Slice::Of(payload)}, [](const absl::Status&) {});
}

bool ShardLinks::TakeWelcome(const MessageHeader& header) {
  const bool is_ours = header.kind == static_cast<uint16_t>(MessageKind::kWelcome) &&
                       header.job == options_.job && header.rank == options_.rank &&
                       header.incarnation == options_.incarnation &&
                       header.session_key == options_.session_key &&
                       header.shard < links_.size();
  if (!is_ours) return false;
  Link& link = links_[header.shard];
  link.has_heard = true;
  // A welcome for an earlier connection, or for one that was given up meanwhile, does not
  // count.
  const bool is_over = link.endpoint == nullptr || link.has_failed;
  if (link.is_welcome || is_over || header.step != link.number) return false;
  return link.is_welcome = true;
}

void ShardLinks::Send(ExchangeSend send, SendDone done, absl::Duration now) {
  Link& link = links_[send.shard];
  const Traffic traffic =
      TrafficOf(send.header, PayloadBytes(send.payload), send.traffic_class);
  link.endpoint->SendAs(traffic, SealHeader(send.header), std::move(send.payload),
                        std::move(done));
  link.window.Observe(link.endpoint->send_state(), now);
}

// Within a host there is no wire on which bytes queue, so only unacknowledged bytes count
// there. Lent memory is in use until the step is over, which depends on other workers: if
// it counted, workers could wait for each other forever.
void ShardLinks::OfferRoom(Exchange& exchange, absl::Duration now) {
  window_fill_ = 0;
  const auto note = [this](size_t under_way, size_t window) {
    window_fill_ = std::max(window_fill_,
                            static_cast<double>(under_way) / static_cast<double>(window));
  };
  SendState sent;
  uint64_t received = 0;
  for (uint32_t shard = 0; shard < links_.size(); ++shard) {
    Link& link = links_[shard];
    if (!link.is_welcome) continue;
    if (link.endpoint->IsLocal()) {
      const size_t under_way = exchange.unacknowledged_bytes(shard);
      note(under_way, kDefaultWindowBytes);
      exchange.SetRoom(shard,
                       kDefaultWindowBytes - std::min(kDefaultWindowBytes, under_way));
      continue;
    }
    const SendState state = link.endpoint->send_state();
    link.window.Observe(state, now);
    note(state.waiting_bytes(), link.window.limit_bytes());
    sent.accepted_bytes += state.accepted_bytes;
    sent.gone_bytes += state.gone_bytes;
    received += link.endpoint->received_bytes();
    SendPace::Look look = {.held_bytes = exchange.held_bytes(shard),
                           .block_bytes = exchange.contribution_bytes(shard),
                           .window_bytes = link.window.limit_bytes(),
                           .bytes_per_second = link.window.bytes_per_second()};
    look.ahead_bytes = exchange.HeldInFront(shard, SendPace::Countable(look));
    const bool may_send = link.pace.MaySend(look, now);
    exchange.SetRoom(shard, may_send ? link.window.Room(state, TrafficClass::kOther) : 0,
                     may_send ? link.window.Room(state, TrafficClass::kUrgent) : 0);
  }
  rates_.Observe(sent, received, now);
}

ExchangeOutputs ShardLinks::Tick(Exchange& exchange, absl::Duration now) {
  // Time in which this process stood still does not count as silence, because messages
  // that arrived meanwhile may not have been read yet.
  passed_ = std::min(now - looked_at_, options_.timeouts.link_silence / 8);
  looked_at_ = now;
  ExchangeOutputs outputs;
  for (uint32_t shard = 0; shard < links_.size(); ++shard) {
    Link& link = links_[shard];
    if (link.has_failed) GiveUp(shard, exchange, now);
    if (link.reconnect_at <= now) {
      // The server may be gone. The coordinator decides that.
      if (!Dial(shard, now).ok()) {
        options_.log.Debug("a shard cannot be reached", {{"shard", shard}});
      }
    }
    if (link.endpoint == nullptr) continue;
    ExchangeOutputs asked = LookForSilence(shard, exchange, now);
    std::ranges::move(asked, std::back_inserter(outputs));
  }
  return outputs;
}

ExchangeOutputs ShardLinks::LookForSilence(uint32_t shard, Exchange& exchange,
                                           absl::Duration now) {
  Link& link = links_[shard];
  const SendState state = link.endpoint->send_state();
  // Bytes that were accepted for sending count, too: their answer cannot be late yet.
  const uint64_t moved =
      state.accepted_bytes + state.gone_bytes + link.endpoint->received_bytes();
  const bool has_moved = moved != std::exchange(link.moved_bytes, moved);
  if (std::exchange(link.has_heard, false) || has_moved) {
    link.silent = absl::ZeroDuration();
    return {};
  }
  link.silent += passed_;
  if (link.silent < options_.timeouts.link_silence) return {};
  const Exchange::Awaits awaits =
      link.is_welcome ? exchange.WhatIsAwaited(shard) : Exchange::Awaits::kShard;
  link.silent = absl::ZeroDuration();
  if (awaits == Exchange::Awaits::kNothing) return {};
  if (awaits == Exchange::Awaits::kOthers) return exchange.Probe(shard);
  options_.log.Warning("a shard owes an answer and nothing moves: connecting again",
                       {{"shard", shard}});
  GiveUp(shard, exchange, now);
  return {};
}

void ShardLinks::GiveUp(uint32_t shard, Exchange& exchange, absl::Duration now) {
  Link& link = links_[shard];
  exchange.Disconnected(shard);
  link = {.number = link.number,
          .is_two_way = link.is_two_way,
          .reconnect_at = now + options_.timeouts.heartbeat_interval};
}

}  // namespace syncline
