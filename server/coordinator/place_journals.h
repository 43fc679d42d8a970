// Which journal of each place of a job counts. Where there are backups, too, a place is
// fenced (ADR 38): a journal that misses a step which anybody was told of never counts
// again, and the one that begins after it has a generation of its own.
//
//   journals.Lose(0, "its disk is full");    // true: it is to be stored
//   journals.BeginAnew(0, generation);
//   journals.SetWhole(0, generation);        // from now on that one counts
//
// Thread safety: none; pure, but for what it remembers.
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
  // Of the job's journals; empty: it is not known yet.
  const std::string& run() const { return run_; }
  // False when it was known.
  bool SetRun(const std::string& run);

  // Those of a job that begins.
  void Begin(size_t places);
  // That of another place, as an earlier coordinator stored it.
  void Add(uint32_t generation, const std::string& lost);

  // 0 and empty where places are not fenced.
  uint32_t GenerationOf(size_t place) const;
  // Why none counts, until that of the present generation is whole.
  std::string WhyLost(size_t place) const;
  bool Counts(size_t place) const { return WhyLost(place).empty(); }
  // ", and it had no whole journal: …", for what is said of a job that fails; empty: it had.
  std::string WhyNotWhole(size_t place) const;

  // Whether these are a journal that counts of a place which has these shards.
  bool IsAmong(const std::vector<JournaledRun>& journals, size_t place,
               const std::set<uint32_t>& shards) const;
  // Whether these are one of an earlier generation.
  bool HasEarlier(const std::vector<JournaledRun>& journals, size_t place,
                  const std::set<uint32_t>& shards) const;

  // ---- Of places that are fenced ----

  // None counts from now on. False when none did before; the reason is the last one.
  bool Lose(size_t place, const std::string& why);
  // The next one is of that generation.
  void BeginAnew(size_t place, uint32_t generation);
  // Counts, if it is of the present generation. False when that changes nothing.
  bool SetWhole(size_t place, uint32_t generation);

 private:
  struct Journal {
    uint32_t generation = 0;
    std::string lost = {};
  };

  bool IsOfJob(const JournaledRun& run) const;

  const std::string folder_;  // of the job's name
  const bool is_fenced_;
  std::string run_;
  std::vector<Journal> journals_;  // by place; none: they are not fenced
};

}  // namespace syncline
