#include "cli/trainjob/progress.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::ordered_json;

// A step that takes this many times as long as those before, and this long in addition,
// is one that nobody expected.
constexpr int kUnexpected = 10;
constexpr absl::Duration kAtLeast = absl::Minutes(1);

// Metrics of a job: the names of its status.
constexpr const char* kFigures[] = {"loss", "learning_rate", "gradient_norm"};

// Returns the newest job of the run, or null.
const Json* Chosen(const Json& status, const TrainJobProgress::Options& options) {
  const Json* chosen = nullptr;
  const auto jobs = status.is_object() ? status.find("jobs") : status.end();
  if (jobs == status.end()) return nullptr;
  for (const Json& job : *jobs) {
    const bool is_ours = options.run_id.empty()
                             ? job.value("name", "") == options.job
                             : job.value("run_id", "") == options.run_id;
    // A job without a mode ended before the coordinator was restarted: only its end is
    // known.
    if (!is_ours || job.value("mode", "").empty()) continue;
    const bool is_newer =
        chosen == nullptr || chosen->value("job", 0U) < job.value("job", 0U);
    if (is_newer) chosen = &job;
  }
  return chosen;
}

}  // namespace

void TimeLeft::Add(uint64_t step, absl::Duration now) {
  if (step_ == step) return;
  const bool is_first_or_back = !step_ || step < *step_;
  if (is_first_or_back) changes_.clear();
  step_ = step;
  if (is_first_or_back) return;
  changes_.emplace_back(now, step);
  if (changes_.size() > kMostChanges) changes_.pop_front();
}

std::optional<absl::Duration> TimeLeft::PerStep(absl::Duration now) const {
  if (changes_.size() < 2) return std::nullopt;
  const auto& [first_at, first] = changes_.front();
  const auto& [last_at, last] = changes_.back();
  const absl::Duration per_step =
      (last_at - first_at) / static_cast<double>(last - first);
  const absl::Duration between = (last_at - first_at) / (changes_.size() - 1);
  if (now - last_at > kUnexpected * between + kAtLeast) return std::nullopt;
  return per_step;
}

std::optional<absl::Duration> TimeLeft::Until(uint64_t step, absl::Duration now) const {
  const auto per_step = PerStep(now);
  if (!per_step) return std::nullopt;
  const auto& [last_at, last] = changes_.back();
  if (step <= last) return absl::ZeroDuration();
  const absl::Duration left = *per_step * static_cast<double>(step - last);
  return std::max(absl::ZeroDuration(), left - (now - last_at));
}

std::optional<double> TimeLeft::Rate(absl::Duration now) const {
  const auto per_step = PerStep(now);
  if (!per_step || *per_step <= absl::ZeroDuration()) return std::nullopt;
  return 1 / absl::ToDoubleSeconds(*per_step);
}

bool TrainJobProgress::Add(const std::string& status_json, absl::Duration now) {
  const Json status = Json::parse(status_json, nullptr, /*allow_exceptions=*/false);
  const Json* job = Chosen(status, options_);
  if (job == nullptr) return false;
  const auto number = job->value("job", 0U);
  if (number_ != number) time_left_ = {};
  number_ = number;
  now_ = now;
  name_ = job->value("name", "");
  step_ = job->value("step", uint64_t{0});
  total_steps_ = job->value("total_steps", uint64_t{0});
  time_left_.Add(step_, now);
  metrics_ = {{"step", static_cast<double>(step_)}};
  if (total_steps_ > 0) {
    metrics_.emplace_back("total_steps", static_cast<double>(total_steps_));
  }
  for (const char* name : kFigures) {
    const Json value = job->value(name, Json());
    if (value.is_number()) metrics_.emplace_back(name, value.get<double>());
  }
  if (const auto rate = time_left_.Rate(now)) {
    metrics_.emplace_back("steps_per_second", *rate);
  }
  const double members = static_cast<double>(job->value("members", Json::array()).size());
  metrics_.emplace_back("workers", members);
  return true;
}

std::optional<int> TrainJobProgress::Percentage() const {
  if (is_done_) return 100;
  if (total_steps_ == 0) return std::nullopt;
  const double part = static_cast<double>(step_) / static_cast<double>(total_steps_);
  return static_cast<int>(std::min(99.0, std::floor(100 * part)));
}

std::optional<int64_t> TrainJobProgress::SecondsLeft() const {
  if (is_done_) return 0;
  if (total_steps_ == 0) return std::nullopt;
  const auto left = time_left_.Until(total_steps_, now_);
  if (!left) return std::nullopt;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return std::min(kMost, absl::ToInt64Seconds(absl::Ceil(*left, absl::Seconds(1))));
}

std::string TrainJobProgress::News() const {
  Json status = Json::object();
  if (const auto percentage = Percentage()) status["progressPercentage"] = *percentage;
  if (const auto left = SecondsLeft()) status["estimatedRemainingSeconds"] = *left;
  Json metrics = Json::array();
  for (const auto& [name, value] : metrics_) {
    // 15 digits are exact for all counts.
    const bool is_whole = value == std::floor(value) && std::abs(value) < 1e15;
    metrics.push_back(
        {{"name", name}, {"value", absl::StrFormat("%.*g", is_whole ? 15 : 6, value)}});
  }
  status["metrics"] = std::move(metrics);
  return status.dump();
}

std::string TrainJobProgress::Message(absl::Time at) const {
  Json status = Json::parse(News());
  status["lastUpdatedTime"] =
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", at, absl::UTCTimeZone());
  return Json{{"trainerStatus", std::move(status)}}.dump();
}

}  // namespace syncline
