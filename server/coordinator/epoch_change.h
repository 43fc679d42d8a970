// A change of epoch under way: first all servers of the job prepare it, then all commit
// it. A server that takes the place of another one has to answer again.
//
//   EpochChange change = {.epoch = 5};
//   change.unprepared = {0, 1};
//   change.Prepare(0, next_step);   // true: its answer was awaited
//   change.Question();              // "prepare epoch 5"; server 1 has not answered
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/coordinator/coordinator.h"
#include "server/coordinator/reasons.h"

namespace syncline {

struct EpochChange {
  uint64_t epoch = 0;
  std::set<uint32_t> unprepared = {};   // by server; empty: all are prepared
  std::set<uint32_t> uncommitted = {};  // by server; filled once all are prepared
  uint64_t next_step = 0;               // first step that no block has completed
  Reasons reasons = {};
  std::vector<MemberRecord> members = {};         // fixed when all servers are prepared
  std::optional<TrainingSettings> training = {};  // new settings
  bool cuts = false;         // its first step is saved as a checkpoint
  bool is_restored = false;  // begun by a previous coordinator

  // Note the answer of a server. Return false if it was not awaited.
  bool Prepare(uint32_t server, uint64_t servers_next_step);
  bool Commit(uint32_t server) { return uncommitted.erase(server) > 0; }

  // The question that servers are asked now, and the servers that have not answered it.
  bool IsPrepared() const { return unprepared.empty(); }
  const std::set<uint32_t>& unanswered() const;
  std::string Question() const;

  // The server died. Its answer is void, because its successor has not answered.
  void Lose(uint32_t server);
  void Replace(uint32_t server, uint32_t successor);
};

}  // namespace syncline
