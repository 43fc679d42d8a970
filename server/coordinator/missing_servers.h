// The dead servers of a job, each until another process has its state. This tracks how
// long the job has waited for each, which process was asked to restore it, and which one
// is doing so. A place continues from its backup or from its journal (job_servers.cc).
//
//   missing.Add(1, now);
//   missing.Restore(1, successor);    // it reads the journal
//   missing.SucceededBy(number);      // 1
//   missing.Take(1);                  // it has all state, and takes the place
//
// Thread safety: none.
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
  std::optional<absl::Duration> since = {};  // time of death; empty: set by the next Look
  absl::Duration say_after = {};  // waiting time after which the wait is logged again
  std::optional<JobServer> successor = {};  // the process that restores its state
  bool by_backup = false;  // the successor has its state in memory, as its backup
  bool lives_on = false;   // its previous server lives, and hands the place over
  // Generation of the journal that the successor begins, if by_backup.
  uint32_t generation = 0;
  // Number of the order to a server of another place: it starts a stand-in, which then
  // restores this one. 0: no order is open.
  uint32_t order = 0;
  uint32_t restorer = 0;   // number of the server that got the order
  std::string host = {};   // name of that server
  std::string error = {};  // of the last process that failed to restore it

  // Returns the name of the server in whose process the journal is being read, or will
  // be. Empty: none.
  std::string ReadOn() const {
    if (by_backup) return "";
    return successor ? successor->host : order > 0 ? host : "";
  }
};

class MissingServers {
 public:
  // Uses the timeouts and the patience of `options`.
  explicit MissingServers(const CoordinatorOptions& options)
      : failure_timeout_(options.timeouts.failure_timeout), patience_(options.patience) {}

  bool empty() const { return missing_.empty(); }
  bool contains(size_t place) const { return missing_.contains(place); }
  // Iterates by place.
  auto begin() const { return missing_.begin(); }
  auto end() const { return missing_.end(); }
  // Null: the server of this place is not missing.
  const MissingServer* Find(size_t place) const;
  // Returns the place that this server is about to take.
  std::optional<size_t> SucceededBy(uint32_t server) const;

  // `since` is the time of death. Empty: set by the next Look.
  void Add(size_t place, std::optional<absl::Duration> since);
  // Removes the place, because its server or a successor serves it again. REQUIRES:
  // contains(place), here and for all functions below that take a place.
  MissingServer Take(size_t place);
  void Clear() { missing_.clear(); }

  // ---- The successor ----

  // Notes that `successor` reads the journal.
  void Restore(size_t place, const JobServer& successor);
  // Notes that the backup takes over and begins a journal of that generation.
  void Promote(size_t place, const JobServer& stand_in, uint32_t generation);
  // The same for a server that lives and hands its place over.
  void Relieve(size_t place, const JobServer& stand_in, uint32_t generation);
  // Whether it has waited long enough to ask another server, and none has been asked.
  bool MayAsk(size_t place) const;
  // Notes that `restorer`, which serves another place, was ordered to start a stand-in.
  void Ask(size_t place, const JobServer& restorer, uint32_t order);
  // Return the place whose stand-in has not come yet, by its order or by the server that
  // was told to start it.
  std::optional<size_t> OrderedBy(uint32_t order) const;
  std::optional<size_t> AwaitedOn(uint32_t restorer) const;

  // ---- Failures ----

  // The stand-in does not come. Another server may be asked.
  void ForgetOrder(size_t place);
  void ForgetOrdersOf(uint32_t restorer);
  // The successor could not restore it. Another process may try.
  void Fail(size_t place, const std::string& why);
  // The same, and starts the waiting time again: the place now waits for its journal.
  void FailAndWaitAnew(size_t place, const std::string& why);

  // ---- Time ----

  struct Verdict {
    std::optional<size_t> late = {};  // a place that has waited too long
    absl::Duration limit = {};        // the time that was exceeded
    bool says = false;                // the wait is to be logged again
  };
  Verdict Look(absl::Duration now);
  // Returns "waits for server 1 (b), 3 s of 60 s and server 2 (c), …". `places` are the
  // job's.
  std::string Text(absl::Duration now, const Places& places) const;

 private:
  const absl::Duration failure_timeout_;
  const absl::Duration patience_;
  std::map<size_t, MissingServer> missing_;  // by place
};

}  // namespace syncline
