// What an InprocNetwork knows of its endpoints and of the bytes that are under way. Only
// for inproc.cc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/transport/inproc/host_cables.h"
#include "comm/transport/inproc/inproc.h"
#include "comm/transport/send_queue.h"
#include "comm/transport/send_window.h"
#include "comm/transport/transport.h"

namespace syncline {

struct InprocNetwork::Transit {
  uint64_t bytes = 0;
  absl::Duration start = {};
  absl::Duration end = {};
  bool is_lost = false;

  uint64_t CrossedAt(absl::Duration now) const {
    if (now >= end) return bytes;
    if (now <= start) return 0;
    return static_cast<uint64_t>(static_cast<double>(bytes) *
                                 absl::FDivDuration(now - start, end - start));
  }
};

struct InprocNetwork::Parcel {
  Buffer header = {};
  Buffer payload = {};
  std::optional<Landed> lent = std::nullopt;    // instead of the payload
  std::shared_ptr<const Transit> transit = {};  // null: it has crossed already
};

// Everything that goes from one process to another.
struct InprocNetwork::Pipe {
  double bytes_per_second = 0;  // 0: no limit
  absl::Duration free_at = absl::ZeroDuration();
  uint64_t crossed = 0;  // bytes of transits that have ended and were removed
  std::deque<std::shared_ptr<Transit>> transits;

  void Settle(absl::Duration now) {
    while (!transits.empty() && transits.front()->end <= now) {
      crossed += transits.front()->bytes;
      transits.pop_front();
    }
  }
};

// The state of one endpoint, shared with the events that still refer to it.
struct InprocNetwork::Link : std::enable_shared_from_this<Link> {
  std::string from;
  std::string to;
  std::function<void(const absl::Status&)> on_failure;
  absl::Duration last_arrival = absl::ZeroDuration();
  absl::Status refusal;    // not OK once closed or failed
  bool is_broken = false;  // everything that has not arrived is lost
  bool is_over = false;    // nothing is sent on it any more
  struct Pending {
    SendDone done;
    uint64_t bytes = 0;
    std::shared_ptr<Transit> transit;  // null: goes nowhere, or is in the queue
    bool is_lent = false;              // completes when the loan is returned
    bool is_queued = false;            // completes when its last piece has crossed
  };
  std::map<uint64_t, Pending> pending;
  uint64_t next_send = 0;
  SendState state;

  // Used if a rate is set.
  SendQueue queue;
  SendWindow window;
  std::deque<std::shared_ptr<Transit>> pieces;  // on the pipe
  // Instead of the pipe, between hosts with cables.
  std::shared_ptr<HostCables::Flow> flow;
  std::deque<std::shared_ptr<SendQueue::Piece>> in_flow;
  size_t arrived_of_piece = 0;  // bytes of the first piece in the flow

  // An empty message takes a byte.
  static size_t BytesInFlow(const SendQueue::Piece& piece) {
    return std::max<size_t>(piece.bytes(), 1);
  }

  ~Link() {
    if (flow != nullptr) flow->Close();
  }

  SendState StateAt(absl::Duration now) const {
    if (!refusal.ok()) return {state.accepted_bytes, state.accepted_bytes};
    SendState at = state;
    at.queued_bytes = queue.queued_bytes();
    if (!in_flow.empty()) {
      at.gone_bytes += arrived_of_piece;
    } else if (!pieces.empty()) {
      at.gone_bytes += pieces.front()->CrossedAt(now);
    } else if (!pending.empty()) {
      const auto& transit = pending.begin()->second.transit;
      const bool is_crossing = transit != nullptr && transit->end > now;
      at.gone_bytes += is_crossing ? transit->CrossedAt(now) : 0;
    }
    return at;
  }
};

}  // namespace syncline
