// Which journal of each place of a job is valid. In jobs that also have backups the
// journals are fenced (ADR 38). If a fenced journal lacks a step that any member was told
// of, it never becomes valid again. The next journal of the place has a new generation.
//
//   journals.Lose(0, "its disk is full");    // true: the change must be stored
//   journals.BeginAnew(0, generation);
//   journals.SetWhole(0, generation);        // from now on this generation is valid
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "server/coordinator/coordinator.h"
#include "server/coordinator/job_spec.h"

namespace syncline {

class PlaceJournals {
 public:
  explicit PlaceJournals(const JobSpec& spec);

  bool IsFenced() const { return is_fenced_; }
  // Run of the job's journals. Empty: not known yet.
  const std::string& run() const { return run_; }
  // Returns false if it was known before.
  bool SetRun(const std::string& run);

  // Starts with the valid journals of a new job.
  void Begin(size_t places);
  // Adds the journal of the next place, as a previous coordinator stored it.
  void Add(uint32_t generation, const std::string& lost);

  // Generation of the place's journal. 0: places are not fenced, or it is the first
  // journal.
  uint32_t GenerationOf(size_t place) const;
  // Why the place has no valid journal. Empty: it has one, or places are not fenced.
  std::string WhyLost(size_t place) const;
  bool Counts(size_t place) const { return WhyLost(place).empty(); }
  // Returns ", and it had no whole journal: …", for the message of a job that fails.
  // Empty: the journal is valid.
  std::string WhyNotWhole(size_t place) const;

  // Whether `journals` include a valid journal of the place, for all of these shards.
  bool IsAmong(const std::vector<JournaledRun>& journals, size_t place,
               const std::set<uint32_t>& shards) const;
  // Whether `journals` include one of the place with an earlier generation.
  bool HasEarlier(const std::vector<JournaledRun>& journals, size_t place,
                  const std::set<uint32_t>& shards) const;

  // ---- Fenced places only ----

  // Makes the place's journal invalid. Returns false if it was invalid before; the reason
  // is replaced.
  bool Lose(size_t place, const std::string& why);
  // Notes that the next journal of the place has this generation.
  void BeginAnew(size_t place, uint32_t generation);
  // Makes the journal valid if it has the present generation. Returns false if nothing
  // changes.
  bool SetWhole(size_t place, uint32_t generation);

 private:
  struct Journal {
    uint32_t generation = 0;
    std::string lost = {};
  };

  bool IsOfJob(const JournaledRun& run) const;

  const std::string folder_;  // folder of the job's name
  const bool is_fenced_;
  std::string run_;
  std::vector<Journal> journals_;  // by place; empty: not fenced
};

}  // namespace syncline
