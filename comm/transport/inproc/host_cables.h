// The cables that connect hosts to one switch, in simulated time. All connections of a
// host share its cable, as with TCP between real hosts.
//
// Bytes travel in frames: up the sender's cable, then down the receiver's. Each direction
// of a cable is a queue, first in, first out. Each flow sends as TCP does (Reno with
// explicit congestion notification, RFC 5681 and 3168): it starts slowly, and sends less
// once its frames wait longer than kMarkedAfter at a cable. No frame is lost, so nothing
// is sent twice. Propagation takes no time; callers add their own delay.
//
// Thread safety: none. HostCables must outlive the events of its flows.
//
//   HostCables cables(events);
//   cables.Lay("server", {.up = 1.25e6, .down = 1.25e6});
//   auto flow = cables.Open("worker", "server", [&](size_t bytes) { arrived += bytes; });
//   flow->Write(4096);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "comm/base/event_queue.h"

namespace syncline {

// Bytes per second on the wire, in each direction. 0: no limit.
struct CableRates {
  double up = 0;    // from the host
  double down = 0;  // to the host
};

class HostCables {
 public:
  // Ethernet frames of TCP: bytes of data, and bytes that they take on the wire.
  static constexpr size_t kFrameData = 1448;
  static constexpr size_t kFrameBytes = 1514;
  // A frame that waits longer is marked, and its flow slows down. The limit of the queues
  // in tests/network.
  static constexpr absl::Duration kMarkedAfter = absl::Milliseconds(50);

  // One direction of a connection: a stream of bytes, in order.
  class Flow;
  // Called each time when bytes have crossed both cables.
  using OnArrival = std::function<void(size_t bytes)>;

  explicit HostCables(EventQueue& events) : events_(events) {}

  HostCables(const HostCables&) = delete;
  HostCables& operator=(const HostCables&) = delete;

  // Gives the host a cable. If it has one, the rates apply from the next frame on.
  void Lay(const std::string& host, const CableRates& rates);

  // Whether bytes from one host to the other take time: they are two hosts, and a cable
  // between them has a limit.
  bool AreLimited(const std::string& from, const std::string& to) const;

  std::shared_ptr<Flow> Open(const std::string& from, const std::string& to,
                             OnArrival on_arrival);

  // Bytes of data that have left any host. Each counts once, also if its flow was closed
  // before it arrived.
  uint64_t sent_bytes() const { return sent_bytes_; }
  // Returns how long it takes to carry, one after the other, the bytes that the host's
  // cable has carried so far, in the direction in which that takes longer. Zero: no
  // limit, or no such cable.
  absl::Duration BusyTime(const std::string& host) const;

 private:
  // One direction of a cable.
  struct Lane {
    double rate = 0;
    absl::Duration free_at = absl::ZeroDuration();
    absl::Duration busy = absl::ZeroDuration();

    // Returns when a frame that comes now has crossed.
    absl::Duration Cross(size_t data_bytes, absl::Duration now);
  };
  struct Cable {
    Lane up, down;
  };

  EventQueue& events_;
  std::map<std::string, Cable> cables_;  // by host; lanes keep their addresses
  uint64_t sent_bytes_ = 0;
};

class HostCables::Flow : public std::enable_shared_from_this<Flow> {
 public:
  Flow(HostCables& cables, Lane& up, Lane& down, OnArrival on_arrival)
      : cables_(cables), up_(up), down_(down), on_arrival_(std::move(on_arrival)) {}

  // Appends bytes to the stream. REQUIRES: bytes > 0.
  void Write(size_t bytes);

  // What has not left is dropped. Frames under way still take their place on the cables,
  // but on_arrival is not called any more.
  void Close();

 private:
  double SlowerRate() const;
  size_t NextFrame() const;
  void Pump();
  void Arrive(size_t bytes, bool is_marked);
  void Adapt(size_t bytes, bool is_marked);

  HostCables& cables_;
  Lane& up_;
  Lane& down_;
  OnArrival on_arrival_;
  uint64_t unsent_ = 0;
  uint64_t under_way_ = 0;
  double window_ = 10 * kFrameData;  // bytes that may be under way; RFC 6928
  bool starts_slowly_ = true;
  absl::Duration slowed_at_ = absl::ZeroDuration();
};

}  // namespace syncline
