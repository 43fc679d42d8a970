// The stored record of a running job: its members, its servers and its settings. With it
// the next coordinator can continue the job. Servers hold everything else and report it
// when they come back (held_job.h).
//
// The record is small and is written once for each epoch. The declaration, which may be
// large, has a record of its own and is written once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/exclusions.h"

namespace syncline {

// The last epoch that was begun. Some servers may not have heard of it yet.
struct RecordedEpoch {
  uint64_t epoch = 0;
  std::vector<MemberRecord> members = {};
  std::vector<std::string> names = {};  // one for each member
  std::string reason = {};
  std::optional<TrainingSettings> training = std::nullopt;  // if the epoch changes it
  uint64_t training_from = 0;
  // Mode ssp: the staleness from this epoch on. Empty: as declared.
  std::optional<uint64_t> staleness = std::nullopt;
};

struct RecordedServer {
  ServerIdentity identity = {};
  std::string name = {};
  std::string host = {};  // name of the server in whose process it runs
  std::vector<std::string> shard_addresses = {};
  uint64_t moved_in = 0;  // first epoch in which it has its place; 0: since the beginning
  std::string backup_lost = {};  // why it has no backup; empty: it may have one
  uint32_t journal_generation = 0;
  std::string journal_lost = {};  // why its journal does not count; needs backups, too
};

struct JobRecord {
  uint32_t id = 0;
  std::string name = {};
  std::string run_id = {};
  std::string digest = {};  // of its declaration
  RecordedEpoch epoch = {};
  TrainingSettings training = {};  // with the last update
  std::string goals = "none";      // with the last update
  std::string answers = "none";    // with the last update
  std::vector<RecordedExclusion> excluded = {};
  uint32_t exclusions = 0;     // number of exclusions in all
  bool update_is_due = false;  // an update waits for the next epoch
  // State of the decisions when the record was written. Servers report newer ones.
  LossScalerState scaler = {};
  uint64_t skipped = 0;
  uint64_t decided = 0;  // number of decided steps
  // The last decision. Some servers may not have heard of it.
  std::optional<StepDecision> decision = std::nullopt;
  uint64_t step = 0;
  std::vector<RecordedServer> servers = {};
  uint32_t placement_sum = 0;  // SumOf its placement
  std::string journal = {};    // run of its journals; empty: not known yet
  // Its checkpoints.
  uint32_t run = 0;
  uint64_t last_cut = 0;
  bool saves_last = false;  // all workers have left, and the last step is being saved
  CheckpointView saved = {};
};

inline constexpr char kJobRecords[] = "job/";
std::string RecordKey(uint32_t job);       // "job/7"
std::string DeclarationKey(uint32_t job);  // "job/7/declaration"

// Returns a checksum (CRC-32C) of the shard of each block.
uint32_t SumOf(const JobPlacement& placement);

std::string WriteJobRecord(const JobRecord& record);
// Fails with DataLoss if the record is damaged.
absl::StatusOr<JobRecord> ParseJobRecord(const std::string& json);

}  // namespace syncline
