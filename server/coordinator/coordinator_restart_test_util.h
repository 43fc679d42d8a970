// The fixture of the tests of a coordinator that is restarted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "server/coordinator/coordinator_test_util.h"

namespace syncline {

// The servers are on connections 1 and 2, ranks 0 and 1 on 10 and 11. After a restart the
// numbers of the connections are ten times as high.
class CoordinatorRestart : public CoordinatorTest {
 protected:
  void BeginWith(const JobSpec& job) {
    coordinator_ = std::make_unique<Coordinator>(
        CoordinatorOptions{Timeouts::Derive(kFailureTimeout), 2});
    Take(coordinator_->Apply(Start{}, now_));
    AttachServer(1);
    AttachServer(2);
    for (const uint32_t rank : {0u, 1u}) {
      SayHello(10 + rank, job,
               {.rank = rank, .run_id = "run", .session_key = 1000 + rank});
      ++joined_;
    }
    epoch_ = Last<CommitEpoch>(1)->epoch;
    for (const uint32_t rank : {0u, 1u})
      welcomes_[rank] = *Last<WorkerWelcome>(10 + rank);
  }
  void Begin() { BeginWith(TwoTensors(2)); }

  void Restart() {
    for (const uint32_t server : {1u, 2u}) {
      if (const auto said = Last<ServerWelcome>(server)) welcomed_[server] = *said;
    }
    coordinator_ = std::make_unique<Coordinator>(
        CoordinatorOptions{Timeouts::Derive(kFailureTimeout), 2});
    ASSERT_TRUE(coordinator_->Restore({state_, records_}, specs_.reader()).ok());
    told_.clear();
    closed_.clear();
    Take(coordinator_->Apply(Start{}, now_));
  }

  ServerHello HelloOf(ConnectionId server, HeldJob held) {
    held.job = welcomes_.at(0).job;
    return {.name = absl::StrCat("server", server),
            .shard_addresses = {"address"},
            .identity = ServerIdentity{welcomed_.at(server).server,
                                       welcomed_.at(server).incarnation},
            .held = {held}};
  }
  void ServerReturns(ConnectionId server, HeldJob held) {
    Say(10 * server, HelloOf(server, std::move(held)));
  }
  void ServersReturn() {
    for (const ConnectionId server : {1, 2}) {
      ServerReturns(server, {.prepared = epoch_, .committed = epoch_});
    }
  }
  void WorkerReturns(uint32_t rank, HeldMembership member = {}, uint64_t behind = 0) {
    member.job = welcomes_.at(rank).job;
    member.incarnation = welcomes_.at(rank).incarnation;
    if (member.session_key == 0) member.session_key = welcomes_.at(rank).session_key;
    member.epoch = epoch_ - behind;  // the last one it was told
    WorkerHello hello = {.rank = rank, .run_id = "run", .member = member};
    Say(100 + rank, specs_.Hello(TwoTensors(2), hello));
  }
  JobView Shown() const { return coordinator_->View(now_).jobs.at(0); }

  uint64_t epoch_ = 0;
  int joined_ = 0;
  std::map<ConnectionId, ServerWelcome> welcomed_;
  std::map<uint32_t, WorkerWelcome> welcomes_;
};

}  // namespace syncline
