// The backups of a job's places in the memory of other servers (ADR 29): which server
// holds each, whether it is complete, and when a lost one may be replaced. A backup that
// is lost never counts again. A new one counts once it is complete; if it is to replace
// one that is there, that one counts until then (ADR 44).
//
//   backups.Begin(2);
//   backups.Ask(0, holder, order);    // `holder` was told to start a stand-in
//   backups.Come(0, stand_in, pair);  // the stand-in has started
//   backups.SetReady(0);
//   backups.CanTakeOver(0);           // true, until Lose
//
// Thread safety: none.
#pragma once

#include <algorithm>
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

// A backup and the stand-in that holds it.
struct HeldBackup {
  JobServer holder = {};
  uint32_t order = 0;
  std::optional<JobServer> stand_in = {};
  BackupPair pair = {};
  bool is_ready = false;  // the stand-in has created its shards
};
struct PlaceBackup {
  std::string lost = {};       // why it was lost; empty: it was not, or has been replaced
  HeldBackup present = {};     // counts, unless it is lost
  bool is_being_made = false;  // a new one
  HeldBackup next = {};        // the new one
  // When the last new one was begun, and the number of attempts in a row.
  absl::Duration sought_at = -absl::InfiniteDuration();
  int tries = 0;
  bool has_failed = false;    // the last new one, on its holder
  std::string why_none = {};  // why a new one that is sought is not made, for people
  // Numbers of the servers on which the last copy failed, and of those that did not take
  // the place over; the latest is last. A server that is started again has a new number,
  // and a new chance.
  std::vector<uint32_t> copy_failed_on = {};
  std::vector<uint32_t> move_failed_to = {};

  bool IsThere() const { return lost.empty(); }
  bool IsWanted() const { return IsThere() || is_being_made; }
  // The one that was ordered last.
  const HeldBackup& latest() const { return is_being_made ? next : present; }
  HeldBackup& latest() { return is_being_made ? next : present; }
};

class PlaceBackups {
 public:
  explicit PlaceBackups(const CoordinatorOptions& options)
      : failure_timeout_(options.timeouts.failure_timeout), patience_(options.patience) {}

  // A new job: none of its backups has been ordered yet.
  void Begin(size_t places) { backups_.resize(places); }
  // Adds a place of a job that began before the coordinator was restarted. Its backup is
  // lost, for the reason `why` or because of the restart.
  void AddLost(const std::string& why);

  // Whether the job has no backups.
  bool empty() const { return backups_.empty(); }
  size_t size() const { return backups_.size(); }
  const PlaceBackup& operator[](size_t place) const { return backups_[place]; }
  // Whether the place's backup is complete.
  bool CanTakeOver(size_t place) const;
  bool AreAllThere() const;
  bool IsAnyBeingMade() const;
  // Whether all backups that the job begins with have created their shards.
  bool AreAllReady() const;
  // Whether `holder` holds a backup of the place, or is about to.
  bool IsWith(size_t place, const std::string& holder) const;
  BackupView View(size_t place, uint32_t server) const;

  // ---- Making a backup ----

  void Ask(size_t place, const JobServer& holder, uint32_t order);
  // The place whose stand-in was ordered by `order` and has not come yet.
  std::optional<size_t> OrderedBy(uint32_t order) const;
  // The place whose new backup was ordered on `holder` and has not come yet.
  std::optional<size_t> AwaitedOn(uint32_t holder) const;
  void Come(size_t place, JobServer stand_in, const BackupPair& pair);
  // The place that this server is a stand-in of.
  std::optional<size_t> HeldBy(uint32_t stand_in) const;
  // Whether it holds the new backup.
  bool IsNext(size_t place, uint32_t stand_in) const;
  // The latest stand-in has created its shards. Returns false if it is no longer wanted, or was
  // ready before.
  bool SetReady(size_t place);

  // ---- Losing a backup ----

  // Returns false if it was lost before; the first reason stays.
  bool Lose(size_t place, const std::string& why);
  // Gives up a new one that is being made. Returns false if there is none.
  bool GiveUp(size_t place);
  // The same, and remembers that the copy failed on its holder.
  bool GiveUpFailed(size_t place);
  // Remembers that the stand-in, which lives on, did not take the place over.
  void NoteMoveFailed(size_t place);
  // The stand-in serves the place now, so the place has no backup any more.
  void UseUp(size_t place);
  // The place has another server.
  void NoteSuccessor(size_t place);
  // Removes and returns the stand-in of the present one, or of the new one, if it has
  // come. The caller tells it to stop.
  std::optional<JobServer> TakeStandIn(size_t place);
  std::optional<JobServer> TakeNext(size_t place);

  // ---- Replacing a backup ----

  bool Lacks(size_t place) const { return !backups_[place].IsWanted(); }
  // Whether a new one may be begun. The first one at once, and one to replace the present
  // one unless the last try failed. Others after growing pauses.
  bool MayTry(size_t place, absl::Duration now) const;
  void NoteWhyNone(size_t place, const std::string& why);
  void BeginNew(size_t place, absl::Duration now);
  // Whether the last copy to that server failed. It is the last choice for another one.
  bool CopyFailedOn(size_t place, uint32_t server) const {
    return std::ranges::count(backups_[place].copy_failed_on, server) > 0;
  }
  // Whether the place may move to that server: nothing has failed there.
  bool MayMoveTo(size_t place, uint32_t server) const {
    return !CopyFailedOn(place, server) &&
           std::ranges::count(backups_[place].move_failed_to, server) == 0;
  }
  // Whether the stand-in should have come by now.
  bool IsLate(size_t place, absl::Duration now) const;
  // The new backup with this key is complete, and replaces the present one. Returns false
  // if none with it is being made.
  bool Complete(size_t place, uint64_t session_key);

 private:
  const absl::Duration failure_timeout_;
  const absl::Duration patience_;
  std::vector<PlaceBackup> backups_;
};

// What a backup of a place needs: memory, and a process other than the one that serves
// it.
struct CopyNeed {
  uint64_t bytes = 0;
  std::string host = {};
  // Numbers of servers that are taken only if no other server may hold the copy, and then
  // the first of them that may.
  std::vector<uint32_t> avoided = {};
};
bool MayHold(const JobServer& server, const CopyNeed& copy);
// Returns the server that may hold the copy, is not avoided if another may hold it, and
// has the fewest bytes in use. Null: no server may hold it.
JobServer* FindHolder(std::vector<JobServer>& servers, const CopyNeed& copy);

}  // namespace syncline
