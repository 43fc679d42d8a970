// A server of the simulation: the real shard machine behind an in-process transport and a
// simulated control stream. One engine, one job.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "comm/base/buffer.h"
#include "comm/codec/codec.h"
#include "comm/transport/inproc/inproc.h"
#include "server/shard/shard.h"
#include "tests/sim/control_plane.h"
#include "tests/sim/reference.h"

namespace syncline::sim {

class ServerProcess : private Receiver {
 public:
  struct Parts {
    EventQueue& events;
    InprocNetwork& network;
    ControlPlane& control;
    Reference& reference;
    const CodecRegistry& codecs;
    // Transport address of a life of a worker; empty when unknown. Stands for kHello.
    std::function<std::string(uint32_t rank, uint32_t incarnation)> address_of;
    absl::Duration heartbeat_interval;
  };

  ServerProcess(Parts parts, std::string name);

  bool Owns(uint32_t block) const { return owned_.contains(block); }
  bool is_configured() const { return shard_ != nullptr; }
  const Shard& shard() const { return *shard_; }
  std::string address() const { return transport_->address(); }

 private:
  void OnControl(const CoordinatorBody& body);
  void Configure(const ConfigureJob& configure);
  void Run(const ShardInput& input);
  void Perform(const ShardOutput& output);
  void Reply(const ShardReply& reply);
  void Beat();
  JobProgress Progress() const;

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override;
  void OnMessage(ByteView header, Buffer payload) override;

  Parts parts_;
  BufferPool pool_;
  std::unique_ptr<Transport> transport_;
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Endpoint>> workers_;
  ConnectionId connection_ = 0;
  uint32_t job_ = 0;
  std::unique_ptr<Shard> shard_;
  std::set<uint32_t> owned_;
  uint64_t bytes_ = 0;
};

}  // namespace syncline::sim
