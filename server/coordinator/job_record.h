// What is stored of a running job, so that it outlives the coordinator: who its members
// are, on which servers it lies, and with which settings. Servers hold all the rest, and
// say it when they come back (held_job.h).
//
// Small: written once for each epoch. The declaration, which may be large, has a record of
// its own, written once.
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

// The last epoch that was begun: some servers may not have heard of it yet.
struct RecordedEpoch {
  uint64_t epoch = 0;
  std::vector<MemberRecord> members = {};
  std::vector<std::string> names = {};  // of the members
  std::string reason = {};
  std::optional<TrainingSettings> training = std::nullopt;  // new ones
  uint64_t training_from = 0;
  // Of mode ssp, from this epoch on; none: that which the job was declared with.
  std::optional<uint64_t> staleness = std::nullopt;
};

struct RecordedServer {
  ServerIdentity identity = {};
  std::string name = {};
  std::string host = {};  // in whose process it runs
  std::vector<std::string> shard_addresses = {};
  uint64_t moved_in = 0;         // the epoch; 0: it began there
  std::string backup_lost = {};  // why it has no backup any more; empty: it may have one
  uint32_t journal_generation = 0;
  std::string journal_lost = {};  // likewise; of jobs that have backups, too
};

struct JobRecord {
  uint32_t id = 0;
  std::string name = {};
  std::string run_id = {};
  std::string digest = {};  // of its declaration
  RecordedEpoch epoch = {};
  TrainingSettings training = {};  // with the last update
  std::string goals = "none";      // likewise
  std::string answers = "none";    // likewise
  std::vector<RecordedExclusion> excluded = {};
  uint32_t exclusions = 0;     // in all
  bool update_is_due = false;  // which no epoch has brought yet
  // As they were then; servers know better.
  LossScalerState scaler = {};
  uint64_t skipped = 0;
  uint64_t decided = 0;  // steps
  // Of the last of them, which some servers may not have heard of.
  std::optional<StepDecision> decision = std::nullopt;
  uint64_t step = 0;
  std::vector<RecordedServer> servers = {};
  uint32_t placement_sum = 0;  // of where its blocks lie on them
  std::string journal = {};    // the run of it, once it is known
  // Of its checkpoints.
  uint32_t run = 0;
  uint64_t last_cut = 0;
  bool saves_last = false;  // all workers left
  CheckpointView saved = {};
};

inline constexpr char kJobRecords[] = "job/";
std::string RecordKey(uint32_t job);       // "job/7"
std::string DeclarationKey(uint32_t job);  // "job/7/declaration"

uint32_t SumOf(const JobPlacement& placement);

std::string WriteJobRecord(const JobRecord& record);
// DataLoss when it is damaged.
absl::StatusOr<JobRecord> ParseJobRecord(const std::string& json);

}  // namespace syncline
