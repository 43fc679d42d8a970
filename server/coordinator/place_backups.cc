#include "server/coordinator/place_backups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/limits.h"

namespace syncline {
namespace {

// Those that follow each other more quickly wait longer and longer.
constexpr int kRestsAfterATry = 64;  // failure timeouts
constexpr int kMaxDoublings = 6;

void Remember(uint32_t server, std::vector<uint32_t>& failed) {
  std::erase(failed, server);
  failed.push_back(server);
  if (failed.size() > kMaxServers) failed.erase(failed.begin());
}

}  // namespace

void PlaceBackups::AddLost(const std::string& why) {
  backups_.push_back({.lost = why.empty() ? "the coordinator was restarted" : why});
}

bool PlaceBackups::CanTakeOver(size_t place) const {
  return place < backups_.size() && backups_[place].present.is_ready &&
         backups_[place].IsThere();
}

bool PlaceBackups::AreAllThere() const {
  return std::ranges::all_of(backups_, &PlaceBackup::IsThere);
}

bool PlaceBackups::IsAnyBeingMade() const {
  return std::ranges::any_of(backups_, &PlaceBackup::is_being_made);
}

bool PlaceBackups::AreAllReady() const {
  return std::ranges::all_of(backups_, [](const PlaceBackup& backup) {
    return backup.present.is_ready || !backup.IsThere();
  });
}

BackupView PlaceBackups::View(size_t place, uint32_t server) const {
  const PlaceBackup& backup = backups_[place];
  BackupView view = {.server = server, .lost = backup.lost};
  if (backup.IsThere()) view.holder = NameOf(backup.present.holder);
  if (backup.is_being_made) {
    view.next = absl::StrCat("a new one is being made with ", NameOf(backup.next.holder));
  } else {
    view.next = backup.why_none;
  }
  return view;
}

bool PlaceBackups::IsWith(size_t place, const std::string& holder) const {
  const PlaceBackup& backup = backups_[place];
  return (backup.IsThere() && backup.present.holder.name == holder) ||
         (backup.is_being_made && backup.next.holder.name == holder);
}

// ---- How one is made ----

void PlaceBackups::Ask(size_t place, const JobServer& holder, uint32_t order) {
  backups_[place].latest() = {.holder = holder, .order = order};
}

std::optional<size_t> PlaceBackups::OrderedBy(uint32_t order) const {
  for (size_t place = 0; place < backups_.size(); ++place) {
    const PlaceBackup& backup = backups_[place];
    const HeldBackup& latest = backup.latest();
    if (latest.order == order && !latest.stand_in && backup.IsWanted()) return place;
  }
  return std::nullopt;
}

std::optional<size_t> PlaceBackups::AwaitedOn(uint32_t holder) const {
  for (size_t place = 0; place < backups_.size(); ++place) {
    const PlaceBackup& backup = backups_[place];
    const bool is_awaited = backup.is_being_made && !backup.next.stand_in;
    if (is_awaited && backup.next.holder.server == holder) return place;
  }
  return std::nullopt;
}

void PlaceBackups::Come(size_t place, JobServer stand_in, const BackupPair& pair) {
  HeldBackup& latest = backups_[place].latest();
  latest.stand_in = std::move(stand_in);
  latest.stand_in->host = latest.holder.name;
  latest.pair = pair;
}

std::optional<size_t> PlaceBackups::HeldBy(uint32_t stand_in) const {
  for (size_t place = 0; place < backups_.size(); ++place) {
    const auto& one = backups_[place].present.stand_in;
    if ((one && one->server == stand_in) || IsNext(place, stand_in)) return place;
  }
  return std::nullopt;
}

bool PlaceBackups::IsNext(size_t place, uint32_t stand_in) const {
  const PlaceBackup& backup = backups_[place];
  const auto& one = backup.next.stand_in;
  return backup.is_being_made && one && one->server == stand_in;
}

bool PlaceBackups::SetReady(size_t place) {
  PlaceBackup& backup = backups_[place];
  return backup.IsWanted() && !std::exchange(backup.latest().is_ready, true);
}

// ---- How one is lost ----

bool PlaceBackups::Lose(size_t place, const std::string& why) {
  if (!backups_[place].IsThere()) return false;
  backups_[place].lost = why;
  return true;
}

bool PlaceBackups::GiveUp(size_t place) {
  return std::exchange(backups_[place].is_being_made, false);
}

bool PlaceBackups::GiveUpFailed(size_t place) {
  if (!GiveUp(place)) return false;
  backups_[place].has_failed = true;
  Remember(backups_[place].next.holder.server, backups_[place].copy_failed_on);
  return true;
}

void PlaceBackups::NoteMoveFailed(size_t place) {
  Remember(backups_[place].present.holder.server, backups_[place].move_failed_to);
}

void PlaceBackups::UseUp(size_t place) { backups_[place].lost = "it has taken over"; }

void PlaceBackups::NoteSuccessor(size_t place) {
  backups_[place].present.stand_in.reset();
  backups_[place].tries = 0;
}

std::optional<JobServer> PlaceBackups::TakeStandIn(size_t place) {
  return std::exchange(backups_[place].present.stand_in, std::nullopt);
}

std::optional<JobServer> PlaceBackups::TakeNext(size_t place) {
  return std::exchange(backups_[place].next.stand_in, std::nullopt);
}

// ---- A new one ----

bool PlaceBackups::MayTry(size_t place, absl::Duration now) const {
  const PlaceBackup& backup = backups_[place];
  if (backup.tries == 0 || (backup.IsThere() && !backup.has_failed)) return true;
  const int doublings = std::min(backup.tries - 1, kMaxDoublings);
  return now >= backup.sought_at + (1 << doublings) * failure_timeout_;
}

void PlaceBackups::NoteWhyNone(size_t place, const std::string& why) {
  backups_[place].why_none = why;
}

void PlaceBackups::BeginNew(size_t place, absl::Duration now) {
  PlaceBackup& backup = backups_[place];
  const absl::Duration rest = kRestsAfterATry * failure_timeout_;
  backup.tries = now - backup.sought_at > rest ? 1 : backup.tries + 1;
  backup.sought_at = now;
  backup.is_being_made = true;
  backup.why_none.clear();
}

bool PlaceBackups::IsLate(size_t place, absl::Duration now) const {
  const PlaceBackup& backup = backups_[place];
  const bool is_awaited = backup.is_being_made && !backup.next.stand_in;
  return is_awaited && now - backup.sought_at >= patience_;
}

bool PlaceBackups::Complete(size_t place, uint64_t session_key) {
  PlaceBackup& backup = backups_[place];
  const HeldBackup& next = backup.next;
  const bool is_it = next.is_ready && next.pair.session_key == session_key;
  if (!is_it || !GiveUp(place)) return false;
  backup.has_failed = false;
  backup.present = std::exchange(backup.next, {});
  backup.lost.clear();
  std::erase(backup.copy_failed_on, backup.present.holder.server);
  return true;
}

// ---- Who holds them ----

bool MayHold(const JobServer& server, const CopyNeed& copy) {
  const ServerMemory& memory = server.memory;
  const bool has_room =
      memory.budget_bytes == 0 || memory.placed_bytes + copy.bytes <= memory.budget_bytes;
  return has_room && server.name != copy.host;
}

JobServer* FindHolder(std::vector<JobServer>& servers, const CopyNeed& copy) {
  // 0: not avoided. Otherwise the server on which a copy failed last comes last.
  const auto rank = [&](const JobServer& one) {
    const auto found = std::ranges::find(copy.avoided, one.server);
    return found == copy.avoided.end() ? 0 : found - copy.avoided.begin() + 1;
  };
  const auto cost = [&](const JobServer& one) {
    return std::pair(rank(one), one.memory.placed_bytes);
  };
  JobServer* best = nullptr;
  for (JobServer& one : servers) {
    if (!MayHold(one, copy)) continue;
    if (best == nullptr || cost(one) < cost(*best)) best = &one;
  }
  return best;
}

}  // namespace syncline
