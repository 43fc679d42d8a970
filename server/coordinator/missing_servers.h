// The servers of a job that died, each until another process has what it had: how long they
// are waited for, who was asked for what, and who is at it. A place goes on from its backup
// or from its journal (job_servers.cc).
//
//   missing.Add(1, now);
//   missing.Restore(1, successor);    // which reads the journal
//   missing.SucceededBy(number);      // 1
//   missing.Take(1);                  // it has all: the place is its own
//
// Thread safety: none; pure, but for what it remembers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/job_context.h"
#include "server/coordinator/places.h"

namespace syncline {

struct MissingServer {
  std::optional<absl::Duration> since = {};  // none: the next look will have seen it
  absl::Duration say_after = {};
  std::optional<JobServer> successor = {};  // that restores what it had
  bool by_backup = false;                   // it has that in its memory
  uint32_t generation = 0;                  // likewise, of the journal that it begins
  // Of a process that serves another place already: it starts a node of its own for this.
  uint32_t order = 0;
  uint32_t restorer = 0;   // which that is
  std::string host = {};   // likewise
  std::string error = {};  // of the last one that could not

  // In whose process the journal is being read, or is about to be; empty: in none.
  std::string ReadOn() const {
    if (by_backup) return "";
    return successor ? successor->host : order > 0 ? host : "";
  }
};

class MissingServers {
 public:
  // By its timeouts and its patience.
  explicit MissingServers(const CoordinatorOptions& options)
      : failure_timeout_(options.timeouts.failure_timeout), patience_(options.patience) {}

  bool empty() const { return missing_.empty(); }
  bool contains(size_t place) const { return missing_.contains(place); }
  // By place.
  auto begin() const { return missing_.begin(); }
  auto end() const { return missing_.end(); }
  // Null when its server is there.
  const MissingServer* Find(size_t place) const;
  // The place that this server is to take.
  std::optional<size_t> SucceededBy(uint32_t server) const;

  // It died then; none: the next look will have seen it.
  void Add(size_t place, std::optional<absl::Duration> since);
  // It is there again, or its successor is. REQUIRES, as of all below: contains(place).
  MissingServer Take(size_t place);
  void Clear() { missing_.clear(); }

  // ---- Who restores it ----

  void Restore(size_t place, const JobServer& successor);
  // Its backup takes over, and begins a journal of that generation.
  void Promote(size_t place, const JobServer& stand_in, uint32_t generation);
  // It has waited for a while, and nobody else was asked.
  bool MayAsk(size_t place) const;
  // One that serves another place was told to start a node, by that order.
  void Ask(size_t place, const JobServer& restorer, uint32_t order);
  // The place whose node has still to come: by its order, or by who starts it.
  std::optional<size_t> OrderedBy(uint32_t order) const;
  std::optional<size_t> AwaitedOn(uint32_t restorer) const;

  // ---- Who does not ----

  // The node does not come: another one may be asked.
  void ForgetOrder(size_t place);
  void ForgetOrdersOf(uint32_t restorer);
  // The process that was to restore it cannot: another one may try.
  void Fail(size_t place, const std::string& why);
  // Likewise, and it is waited for anew: for its journal.
  void FailAndWaitAnew(size_t place, const std::string& why);

  // ---- Time ----

  struct Verdict {
    std::optional<size_t> late = {};  // nobody has come within the limit
    absl::Duration limit = {};
    bool says = false;  // it is time to say again for whom the job waits
  };
  Verdict Look(absl::Duration now);
  // "waits for server 1 (b), 3 s of 60 s, and server 2 (c), …". `places` are the job's.
  std::string Text(absl::Duration now, const Places& places) const;

 private:
  const absl::Duration failure_timeout_;
  const absl::Duration patience_;
  std::map<size_t, MissingServer> missing_;  // by place
};

}  // namespace syncline
