#include "server/coordinator/cuts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"

namespace syncline {
namespace {

constexpr size_t kMaxOpen = 8;
// Reports that come late concern one of these last cuts.
constexpr size_t kMaxEnded = 64;

}  // namespace

absl::Status GivenUpByRestart() {
  return absl::UnavailableError(
      "it was given up because the coordinator was restarted while it was being written; "
      "later checkpoints are not affected");
}

void Cuts::Begin(uint64_t step, std::set<uint32_t> servers) {
  const bool is_new = open_
                          .try_emplace(step, Cut{.unwritten = std::move(servers),
                                                 .scaling = ScalingAt(step)})
                          .second;
  SYNCLINE_CHECK(is_new);
  last_ = std::max(last_, step);
}

std::optional<uint64_t> Cuts::OneTooMany(uint64_t step) const {
  if (open_.size() <= kMaxOpen) return std::nullopt;
  // A cut that all servers have written is left alone: its outcome always arrives.
  const auto oldest = std::ranges::find_if(open_, [step](const auto& cut) {
    return cut.first != step && !cut.second.unwritten.empty();
  });
  return oldest == open_.end() ? std::nullopt : std::optional(oldest->first);
}

std::map<uint64_t, uint32_t> Cuts::Late(absl::Duration now) {
  std::map<uint64_t, uint32_t> late;
  for (auto& [step, cut] : open_) {
    if (!cut.since) cut.since = now;
    const bool is_late = !cut.unwritten.empty() && now - *cut.since >= kLimit;
    if (is_late) late[step] = *cut.unwritten.begin();
  }
  return late;
}

std::vector<uint64_t> Cuts::AwaitedOf(uint32_t server) const {
  std::vector<uint64_t> steps;
  for (const auto& [step, cut] : open_) {
    if (cut.unwritten.contains(server)) steps.push_back(step);
  }
  return steps;
}

std::optional<uint64_t> Cuts::FirstLost() const {
  if (open_.empty() || !IsLost(open_.begin()->first)) return std::nullopt;
  return open_.begin()->first;
}

std::vector<uint64_t> Cuts::KeepUpTo(uint64_t step) {
  open_.erase(open_.upper_bound(step), open_.end());
  std::vector<uint64_t> steps;
  for (const auto& [open, cut] : open_) steps.push_back(open);
  return steps;
}

// ---- The loss scale at a step ----

void Cuts::NoteDecided(bool is_scheduled) {
  const uint64_t step = decisions_.decided();
  if (const auto cut = open_.find(step); cut != open_.end()) {
    cut->second.scaling = decisions_.scaling();
  }
  if (!is_scheduled) return;
  scalings_[step] = decisions_.scaling();
  while (scalings_.size() > 2 * kMaxOpen) scalings_.erase(scalings_.begin());
}

std::optional<ScalingState> Cuts::ScalingAt(uint64_t step) const {
  if (const auto known = scalings_.find(step); known != scalings_.end()) {
    return known->second;
  }
  return decisions_.decided() == step ? std::optional(decisions_.scaling())
                                      : std::nullopt;
}

// ---- What came of them ----

const Cut* Cuts::Add(uint32_t server, const CheckpointWritten& written) {
  Cut& cut = open_.at(written.step);
  if (cut.unwritten.erase(server) == 0) return nullptr;
  cut.status.Update(written.status);
  cut.files.insert(cut.files.end(), written.files.begin(), written.files.end());
  cut.took = std::max(cut.took, written.took);
  if (written.status.ok()) cut.training = written.training;
  if (!cut.unwritten.empty()) return nullptr;
  if (!cut.scaling && written.step < first_known_) {
    cut.status.Update(GivenUpByRestart());
  } else if (!cut.scaling && decisions_.decided() > written.step) {
    cut.status.Update(absl::UnavailableError(
        absl::StrCat("servers took until step ", decisions_.decided(),
                     " to write it, and its loss scale is no longer known; save less "
                     "often, or to a faster disk")));
  }
  // Without decisions the loss scale never changes.
  if (!cut.scaling) cut.scaling = decisions_.scaling();
  return &cut;
}

Cut Cuts::Take(uint64_t step) {
  Cut cut = open_.extract(step).mapped();
  scalings_.erase(step);
  ended_.insert(step);
  if (ended_.size() > kMaxEnded) ended_.erase(ended_.begin());
  return cut;
}

void Cuts::Finish(const CheckpointName& name, absl::Duration now) {
  const Cut cut = Take(name.step);
  ++saved_.written;
  saved_.error.clear();
  saved_.latest = name.ToString();
  saved_.step = name.step;
  saved_.took = cut.took;
  saved_.bytes = 0;
  for (const CheckpointFile& file : cut.files) saved_.bytes += file.bytes;
  saved_at_ = now;
}

void Cuts::Fail(const CheckpointName& name, const absl::Status& status) {
  ++saved_.failed;
  saved_.error = absl::StrCat(name.ToString(), ": ", std::string(status.message()));
  Take(name.step);  // last, since `status` may be the cut's own
}

CheckpointView Cuts::View(absl::Duration now) const {
  CheckpointView view = saved_;
  view.is_under_way = !open_.empty();
  if (saved_.written > 0) view.age = now - saved_at_;
  return view;
}

void Cuts::Restore(uint64_t last, const CheckpointView& saved) {
  lost_ = last;
  saved_ = saved;
  NoteResumed();
}

}  // namespace syncline
