// Moves a share of a job away from a server that lives (ADR 44). A move is a take-over
// for which no server has to die. The stand-in that holds the backup is told to take
// over. From then on it acknowledges nothing, so that the server can tell nobody of a
// further step. Once the stand-in has replayed its records, it serves the place from the
// next epoch on. When the workers know this, the server is told to forget the job. Before
// the stand-in has replayed its records, the move can be given up: the stand-in has told
// nobody of a step, and the server continues without a backup.
//
// No epoch changes during a move, so the server never hears of the epoch in which its
// successor serves, and its late answers are known to be old.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/coordinator/job.h"

namespace syncline {
namespace {

// Enough for a backup of many GB to be copied to the new server first.
constexpr absl::Duration kAllowedFor = absl::Minutes(30);

}  // namespace

bool Job::MayMove() const {
  const bool is_calm = phase_ == Phase::kRunning && !homecoming_ && !saves_last_ &&
                       missing_.empty() && !committed_.empty();
  const bool is_changing = change_ || hand_over_ || next_training_ || cut_wanted_ ||
                           places_.HasUntoldMoves() || !former_.empty();
  if (!is_calm || is_changing || backups_.empty()) return false;
  for (size_t place = 0; place < places_.size(); ++place) {
    if (!HasBackup(place) || backups_[place].is_being_made) return false;
    if (journals_.IsFenced() && !journals_.Counts(place)) return false;
    if (!cuts_.AwaitedOf(places_[place].server).empty()) return false;
  }
  return true;
}

std::optional<ShareMove> Job::FindMove(const std::vector<JobServer>& connected,
                                       absl::Duration now) const {
  std::vector<Share> shares;
  for (size_t place = 0; place < places_.size(); ++place) {
    if (!places_.placement()->serves[place]) continue;
    std::set<std::string> barred;
    for (const JobServer& one : connected) {
      if (!backups_.MayMoveTo(place, one.server)) barred.insert(one.name);
    }
    shares.push_back({.place = place,
                      .host = places_[place].host,
                      .holder = backups_[place].present.holder.name,
                      .may_copy = places_[place].feeds_two_backups,
                      .bytes = places_.BytesOf(place),
                      .barred = std::move(barred)});
  }
  std::vector<ShareHost> hosts;
  for (const JobServer& one : connected) {
    hosts.push_back({.name = one.name,
                     .memory = one.memory,
                     .is_steady = newcomers_.IsSteady(one, now)});
  }
  return NextMove(shares, hosts);
}

std::string Job::Standby(const std::vector<JobServer>& connected,
                         absl::Duration now) const {
  if (!MayMove()) return "";
  const std::optional<ShareMove> move = FindMove(connected, now);
  return move ? move->to : "";
}

void Job::AllowMove(absl::Duration now) { move_allowed_until_ = now + kAllowedFor; }

void Job::SpreadShares(const std::vector<JobServer>& connected, absl::Duration now) {
  const std::optional<ShareMove> move = FindMove(connected, now);
  if (!move) return;
  if (move->has_copy) return HandOver(move->place, now);
  if (!backups_.MayTry(move->place, now)) return;
  // The present backup counts until the new one is complete (OnBackedUp).
  const auto to = std::ranges::find(connected, move->to, &JobServer::name);
  Log(absl::StrCat("the place of ", NameOf(places_[move->place]), " is moving to ",
                   NameOf(*to), ", which gets a backup first"));
  backups_.BeginNew(move->place, now);
  newcomers_.Give(*to, now);
  AskForBackup(move->place, *to);
}

void Job::HandOver(size_t place, absl::Duration now) {
  const uint32_t generation = TellToTakeOver(place);
  hand_over_ = {.place = place, .generation = generation, .since = now};
  Log(absl::StrCat(NameOf(places_[place]), " hands its place over to ",
                   NameOf(*backups_[place].present.stand_in)));
}

void Job::AwaitHandOver(absl::Duration now) {
  const absl::Duration limit = options_.timeouts.failure_timeout;
  if (!hand_over_ || now - hand_over_->since < limit) return;
  LoseBackup(hand_over_->place,
             absl::StrCat("it did not take over within ", absl::FormatDuration(limit)));
}

void Job::FinishHandOver(uint64_t step) {
  if (IsBehindWorkers(hand_over_->place, step)) {
    return LoseBackup(hand_over_->place, absl::StrCat("it ends at step ", step));
  }
  const HandOverUnderWay done = *std::exchange(hand_over_, std::nullopt);
  former_.push_back(places_[done.place]);
  move_allowed_until_ = -absl::InfiniteDuration();
  ++moves_;
  TakeFrom(done.place, "gave up its place");
  missing_.Relieve(done.place, *backups_[done.place].present.stand_in, done.generation);
  Succeed(done.place, step);
}

void Job::LetFormerServersGo(const std::string& why) {
  for (const JobServer& server : std::exchange(former_, {})) {
    outbox_.Send(server.connection, DropJob{id_, why});
  }
}

}  // namespace syncline
