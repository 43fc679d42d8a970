// The fixture of the tests of jobs with checkpoints.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <variant>

#include "server/coordinator/coordinator_test_util.h"

namespace syncline {

class SavedJobs : public CoordinatorTest {
 protected:
  SavedJobs() {
    coordinator_ = std::make_unique<Coordinator>(
        CoordinatorOptions{.timeouts = Timeouts::Derive(kFailureTimeout),
                           .expected_servers = 1,
                           .keeps_checkpoints = true});
  }

  void Announce(const JobSpec& job) {
    AttachServer(1);
    for (const uint32_t rank : {0u, 1u}) {
      SayHello(10 + rank, job, {.rank = rank, .run_id = "run", .name = "worker"});
    }
  }

  void Decide(uint64_t step, double sum) {
    for (const uint32_t block : {0u, 1u}) Say(1, BlockFigures{job_, block, step, {sum}});
  }
  void Answer(const CheckpointAnswer& answer) { Take(coordinator_->Apply(answer, now_)); }

  // Begins a job of run 3.
  void BeginJob(const JobSpec& job) {
    Announce(job);
    const auto& find = std::get<FindCheckpoint>(orders_.at(0));
    job_ = find.job;
    Answer(CheckpointFound{.job = job_, .beginning = Beginning{.run = 3}});
    ASSERT_TRUE(Last<WorkerWelcome>(10).has_value());
    orders_.clear();
  }

  CallAnswer Create() {
    const CoordinatorOutputs outputs = coordinator_->Apply(CreateCheckpoint{"job"}, now_);
    CallAnswer answer{absl::InternalError("no answer")};
    for (const CoordinatorOutput& output : outputs) {
      if (const auto* found = std::get_if<CallAnswer>(&output)) answer = *found;
    }
    Take(outputs);
    return answer;
  }

  CheckpointWritten Written(uint64_t step) const {
    return {.job = job_,
            .step = step,
            .files = {{.name = "weights-00000.safetensors", .bytes = 1000}},
            .took = absl::Seconds(2)};
  }
  CheckpointView Saved() { return coordinator_->View(now_).jobs.at(0).checkpoint; }

  // Returns how many messages the server got before the last one of that kind.
  template <typename Body>
  size_t PlaceOfLast() {
    const auto& told = told_[1];
    for (size_t i = told.size(); i > 0; --i) {
      if (std::holds_alternative<Body>(told[i - 1])) return i - 1;
    }
    return 0;
  }

  uint32_t job_ = 0;
};

class SavedJobsOfTwoServers : public SavedJobs {
 protected:
  void BeginOnTwo(const JobSpec& job) {
    NewLife();
    AttachServer(2);
    BeginJob(job);
    for (const ConnectionId server : {1, 2}) {
      identities_[server] = {Last<ServerWelcome>(server)->server,
                             Last<ServerWelcome>(server)->incarnation};
    }
    epoch_ = Last<CommitEpoch>(1)->epoch;
  }
  void NewLife() {
    coordinator_ = std::make_unique<Coordinator>(
        CoordinatorOptions{.timeouts = Timeouts::Derive(kFailureTimeout),
                           .expected_servers = 2,
                           .keeps_checkpoints = true});
  }
  void Restart() {
    NewLife();
    ASSERT_TRUE(coordinator_->Restore({state_, records_}, specs_.reader()).ok());
    Take(coordinator_->Apply(Start{}, now_));
  }
  // On connection 10 * server.
  void ServerReturns(ConnectionId server, HeldJob held) {
    held.job = job_;
    held.prepared = held.committed = epoch_;
    Say(10 * server, ServerHello{.name = absl::StrCat("server", server),
                                 .shard_addresses = {"address"},
                                 .identity = identities_.at(server),
                                 .held = {held}});
  }

  std::map<ConnectionId, ServerIdentity> identities_;
  uint64_t epoch_ = 0;
};

}  // namespace syncline
