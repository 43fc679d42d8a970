// The fixture of tests of shares that move. For tests only.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/coordinator/coordinator_test_util.h"

namespace syncline {

// The servers are on connections 1 and 2 (numbers 0 and 1), their stand-ins on 3 and 4,
// and ranks 0 and 1 on 10 and 11. Server 0 dies, and the stand-in on 3 serves its place
// in the process of server 1. A server comes on connection 23, and its stand-ins on 5 and
// 6.
class JobMoves : public CoordinatorTest {
 protected:
  void AttachServers(bool spreads = true) {
    coordinator_ = std::make_unique<Coordinator>(
        CoordinatorOptions{.timeouts = Timeouts::Derive(kFailureTimeout),
                           .expected_servers = 2,
                           .spreads_shares = spreads});
    Take(coordinator_->Apply(Start{}, now_));
    AttachServer(1);
    AttachServer(2);
  }
  static JobSpec WithBackups() {
    JobSpec job = TwoTensors(2);
    job.tensors.push_back({.name = "c", .shape = {50}});
    job.settings.durability = "peer";
    return job;
  }
  void BeginJob(const JobSpec& job) {
    for (const uint32_t rank : {0u, 1u}) {
      SayHello(10 + rank, job,
               {.rank = rank, .run_id = "run", .session_key = 1000 + rank});
    }
    StandInComes(3, Last<HoldBackup>(2).value());
    StandInComes(4, Last<HoldBackup>(1).value());
    id_ = Last<WorkerWelcome>(10).value().job;
  }
  void StandInComes(ConnectionId connection, const HoldBackup& hold) {
    Say(connection, ServerHello{.name = absl::StrCat("stand_in", hold.order),
                                .shard_addresses = {absl::StrCat("memory", hold.order)},
                                .stand_in = StandInFor{hold.job, hold.server, hold.order},
                                .session_key = 77 + hold.order,
                                .feeds_two_backups = feeds_two_backups_});
  }
  std::vector<HoldBackup> Ordered(ConnectionId connection) const {
    std::vector<HoldBackup> orders;
    const auto told = told_.find(connection);
    if (told == told_.end()) return orders;
    for (const CoordinatorBody& body : told->second) {
      if (const auto* hold = std::get_if<HoldBackup>(&body)) orders.push_back(*hold);
    }
    return orders;
  }
  template <typename Body>
  size_t Count(ConnectionId connection) const {
    const auto told = told_.find(connection);
    if (told == told_.end()) return 0;
    return static_cast<size_t>(std::ranges::count_if(told->second, [](const auto& body) {
      return std::holds_alternative<Body>(body);
    }));
  }
  void Pass(absl::Duration time) {
    PassTimeBeating(time, {2, 3, 4, 5, 6, 10, 11, 23, 24});
  }
  // Loses server 0 and the stand-in on its host. The stand-in on 3 serves its place.
  void LoseOne() {
    servers_answer_ = false;
    Say(1, Disconnected{});
    Say(4, Disconnected{});
    PassTimeBeating(kFailureTimeout / 2, {2, 3, 10, 11, 23});
    servers_answer_ = true;
    Say(3, JobConfigured{id_, 0});
    Pass(absl::Seconds(1));
  }
  // The stand-in of the first place comes on 5, that of the second place on 6.
  void StandInsCome(ConnectionId holder = 23) {
    const std::vector<HoldBackup> orders = Ordered(holder);
    ASSERT_EQ(orders.size(), 2u);
    const size_t first = orders[0].server == Shown().backups[0].server ? 0 : 1;
    StandInComes(5, orders[first]);
    StandInComes(6, orders[1 - first]);
  }
  // Both places have their backups on the new server.
  void BackUpBoth() {
    StandInsCome();
    servers_answer_ = false;
    Say(3, BackedUp{id_, Last<BackupAt>(3).value().pair.session_key});
    Say(2, BackedUp{id_, Last<BackupAt>(2).value().pair.session_key});
  }
  void HandOver(const JobSpec& job = WithBackups(), bool spreads = true) {
    AttachServers(spreads);
    BeginJob(job);
    AttachServer(23);
    LoseOne();
    BackUpBoth();
    Pass(absl::Seconds(1));
  }
  JobView Shown() const { return coordinator_->View(now_).jobs.at(0); }

  uint32_t id_ = 0;
};

}  // namespace syncline
