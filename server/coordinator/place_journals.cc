#include "server/coordinator/place_journals.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/checkpoint/manifest.h"

namespace syncline {

PlaceJournals::PlaceJournals(const JobSpec& spec)
    : folder_(FolderOf(spec.name)), is_fenced_(spec.IsJournaled() && spec.HasBackups()) {}

bool PlaceJournals::SetRun(const std::string& run) {
  if (!run_.empty() || run.empty()) return false;
  run_ = run;
  return true;
}

void PlaceJournals::Begin(size_t places) {
  if (is_fenced_) journals_.resize(places);
}

void PlaceJournals::Add(uint32_t generation, const std::string& lost) {
  if (is_fenced_) journals_.push_back({generation, lost});
}

uint32_t PlaceJournals::GenerationOf(size_t place) const {
  return place < journals_.size() ? journals_[place].generation : 0;
}

std::string PlaceJournals::WhyLost(size_t place) const {
  return place < journals_.size() ? journals_[place].lost : "";
}

std::string PlaceJournals::WhyNotWhole(size_t place) const {
  if (Counts(place)) return "";
  return absl::StrCat(", and it had no complete journal: ", WhyLost(place));
}

bool PlaceJournals::IsOfJob(const JournaledRun& run) const {
  return !run_.empty() && run.job == folder_ && run.run == run_;
}

bool PlaceJournals::IsAmong(const std::vector<JournaledRun>& journals, size_t place,
                            const std::set<uint32_t>& shards) const {
  const uint32_t generation = GenerationOf(place);
  const auto has = [generation](const JournaledRun& run, uint32_t shard) {
    const auto found = std::ranges::find(run.shards, shard);
    const auto index = static_cast<size_t>(found - run.shards.begin());
    return found != run.shards.end() && run.GenerationOf(index) == generation;
  };
  return std::ranges::any_of(journals, [&](const JournaledRun& run) {
    return IsOfJob(run) &&
           std::ranges::all_of(shards, [&](uint32_t shard) { return has(run, shard); });
  });
}

bool PlaceJournals::HasEarlier(const std::vector<JournaledRun>& journals, size_t place,
                               const std::set<uint32_t>& shards) const {
  const uint32_t generation = GenerationOf(place);
  return std::ranges::any_of(journals, [&](const JournaledRun& run) {
    if (!IsOfJob(run)) return false;
    for (size_t i = 0; i < run.shards.size(); ++i) {
      if (shards.contains(run.shards[i]) && run.GenerationOf(i) < generation) return true;
    }
    return false;
  });
}

// ---- Of places that are fenced ----

bool PlaceJournals::Lose(size_t place, const std::string& why) {
  return std::exchange(journals_[place].lost, why).empty();
}

void PlaceJournals::BeginAnew(size_t place, uint32_t generation) {
  journals_[place].generation = generation;
}

bool PlaceJournals::SetWhole(size_t place, uint32_t generation) {
  Journal& journal = journals_[place];
  if (journal.generation != generation || journal.lost.empty()) return false;
  journal.lost.clear();
  return true;
}

}  // namespace syncline
