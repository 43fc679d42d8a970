// A change of epoch under way: all servers of the job prepare it, then all commit it. One
// that took the place of another has answered nothing yet.
//
//   EpochChange change = {.epoch = 5};
//   change.unprepared = {0, 1};
//   change.Prepare(0, next_step);   // true: it was awaited
//   change.Question();              // "prepare epoch 5", of server 1 alone
//
// Thread safety: none; pure, but for what it remembers.
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
  std::set<uint32_t> unprepared = {};   // servers; none: all are prepared
  std::set<uint32_t> uncommitted = {};  // once all are prepared
  uint64_t next_step = 0;               // the first that no block has completed
  Reasons reasons = {};
  std::vector<MemberRecord> members = {};         // fixed when all servers are prepared
  std::optional<TrainingSettings> training = {};  // new ones
  bool cuts = false;                              // a checkpoint at its first step
  bool is_restored = false;                       // begun under another coordinator

  // What a server answers. False when it was not awaited.
  bool Prepare(uint32_t server, uint64_t servers_next_step);
  bool Commit(uint32_t server) { return uncommitted.erase(server) > 0; }

  // What servers are asked now, and who has not answered.
  bool IsPrepared() const { return unprepared.empty(); }
  const std::set<uint32_t>& unanswered() const;
  std::string Question() const;

  // It died: whatever it had answered, its successor has not.
  void Lose(uint32_t server);
  void Replace(uint32_t server, uint32_t successor);
};

}  // namespace syncline
