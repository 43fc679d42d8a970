// Which journal of a place counts, in jobs with journals and backups (ADR 38). A journal
// that lacks a step that anybody was told of never counts: its end is stored before its
// server continues without it, and after a take-over the journal is the new server's.
// Each journal has its own generation, a number that is never used twice.

#include "absl/strings/str_cat.h"
#include "server/coordinator/job.h"

namespace syncline {

bool Job::CanWaitFor(size_t place) const {
  if (!CanWaitForServers()) return false;
  if (!journals_.IsFenced()) return true;
  // Before the first epoch the journal contains nothing.
  return HasBegun() && journals_.Counts(place);
}

bool Job::HasJournalOf(const JobServer& server, size_t place) const {
  return journals_.IsAmong(server.journals, place, places_.ShardsOf(place));
}

// ---- What servers say ----

void Job::OnJournalLost(uint32_t server, const std::string& reason) {
  const std::optional<size_t> place = places_.Of(server);
  if (phase_ == Phase::kOver || !journals_.IsFenced() || !place || !IsHere(*place))
    return;
  if (journals_.Lose(*place, reason)) {
    journals_.BeginAnew(*place, counters_.next_incarnation++);
    outbox_.Persist();
    Store();
    const std::string what =
        absl::StrCat("the journal of ", NameOf(places_[*place]), " has ended: ", reason);
    Log(absl::StrCat(what, "; the server goes on without one until another is complete"),
        LogReason::Level::kWarning);
    Say({.kind = EventKind::kBackup, .what = what});
  }
  outbox_.Send(places_[*place].connection,
               JournalGone{id_, journals_.GenerationOf(*place)});
}

void Job::OnJournalWhole(uint32_t server, const JournalWhole& whole) {
  const std::optional<size_t> place = places_.Of(server);
  if (phase_ == Phase::kOver || !journals_.IsFenced() || !place) return;
  if (!journals_.SetWhole(*place, whole.generation)) return;
  Store();
  const std::string what =
      absl::StrCat(NameOf(places_[*place]), " has a complete journal again");
  Report(EventKind::kBackup, what);
}

// ---- One that comes back ----

// Asks a server to restore the place in a node of its own, beside what it serves.
void Job::AskToRestore(size_t place, const JobServer& holder) {
  HoldBackup order = NextOrder(place);
  order.restores = true;
  missing_.Ask(place, holder, order.order);
  outbox_.Persist();
  outbox_.Send(holder.connection, order);
}

void Job::OnSuccessorLost(size_t place) {
  if (!missing_.Find(place)->by_backup) {
    return missing_.FailAndWaitAnew(place, "it died while it was reading the journal");
  }
  const std::string why =
      absl::StrCat(NameOf(backups_[place].present.holder), ", which held it, is lost");
  if (CanWaitFor(place)) return GoBackToJournal(place, why);
  Fail(absl::StrCat(NameOf(places_[place]),
                    " is lost, and so is its backup in the memory of ",
                    NameOf(backups_[place].present.holder), HowToGoOn(place)));
}

// The stand-in has told nobody of a step, so the journal has every step that counts.
void Job::GoBackToJournal(size_t place, const std::string& why) {
  if (backups_.Lose(place, why)) {
    Store();
    DropStandIn(backups_.TakeStandIn(place), "the backup is lost");
  }
  missing_.FailAndWaitAnew(place, absl::StrCat("its backup is lost, too: ", why));
  WaitForJournal(place);
}

void Job::SayWhatIsStale(uint32_t server, const ServerHello& hello) const {
  if (phase_ != Phase::kRunning || !journals_.IsFenced()) return;
  if (hello.identity) return;  // it serves what its journal has
  for (size_t place = 0; place < places_.size(); ++place) {
    if (!journals_.HasEarlier(hello.journals, place, places_.ShardsOf(place))) continue;
    const std::string named = absl::StrCat("server ", server, " (", hello.name, ")");
    const std::string what = absl::StrCat(
        named, " has an earlier journal of the place of ", NameOf(places_[place]),
        ", which went on without it; the journal is not used, and ", named,
        " is a spare server");
    Report(EventKind::kServer, what, LogReason::Level::kWarning);
  }
}

}  // namespace syncline
