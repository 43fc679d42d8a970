#include "server/coordinator/stall.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncline {
namespace {

constexpr size_t kNamesShown = 4;

const JobProgress::Member* Find(const JobProgress& progress, uint32_t rank) {
  const auto found =
      std::ranges::lower_bound(progress.members, rank, {}, &JobProgress::Member::rank);
  const bool is_there = found != progress.members.end() && found->rank == rank;
  return is_there ? &*found : nullptr;
}

// Number of failure timeouts for which servers are believed that data is on its way while
// no member reports any.
constexpr int kTimeoutsByServersWord = 30;
// Number of heartbeats after which a backup that received no byte stands still.
constexpr int kHeartbeatsOfABackup = 3;

std::string Seconds(absl::Duration duration) {
  return absl::StrCat(absl::ToInt64Seconds(duration), " s");
}

std::string Named(const StallServer& server) {
  return absl::StrCat("server ", server.server, " (", server.name, ")");
}

}  // namespace

void StallWatch::Said(uint32_t server, const Heartbeat& beat,
                      const JobProgress& progress) {
  Word& word = words_[server];
  if (word.bytes != beat.bytes) word.stood = absl::ZeroDuration();
  word.bytes = beat.bytes;
  word.silent = beat.silent;
  const bool crosses = word.progress.backup_bytes != progress.backup_bytes;
  if (crosses) word.backup_stood = absl::ZeroDuration();
  word.progress = progress;
}

void StallWatch::Lost(uint32_t server) {
  const auto lost = words_.extract(server);
  if (lost.empty()) return;
  const JobProgress& progress = lost.mapped().progress;
  past_completed_ += progress.completed;
  for (const JobProgress::Member& member : progress.members) {
    past_contributed_[member.rank] += member.contributed;
    // A server in its place counts from 0.
    Clock& clock = clocks_[member.rank];
    clock.moved -= std::min(clock.moved, member.moved);
    clock.stood = absl::ZeroDuration();
  }
}

uint64_t StallWatch::completed() const {
  uint64_t sum = past_completed_;
  for (const auto& [server, word] : words_) sum += word.progress.completed;
  return sum;
}

uint64_t StallWatch::contributed(uint32_t rank) const {
  const auto past = past_contributed_.find(rank);
  uint64_t sum = past == past_contributed_.end() ? 0 : past->second;
  for (const auto& [server, word] : words_) {
    const auto* member = Find(word.progress, rank);
    if (member != nullptr) sum += member->contributed;
  }
  return sum;
}

uint32_t StallWatch::trained() const {
  uint32_t sum = 0;
  for (const auto& [server, word] : words_) sum += word.progress.trained;
  return sum;
}

uint32_t StallWatch::Unseeded() const {
  uint32_t sum = 0;
  for (const auto& [server, word] : words_) sum += word.progress.unseeded;
  return sum;
}

// ---- Clocks ----

// Returns why others wait for this member; empty: they do not.
std::string StallWatch::WhyItRuns(const StallMember& member, Clock& clock) const {
  clock.owed_to.clear();
  clock.is_cut_off = false;
  uint64_t owed = 0;
  uint64_t waits = 0;
  uint64_t step = ~uint64_t{0};
  for (const auto& [server, word] : words_) {
    const auto* said = Find(word.progress, member.rank);
    if (said == nullptr) continue;
    waits += said->waits;
    if (said->owed == 0) continue;
    owed += said->owed;
    step = std::min(step, word.progress.step);
    clock.owed_to.push_back(server);
  }
  // Nobody reads it before.
  if (owed > 0 && clock.stood < timeouts_.failure_timeout) return "owes";
  const std::string since = Seconds(clock.stood);
  if (owed > 0) {
    const char* const state =
        member.in_barrier
            ? " and is in Barrier: do workers make different numbers of steps?"
        : member.waits ? " and reports that it waits: is it cut off from that server?"
                       : "";
    return absl::StrCat("owes step ", step, " in ", owed, " blocks to server ",
                        absl::StrJoin(clock.owed_to, ", "), " for ", since, state);
  }
  if (member.seeds && Unseeded() > 0 && somebody_waits_) {
    for (const auto& [server, word] : words_) {
      if (word.progress.unseeded > 0) clock.owed_to.push_back(server);
    }
    return absl::StrCat("must give ", Unseeded(),
                        " blocks their first values, and has given none for ", since);
  }
  if (member.in_barrier) return "";
  if (somebody_in_barrier_ && !member.waits) {
    return absl::StrCat("has done nothing for ", since, " while others are in Barrier");
  }
  if (member.waits && waits == 0) {
    clock.is_cut_off = true;
    return absl::StrCat(
        "reports that it waits, but no server has held anything of it for ", since,
        ": is its network cut, or that of a server that should answer?");
  }
  return "";
}

bool StallWatch::AdvanceMember(const StallMember& member, absl::Duration passed) {
  Clock& clock = clocks_[member.rank];
  uint64_t moved = 0;
  for (const auto& [server, word] : words_) {
    const auto* said = Find(word.progress, member.rank);
    if (said != nullptr) moved += said->moved;
  }
  const bool has_moved = moved > clock.moved || (member.seeds && seeding_moved_);
  clock.moved = std::max(clock.moved, moved);
  if (has_moved) clock.stood = absl::ZeroDuration();
  if (clock.runs && !has_moved) clock.stood += passed;
  clock.why = WhyItRuns(member, clock);
  clock.runs = !clock.why.empty();
  return has_moved;
}

void StallWatch::Advance(absl::Duration passed, const std::vector<StallMember>& members) {
  const auto waits = [](const StallMember& one) { return one.waits || one.in_barrier; };
  somebody_waits_ = std::ranges::any_of(members, waits);
  somebody_in_barrier_ = std::ranges::any_of(members, &StallMember::in_barrier);
  seeding_moved_ = Unseeded() < least_unseeded_ && !words_.empty();
  if (seeding_moved_) least_unseeded_ = Unseeded();
  for (auto& [server, word] : words_) word.stood += passed;

  bool a_member_moved = false;  // by its own report
  bool something_moved = false;
  bool somebody_owes = false;
  for (const StallMember& member : members) {
    // On a slow cable a block may be on its way for longer than the limit on a silent
    // member.
    something_moved = AdvanceMember(member, passed) || something_moved;
    Clock& clock = clocks_[member.rank];
    somebody_owes = somebody_owes || !clock.owed_to.empty();
    a_member_moved =
        a_member_moved || clock.step != member.step || clock.bytes != member.bytes;
    clock.step = member.step;
    clock.bytes = member.bytes;
  }
  const bool all_wait = !members.empty() && std::ranges::all_of(members, waits);
  something_moved = something_moved || a_member_moved;
  all_waited_for_ += passed;
  all_stood_for_ += passed;
  if (!all_wait || a_member_moved) all_waited_for_ = absl::ZeroDuration();
  if (!all_wait || something_moved) all_stood_for_ = absl::ZeroDuration();
  const bool undecided = std::ranges::any_of(
      words_, [](const auto& entry) { return entry.second.progress.undecided > 0; });
  // A single member may still be sending its blocks, and holds nobody up.
  if (something_moved) undecided_for_ = absl::ZeroDuration();
  if (undecided && all_wait && !somebody_owes) undecided_for_ += passed;
}

// ---- Verdicts ----

std::string StallWatch::FailureOfServers(const std::vector<StallMember>& members,
                                         const std::vector<StallServer>& servers) const {
  for (const StallServer& server : servers) {
    const auto word = words_.find(server.server);
    if (word == words_.end() || word->second.silent < timeouts_.no_progress) continue;
    return absl::StrCat(
        Named(server),
        " sends heartbeats, but one of its engine threads has not answered for ",
        Seconds(word->second.silent));
  }
  if (undecided_for_ >= timeouts_.no_progress) {
    return absl::StrCat("a step has waited for its decision for ",
                        Seconds(undecided_for_),
                        ": not all blocks have reported their figures");
  }
  if (all_stood_for_ >= timeouts_.no_progress + timeouts_.failure_timeout ||
      all_waited_for_ >= kTimeoutsByServersWord * timeouts_.failure_timeout) {
    return FailureOfAll(members, servers);
  }
  return "";
}

bool StallWatch::HearsNobody(uint32_t server) const {
  return words_.at(server).stood >= timeouts_.no_progress / 2;
}

// Returns the one server at which all members whose clocks run lack something, if that
// server plausibly hears nobody: all members are among them, or no byte reached it for as
// long. A member that is cut off lacks something at every server, so the other members
// must name it.
std::optional<uint32_t> StallWatch::ServerToBlame(
    const std::vector<StallMember>& members) const {
  if (words_.size() < 2) return std::nullopt;
  std::vector<uint32_t> lacking;
  bool is_named = false;
  size_t owing = 0;
  for (const StallMember& member : members) {
    const Clock& clock = clocks_.at(member.rank);
    if (!clock.runs) continue;
    // A member that moved recently shows that the server hears.
    if (clock.stood < timeouts_.no_progress / 2) return std::nullopt;
    ++owing;
    if (clock.is_cut_off) continue;
    if (!is_named) lacking = clock.owed_to;
    is_named = true;
    std::erase_if(lacking, [&clock](uint32_t server) {
      return std::ranges::count(clock.owed_to, server) == 0;
    });
  }
  if (lacking.size() != 1) return std::nullopt;
  const uint32_t server = lacking.front();
  if (owing == members.size() || HearsNobody(server)) return server;
  return std::nullopt;
}

std::string StallWatch::FailureOfAll(const std::vector<StallMember>& members,
                                     const std::vector<StallServer>& servers) const {
  std::vector<std::string> parts;
  for (const StallMember& member : members) {
    const Clock& clock = clocks_.at(member.rank);
    if (!clock.runs || parts.size() >= kNamesShown) continue;
    parts.push_back(absl::StrCat("rank ", member.rank, " ", clock.why));
  }
  uint64_t lowest = ~uint64_t{0};
  uint64_t highest = 0;
  for (const StallServer& server : servers) {
    const auto word = words_.find(server.server);
    if (word == words_.end()) {
      parts.push_back(absl::StrCat(Named(server), " has never reported what it holds"));
      continue;
    }
    if (word->second.progress.trained == 0) continue;
    lowest = std::min(lowest, word->second.progress.step);
    highest = std::max(highest, word->second.progress.step);
  }
  for (const StallServer& server : servers) {
    const auto word = words_.find(server.server);
    if (lowest >= highest || word == words_.end()) break;
    if (word->second.progress.step != lowest) continue;
    parts.push_back(absl::StrCat(Named(server), " is still at step ", lowest,
                                 ": is its data network cut?"));
  }
  return absl::StrCat("all members wait and nothing moves", parts.empty() ? "" : ": ",
                      absl::StrJoin(parts, "; "));
}

void StallWatch::Describe(const std::vector<StallMember>& members) {
  held_up_.clear();
  absl::Duration longest = timeouts_.failure_timeout;
  for (const StallMember& member : members) {
    const Clock& clock = clocks_.at(member.rank);
    if (!clock.runs || clock.stood < longest) continue;
    longest = clock.stood;
    held_up_ = absl::StrCat("held up: rank ", member.rank, " ", clock.why);
  }
}

StallVerdict StallWatch::Look(absl::Duration now, const std::vector<StallMember>& members,
                              const std::vector<StallServer>& servers) {
  // Time in which nobody looked counts against no member, because messages of that time
  // may not have been read yet.
  const absl::Duration passed =
      std::min(now - looked_at_.value_or(now), timeouts_.heartbeat_interval);
  looked_at_ = now;
  for (auto& [server, word] : words_) word.backup_stood += passed;
  backups_move_ = std::ranges::any_of(words_, [this](const auto& entry) {
    return entry.second.backup_stood <=
           kHeartbeatsOfABackup * timeouts_.heartbeat_interval;
  });
  Advance(backups_move_ ? absl::ZeroDuration() : passed, members);
  Describe(members);
  StallVerdict verdict{.failure = FailureOfServers(members, servers)};
  if (!verdict.failure.empty()) return verdict;
  for (const StallMember& member : members) {
    const Clock& clock = clocks_.at(member.rank);
    if (!clock.runs || clock.stood < timeouts_.no_progress) continue;
    verdict.drops.push_back({member.rank, clock.why});
  }
  if (verdict.drops.empty()) return verdict;
  if (const auto blamed = ServerToBlame(members)) {
    const auto server = std::ranges::find(servers, *blamed, &StallServer::server);
    if (server != servers.end()) {
      return {.failure = absl::StrCat(
                  Named(*server), " lacks contributions that other servers have: rank ",
                  verdict.drops.front().rank, " ", verdict.drops.front().reason,
                  "; is the data network of that server cut?")};
    }
  }
  if (verdict.drops.size() < members.size()) return verdict;
  return {.failure = FailureOfAll(members, servers)};
}

}  // namespace syncline
