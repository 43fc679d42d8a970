// A coordinator with two servers and two workers whose job runs, without I/O. Members
// answer the coordinator's orders at once. Everything that the coordinator sends and
// stores is checked: others must be able to read it.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/coordinator/coordinator.h"
#include "server/service/event_log.h"

namespace syncline::fuzz {

class SmallCluster {
 public:
  explicit SmallCluster(const JobSpec& job);

  // The member with the number `who`, modulo all, says `body`. A hello is said by a new
  // member.
  void Say(uint32_t who, const MemberBody& body);
  void Apply(const CoordinatorInput& input);
  void PassTime(absl::Duration duration);
  // All members send a heartbeat.
  void BeatAll();
  // A new coordinator continues from what is stored.
  void Restart();
  // The same, from something else. Fails as Coordinator::Restore does.
  absl::Status RestartFrom(const StoredState& stored);
  // Checks that the status can be sent.
  void CheckView() const;

  StoredState stored() const { return {state_, records_}; }
  uint32_t job() const { return job_; }
  uint64_t epoch() const { return epoch_; }
  uint64_t session_key() const { return session_key_; }
  const Declaration& declaration() const { return declaration_; }

 private:
  std::unique_ptr<Coordinator> NewCoordinator() const;
  void Take(const CoordinatorOutput& output);
  void Hear(const ToMember& message);
  void Answer(const CheckpointOrder& order);
  void Store(const StoreRecord& record);

  const Declaration declaration_;
  std::unique_ptr<Coordinator> coordinator_;
  EventLog events_;
  std::deque<CoordinatorInput> inputs_;
  std::vector<ConnectionId> members_;
  absl::Duration now_ = absl::Seconds(100);
  uint32_t job_ = 0;
  uint64_t epoch_ = 0;
  uint64_t session_key_ = 0;
  std::string state_;
  std::map<std::string, std::string> records_;
};

}  // namespace syncline::fuzz
