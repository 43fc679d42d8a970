#include "server/coordinator/place_backups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

// Those that follow each other more quickly wait longer and longer.
constexpr int kRestsAfterATry = 64;  // failure timeouts
constexpr int kMostDoublings = 6;

}  // namespace

void PlaceBackups::AddLost(const std::string& why) {
  backups_.push_back({.lost = why.empty() ? "the coordinator was started anew" : why});
}

bool PlaceBackups::CanTakeOver(size_t place) const {
  return place < backups_.size() && backups_[place].is_ready && backups_[place].IsThere();
}

bool PlaceBackups::AreAllThere() const {
  return std::ranges::all_of(backups_, &PlaceBackup::IsThere);
}

bool PlaceBackups::AreAllReady() const {
  return std::ranges::all_of(backups_, [](const PlaceBackup& backup) {
    return backup.is_ready || !backup.IsThere();
  });
}

BackupView PlaceBackups::View(size_t place, uint32_t server) const {
  const PlaceBackup& backup = backups_[place];
  BackupView view = {.server = server, .lost = backup.lost};
  if (backup.IsThere()) {
    view.holder = NameOf(backup.holder);
  } else if (backup.is_being_made) {
    view.next = absl::StrCat("a new one is being made with ", NameOf(backup.holder));
  } else {
    view.next = backup.why_none;
  }
  return view;
}

// ---- How one is made ----

void PlaceBackups::Ask(size_t place, const JobServer& holder, uint32_t order) {
  PlaceBackup& backup = backups_[place];
  backup.holder = holder;
  backup.order = order;
  backup.stand_in.reset();
  backup.is_ready = false;
}

std::optional<size_t> PlaceBackups::OrderedBy(uint32_t order) const {
  for (size_t place = 0; place < backups_.size(); ++place) {
    const PlaceBackup& backup = backups_[place];
    if (backup.order == order && !backup.stand_in && backup.IsWanted()) return place;
  }
  return std::nullopt;
}

std::optional<size_t> PlaceBackups::AwaitedOn(uint32_t holder) const {
  for (size_t place = 0; place < backups_.size(); ++place) {
    const PlaceBackup& backup = backups_[place];
    const bool is_awaited = backup.is_being_made && !backup.stand_in;
    if (is_awaited && backup.holder.server == holder) return place;
  }
  return std::nullopt;
}

void PlaceBackups::Come(size_t place, JobServer stand_in, const BackupPair& pair) {
  PlaceBackup& backup = backups_[place];
  backup.stand_in = std::move(stand_in);
  backup.stand_in->host = backup.holder.name;
  backup.pair = pair;
}

std::optional<size_t> PlaceBackups::HeldBy(uint32_t stand_in) const {
  for (size_t place = 0; place < backups_.size(); ++place) {
    const auto& one = backups_[place].stand_in;
    if (one && one->server == stand_in) return place;
  }
  return std::nullopt;
}

bool PlaceBackups::SetReady(size_t place) {
  PlaceBackup& backup = backups_[place];
  return backup.IsWanted() && !std::exchange(backup.is_ready, true);
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

void PlaceBackups::UseUp(size_t place) {
  backups_[place].lost = "it was used up at a take-over";
}

void PlaceBackups::NoteSuccessor(size_t place) {
  backups_[place].stand_in.reset();
  backups_[place].tries = 0;
}

std::optional<JobServer> PlaceBackups::TakeStandIn(size_t place) {
  return std::exchange(backups_[place].stand_in, std::nullopt);
}

// ---- A new one ----

bool PlaceBackups::MayTry(size_t place, absl::Duration now) const {
  const PlaceBackup& backup = backups_[place];
  if (backup.tries == 0) return true;
  const int doublings = std::min(backup.tries - 1, kMostDoublings);
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
}

bool PlaceBackups::IsLate(size_t place, absl::Duration now) const {
  const PlaceBackup& backup = backups_[place];
  return backup.is_being_made && !backup.stand_in && now - backup.sought_at >= patience_;
}

bool PlaceBackups::Complete(size_t place, uint64_t session_key) {
  PlaceBackup& backup = backups_[place];
  const bool is_it = backup.is_ready && backup.pair.session_key == session_key;
  if (!is_it || !GiveUp(place)) return false;
  backup.lost.clear();
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
  JobServer* best = nullptr;
  for (JobServer& one : servers) {
    const bool is_less =
        best == nullptr || one.memory.placed_bytes < best->memory.placed_bytes;
    if (is_less && MayHold(one, copy)) best = &one;
  }
  return best;
}

}  // namespace syncline
