// The backups of a job's places in the memory of other servers (ADR 29): who holds which,
// which is complete, and when a new one may be made of a place that has lost its own. A
// backup that is lost never counts again; a new one counts once it has all.
//
//   backups.Begin(2);
//   backups.Ask(0, holder, order);       // which was told to start a stand-in
//   backups.Come(0, stand_in, pair);     // which has started
//   backups.SetReady(0);
//   backups.CanTakeOver(0);              // true, until Lose
//
// Thread safety: none; pure, but for what it remembers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/coordinator/backup.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/job_context.h"
#include "server/coordinator/views.h"

namespace syncline {

struct PlaceBackup {
  std::string lost = {};       // why there is none any more; it stays until there is
  bool is_being_made = false;  // a new one, as follows
  JobServer holder = {};
  uint32_t order = 0;
  std::optional<JobServer> stand_in = {};
  BackupPair pair = {};
  bool is_ready = false;  // its shards are there
  // When a new one was begun last, and how many in a row.
  absl::Duration sought_at = -absl::InfiniteDuration();
  int tries = 0;
  std::string why_none = {};  // of a place without: why none is being made, for people

  bool IsThere() const { return lost.empty(); }
  bool IsWanted() const { return IsThere() || is_being_made; }
};

class PlaceBackups {
 public:
  // By its timeouts and its patience.
  explicit PlaceBackups(const CoordinatorOptions& options)
      : failure_timeout_(options.timeouts.failure_timeout), patience_(options.patience) {}

  // The first ones of a job, each still to be asked for.
  void Begin(size_t places) { backups_.resize(places); }
  // Another place of a job that began under an earlier coordinator, which may say why it
  // had none; what it had is lost.
  void AddLost(const std::string& why);

  // Jobs without backups have none.
  bool empty() const { return backups_.empty(); }
  size_t size() const { return backups_.size(); }
  const PlaceBackup& operator[](size_t place) const { return backups_[place]; }
  // It is complete.
  bool CanTakeOver(size_t place) const;
  bool AreAllThere() const;
  // None of the first ones is still being made.
  bool AreAllReady() const;
  // It has it, or is given it.
  bool IsWith(size_t place, const std::string& holder) const {
    return backups_[place].IsWanted() && backups_[place].holder.name == holder;
  }
  BackupView View(size_t place, uint32_t server) const;

  // ---- How one is made ----

  void Ask(size_t place, const JobServer& holder, uint32_t order);
  // The place whose stand-in has still to come, by that order.
  std::optional<size_t> OrderedBy(uint32_t order) const;
  // Likewise, of new ones by their holder.
  std::optional<size_t> AwaitedOn(uint32_t holder) const;
  void Come(size_t place, JobServer stand_in, const BackupPair& pair);
  // The place of which that server is the stand-in.
  std::optional<size_t> HeldBy(uint32_t stand_in) const;
  // False when it is not wanted any more, or said so before.
  bool SetReady(size_t place);

  // ---- How one is lost ----

  // False when it was lost before: that reason stays.
  bool Lose(size_t place, const std::string& why);
  // A new one that is being made. False when none is.
  bool GiveUp(size_t place);
  // Its stand-in serves the place now, or another server does: there is none any more.
  void UseUp(size_t place);
  // The place has another server.
  void NoteSuccessor(size_t place);
  // Which is to be told that it is none any more, if it has come.
  std::optional<JobServer> TakeStandIn(size_t place);

  // ---- A new one ----

  bool Lacks(size_t place) const { return !backups_[place].IsWanted(); }
  // The first is made at once; those that follow soon wait longer and longer.
  bool MayTry(size_t place, absl::Duration now) const;
  void NoteWhyNone(size_t place, const std::string& why);
  void BeginNew(size_t place, absl::Duration now);
  // Its stand-in should have come by now.
  bool IsLate(size_t place, absl::Duration now) const;
  // It has all, by its key. False when that is no one that is being made.
  bool Complete(size_t place, uint64_t session_key);

 private:
  const absl::Duration failure_timeout_;
  const absl::Duration patience_;
  std::vector<PlaceBackup> backups_;
};

// What a copy of a place takes, and the host that serves the place: no copy is held there.
struct CopyNeed {
  uint64_t bytes = 0;
  std::string host = {};
};
bool MayHold(const JobServer& server, const CopyNeed& copy);
// Of those that may the one that has the fewest bytes; null: none may.
JobServer* FindHolder(std::vector<JobServer>& servers, const CopyNeed& copy);

}  // namespace syncline
