// A wire for ranks on several hosts, some of which share a host: shared memory within a
// host, TCP between hosts.
#pragma once

#include <memory>
#include <vector>

#include "comm/collective/group/shared_wire.h"
#include "comm/collective/group/tcp_wire.h"
#include "comm/collective/group/wire.h"
#include "comm/transport/bell.h"

namespace syncline::collective {

class MixedWire final : public Wire {
 public:
  // `bell`: wakes this rank while it sleeps on sockets.
  MixedWire(std::unique_ptr<SharedWire> near, std::unique_ptr<TcpWire> far,
            std::unique_ptr<Bell> bell);

  const std::vector<Lane*>& lanes() override { return lanes_[0]; }
  const std::vector<Lane*>& direct_lanes() override { return lanes_[1]; }
  void Progress() override { far_->Progress(); }
  bool HasUnsent() const override { return far_->HasUnsent(); }
  void Tend() override { far_->Tend(); }
  void Settle() override { far_->Settle(); }
  absl::Duration tend_every() const override { return far_->tend_every(); }
  void Enter(const CallHeader& header) override { near_->Enter(header); }
  std::vector<int> Behind(uint64_t sequence) const override;
  void PrepareToSleep() override { near_->PrepareToSleep(); }
  void Sleep(absl::Duration timeout) override;
  void Stay() override { near_->Stay(); }
  void Wake() override { far_->Wake(); }
  absl::Status Check(const std::vector<int>& ranks, const CallHeader* header) override;
  void Report(const absl::Status& status) override;

 private:
  const std::unique_ptr<SharedWire> near_;
  const std::unique_ptr<TcpWire> far_;
  const std::unique_ptr<Bell> bell_;
  std::vector<Lane*> lanes_[2];
};

}  // namespace syncline::collective
