// The fixture of the coordinator's tests: members and times are set by hand.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/declaration_test_util.h"

namespace syncline {

inline constexpr absl::Duration kFailureTimeout = absl::Seconds(10);
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline JobSpec TwoTensors(uint32_t workers) {
  JobSpec job;
  job.name = "job";
  job.workers = workers;
  job.tensors = {{.name = "a", .shape = {100}}, {.name = "b", .shape = {3, 4}}};
  return job;
}

// Keeps what each connection was told. Servers answer by themselves while servers_answer_
// is set.
class CoordinatorTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Coordinator> NewCoordinator() {
    return std::make_unique<Coordinator>(
        CoordinatorOptions{Timeouts::Derive(kFailureTimeout), 1});
  }

  void Say(ConnectionId connection, MemberBody body) {
    Take(specs_.Apply(*coordinator_, FromMember{connection, std::move(body)}, now_));
  }

  void PassTime(absl::Duration duration) {
    now_ += duration;
    Take(specs_.Apply(*coordinator_, Tick{}, now_));
  }

  // Beats on all `alive` connections while `duration` passes.
  void PassTimeBeating(absl::Duration duration, const std::vector<ConnectionId>& alive) {
    for (absl::Duration end = now_ + duration; now_ < end;) {
      for (const ConnectionId connection : alive) Say(connection, beats_[connection]);
      PassTime(absl::Seconds(1));
    }
  }

  void Take(CoordinatorOutputs outputs) {
    for (CoordinatorOutput& output : outputs) {
      if (auto* message = std::get_if<ToMember>(&output)) {
        told_[message->connection].push_back(message->body);
        Answer(message->connection, message->body);
      }
      if (auto* close = std::get_if<CloseMember>(&output)) {
        closed_[close->connection] = close->status;
      }
      if (auto* persist = std::get_if<PersistState>(&output)) state_ = persist->state;
      if (auto* record = std::get_if<StoreRecord>(&output)) {
        records_.erase(record->key);
        if (record->value != nullptr) records_[record->key] = *record->value;
      }
      if (auto* order = std::get_if<CheckpointOrder>(&output)) orders_.push_back(*order);
      if (auto* event = std::get_if<CoordinatorEvent>(&output)) events_.push_back(*event);
      if (auto* reason = std::get_if<LogReason>(&output)) log_.push_back(*reason);
    }
  }

  // Returns the texts of the events of that kind, in their order.
  std::vector<std::string> Said(EventKind kind) const {
    std::vector<std::string> said;
    for (const CoordinatorEvent& event : events_) {
      if (event.kind == kind) said.push_back(event.what);
    }
    return said;
  }

  // Returns the log lines of that level, in their order.
  std::vector<std::string> Logged(LogReason::Level level) const {
    std::vector<std::string> logged;
    for (const LogReason& reason : log_) {
      if (reason.level == level) logged.push_back(reason.text);
    }
    return logged;
  }

  void Answer(ConnectionId connection, const CoordinatorBody& body) {
    if (!servers_answer_) return;
    if (const auto* job = std::get_if<ConfigureJob>(&body)) {
      Say(connection, JobConfigured{job->job});
    }
    if (const auto* prepare = std::get_if<PrepareEpoch>(&body)) {
      Say(connection,
          EpochPrepared{prepare->job, prepare->epoch, next_step_[connection]});
    }
    if (const auto* commit = std::get_if<CommitEpoch>(&body)) {
      Say(connection, EpochCommitted{commit->job, commit->epoch});
    }
  }

  void AttachServer(ConnectionId connection) {
    Say(connection, ServerHello{.name = absl::StrCat("server", connection),
                                .shard_addresses = {"address"},
                                .lanes = "sysv",
                                .feeds_two_backups = feeds_two_backups_});
  }

  void SayHello(ConnectionId connection, const JobSpec& job, const WorkerHello& hello) {
    Say(connection, specs_.Hello(job, hello));
  }

  void Hello(ConnectionId connection, uint32_t rank, uint32_t workers = 2) {
    SayHello(connection, TwoTensors(workers),
             {.rank = rank,
              .run_id = "run",
              .name = absl::StrCat("worker", rank),
              .session_key = 1000 + connection});
  }

  // Makes a call (UpdateJob, DrainServer, ...) and returns its answer.
  CallAnswer Call(const CoordinatorInput& asked) {
    const CoordinatorOutputs outputs = coordinator_->Apply(asked, now_);
    CallAnswer answer{absl::InternalError("no answer")};
    for (const CoordinatorOutput& output : outputs) {
      if (const auto* found = std::get_if<CallAnswer>(&output)) answer = *found;
    }
    Take(outputs);
    return answer;
  }

  template <typename Body>
  std::optional<Body> Last(ConnectionId connection) const {
    const auto told = told_.find(connection);
    if (told == told_.end()) return std::nullopt;
    for (auto body = told->second.rbegin(); body != told->second.rend(); ++body) {
      if (const auto* found = std::get_if<Body>(&*body)) return *found;
    }
    return std::nullopt;
  }

  // Begins a job: its server is on connection 1, ranks 0 and 1 are on 10 and 11.
  void Begin() {
    AttachServer(1);
    Hello(10, 0);
    Hello(11, 1);
  }

  DeclaredSpecs specs_;
  std::unique_ptr<Coordinator> coordinator_ = NewCoordinator();
  absl::Duration now_ = absl::Seconds(100);
  bool servers_answer_ = true;
  bool feeds_two_backups_ = true;  // servers that attach
  std::map<ConnectionId, uint64_t> next_step_;
  std::map<ConnectionId, Heartbeat> beats_;
  std::map<ConnectionId, std::vector<CoordinatorBody>> told_;
  std::map<ConnectionId, absl::Status> closed_;
  std::string state_;
  std::map<std::string, std::string> records_;
  std::vector<CheckpointOrder> orders_;
  std::vector<CoordinatorEvent> events_;
  std::vector<LogReason> log_;
};

}  // namespace syncline
