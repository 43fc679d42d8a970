#include "server/coordinator/missing_servers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncline {
namespace {

// Reading many records takes longer than starting a process.
constexpr int kPatienceToRestore = 4;

}  // namespace

const MissingServer* MissingServers::Find(size_t place) const {
  const auto found = missing_.find(place);
  return found == missing_.end() ? nullptr : &found->second;
}

std::optional<size_t> MissingServers::SucceededBy(uint32_t server) const {
  for (const auto& [place, missing] : missing_) {
    if (missing.successor && missing.successor->server == server) return place;
  }
  return std::nullopt;
}

void MissingServers::Add(size_t place, std::optional<absl::Duration> since) {
  missing_[place] = {.since = since};
}

MissingServer MissingServers::Take(size_t place) {
  return missing_.extract(place).mapped();
}

// ---- Who restores it ----

void MissingServers::Restore(size_t place, const JobServer& successor) {
  missing_.at(place).successor = successor;
}

void MissingServers::Promote(size_t place, const JobServer& stand_in,
                             uint32_t generation) {
  MissingServer& missing = missing_.at(place);
  missing.successor = stand_in;
  missing.by_backup = true;
  missing.generation = generation;
}

void MissingServers::Relieve(size_t place, const JobServer& stand_in,
                             uint32_t generation) {
  Add(place, std::nullopt);
  Promote(place, stand_in, generation);
  missing_.at(place).lives_on = true;
}

bool MissingServers::MayAsk(size_t place) const {
  const MissingServer& missing = missing_.at(place);
  return missing.order == 0 && missing.say_after >= failure_timeout_;
}

void MissingServers::Ask(size_t place, const JobServer& restorer, uint32_t order) {
  MissingServer& missing = missing_.at(place);
  missing.order = order;
  missing.restorer = restorer.server;
  missing.host = restorer.name;
}

std::optional<size_t> MissingServers::OrderedBy(uint32_t order) const {
  for (const auto& [place, missing] : missing_) {
    if (order > 0 && missing.order == order && !missing.successor) return place;
  }
  return std::nullopt;
}

std::optional<size_t> MissingServers::AwaitedOn(uint32_t restorer) const {
  for (const auto& [place, missing] : missing_) {
    const bool is_awaited = missing.order > 0 && !missing.successor;
    if (is_awaited && missing.restorer == restorer) return place;
  }
  return std::nullopt;
}

// ---- Who does not ----

void MissingServers::ForgetOrder(size_t place) { missing_.at(place).order = 0; }

void MissingServers::ForgetOrdersOf(uint32_t restorer) {
  while (const auto place = AwaitedOn(restorer)) ForgetOrder(*place);
}

void MissingServers::Fail(size_t place, const std::string& why) {
  MissingServer& missing = missing_.at(place);
  missing.order = 0;
  missing.successor.reset();
  missing.error = why;
}

void MissingServers::FailAndWaitAnew(size_t place, const std::string& why) {
  Fail(place, why);
  MissingServer& missing = missing_.at(place);
  missing.by_backup = false;
  missing.since.reset();
  missing.say_after = {};
}

// ---- Time ----

MissingServers::Verdict MissingServers::Look(absl::Duration now) {
  Verdict verdict;
  for (auto& [place, missing] : missing_) {
    if (!missing.since) missing.since = now;
    const absl::Duration waited = now - *missing.since;
    const absl::Duration limit = patience_ * (missing.successor ? kPatienceToRestore : 1);
    if (waited >= limit) return {.late = place, .limit = limit};
    if (waited < missing.say_after) continue;
    verdict.says = true;
    if (!missing.successor) missing.order = 0;  // its stand-in did not come in time
    missing.say_after = std::max(2 * missing.say_after, failure_timeout_ / 2);
  }
  return verdict;
}

std::string MissingServers::Text(absl::Duration now, const Places& places) const {
  std::vector<std::string> all;
  for (const auto& [place, missing] : missing_) {
    std::string one =
        absl::StrCat(NameOf(places[place]), ", ",
                     absl::ToInt64Seconds(now - missing.since.value_or(now)), " s of ",
                     absl::ToInt64Seconds(patience_), " s");
    if (missing.successor) {
      absl::StrAppend(&one, "; ", NameOf(*missing.successor), " is reading its ",
                      missing.by_backup ? "backup" : "journal");
    } else if (!missing.error.empty()) {
      absl::StrAppend(&one, " (", missing.error, ")");
    }
    all.push_back(std::move(one));
  }
  return absl::StrCat("waits for ", absl::StrJoin(all, " and "));
}

}  // namespace syncline
