// Which journal of a place counts, in jobs with journals and backups (ADR 38). One that
// misses a step that anybody was told of never does: its end is stored before its server goes
// on without it, and from a take-over on it is another server's. Each beginning has a
// generation of its own, by a number that is drawn once.

#include "absl/strings/str_cat.h"
#include "server/coordinator/job.h"

namespace syncline {

bool Job::CanWaitFor(size_t place) const {
  if (!CanWaitForServers()) return false;
  if (!journals_.IsFenced()) return true;
  // In the first epoch there is nothing in it yet.
  const bool has_begun = !committed_.empty() || homecoming_;
  return has_begun && journals_.Counts(place);
}

bool Job::HasJournalOf(const JobServer& server, size_t place) const {
  return journals_.IsAmong(server.journals, place, places_.ShardsOf(place));
}

// ---- What servers say ----

void Job::OnJournalLost(uint32_t server, const std::string& reason,
                        CoordinatorOutputs& outputs) {
  const std::optional<size_t> place = places_.Of(server);
  if (phase_ == Phase::kOver || !journals_.IsFenced() || !place || !IsHere(*place))
    return;
  if (journals_.Lose(*place, reason)) {
    journals_.BeginAnew(*place, counters_.next_incarnation++);
    outputs.push_back(PersistState{});
    Store(outputs);
    const std::string what =
        absl::StrCat("the journal of ", NameOf(places_[*place]), " has ended: ", reason);
    outputs.push_back(
        LogReason{absl::StrCat("job '", spec_.name, "': ", what,
                               "; it goes on without one until there is another"),
                  LogReason::Level::kWarning});
    Say({.kind = EventKind::kBackup, .what = what}, outputs);
  }
  outputs.push_back(ToMember{places_[*place].connection,
                             JournalGone{id_, journals_.GenerationOf(*place)}});
}

void Job::OnJournalWhole(uint32_t server, const JournalWhole& whole,
                         CoordinatorOutputs& outputs) {
  const std::optional<size_t> place = places_.Of(server);
  if (phase_ == Phase::kOver || !journals_.IsFenced() || !place) return;
  if (!journals_.SetWhole(*place, whole.generation)) return;
  Store(outputs);
  const std::string what =
      absl::StrCat(NameOf(places_[*place]), " has a whole journal again");
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what)});
  Say({.kind = EventKind::kBackup, .what = what}, outputs);
}

// ---- One that comes back ----

// Beside what it serves: in a node of its own.
void Job::AskToRestore(size_t place, const JobServer& holder,
                       CoordinatorOutputs& outputs) {
  HoldBackup order = NextOrder(place);
  order.restores = true;
  missing_.Ask(place, holder, order.order);
  outputs.push_back(PersistState{});
  outputs.push_back(ToMember{holder.connection, order});
}

void Job::OnSuccessorLost(size_t place, CoordinatorOutputs& outputs) {
  if (!missing_.Find(place)->by_backup) {
    return missing_.FailAndWaitAnew(place, "it died while it read the journal");
  }
  const std::string why =
      absl::StrCat(NameOf(backups_[place].holder), ", which held it, is lost");
  if (CanWaitFor(place)) return GoBackToJournal(place, why, outputs);
  Fail(absl::StrCat(NameOf(places_[place]),
                    " is lost, and so is its backup in the memory of ",
                    NameOf(backups_[place].holder), HowToGoOn(place)),
       outputs);
}

// Its stand-in has told nobody of a step: the journal has all.
void Job::GoBackToJournal(size_t place, const std::string& why,
                          CoordinatorOutputs& outputs) {
  if (backups_.Lose(place, why)) {
    Store(outputs);
    DropStandIn(place, "the backup is lost", outputs);
  }
  missing_.FailAndWaitAnew(place, absl::StrCat("its backup is lost, too: ", why));
  WaitForJournal(place, outputs);
}

void Job::SayWhatIsStale(uint32_t server, const ServerHello& hello,
                         CoordinatorOutputs& outputs) const {
  if (phase_ != Phase::kRunning || !journals_.IsFenced()) return;
  if (hello.identity) return;  // it serves what it has
  for (size_t place = 0; place < places_.size(); ++place) {
    if (!journals_.HasEarlier(hello.journals, place, places_.ShardsOf(place))) continue;
    const std::string named = absl::StrCat("server ", server, " (", hello.name, ")");
    const std::string what = absl::StrCat(
        named, " has an earlier journal of the place of ", NameOf(places_[place]),
        ", which went on without it: it is not used, and ", named, " is a spare");
    outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what),
                                LogReason::Level::kWarning});
    Say({.kind = EventKind::kServer, .what = what}, outputs);
  }
}

}  // namespace syncline
