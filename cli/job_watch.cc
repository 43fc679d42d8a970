#include "cli/job_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/human_bytes.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/rpc/status_json.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/manifest.h"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kTimeout = absl::Seconds(2);
constexpr absl::Duration kHurry = absl::Milliseconds(100);
constexpr int kTries = 5;

// Returns the step in an error such as "run1-step200: No space left".
uint64_t StepOf(const std::string& error) {
  const auto name = CheckpointName::Parse(error.substr(0, error.find(':')));
  return name ? name->step : 0;
}

}  // namespace

void JobNews::Skip(const std::string& status) {
  const Json json = Json::parse(status, nullptr, /*allow_exceptions=*/false);
  const Json jobs = json.is_object() ? json.value("jobs", Json::array()) : Json::array();
  for (const Json& job : jobs) {
    const std::string phase = job.value("phase", "");
    const bool is_at_end = phase == "over" || phase == "failed" || phase == "saving";
    if (is_at_end && job.value("name", "") == options_.name)
      skipped_ = job.value("job", 0U);
  }
}

std::vector<std::string> JobNews::Take(const std::string& status) {
  const Json json = Json::parse(status, nullptr, /*allow_exceptions=*/false);
  const Json jobs = json.is_object() ? json.value("jobs", Json::array()) : Json::array();
  std::vector<std::string> lines;
  is_listed_ = false;
  for (const Json& job : jobs) {
    if (job.value("name", "") != options_.name || job.value("job", 0U) == skipped_)
      continue;
    // Only the end of this job is known: it ended before the coordinator restarted.
    if (job.contains("ended") && job.value("mode", "").empty()) continue;
    const Json saved = job.value("checkpoint", Json::object());
    const std::string name = Printable(options_.name);
    phase_ = job.value("phase", "");
    reason_ = job.value("reason", "");
    step_ = job.value("step", uint64_t{0});
    error_ = saved.value("error", "");
    latest_ = saved.value("latest", "");
    const std::string from = saved.value("resumed_from", "");
    if (from != std::exchange(began_with_, from) && !from.empty()) {
      lines.push_back(absl::StrCat("job ", name, " goes on from checkpoint ", from));
    }
    const uint64_t failed = saved.value("failed", uint64_t{0});
    if (failed > std::exchange(failed_, failed) && !error_.empty()) {
      lines.push_back(absl::StrCat("a checkpoint of job ", name,
                                   " failed, earlier ones are kept: ", error_));
    }
    for (const Json& record : job.value("records", Json::array())) {
      const std::string why = record.value("error", "");
      const auto server = record.value("server", 0U);
      if (why.empty() || !ended_journals_.insert(server).second) continue;
      lines.push_back(absl::StrCat("the journal of job ", name, " on server ", server,
                                   " has ended, the job goes on without it: ", why));
    }
    if (is_saving() && !std::exchange(was_saving_, true)) {
      lines.push_back(absl::StrCat("saving the last step of job ", name,
                                   ", for at most 30 minutes; Ctrl-C gives it up"));
    }
    const bool is_saved = phase_ == "over" && step_ > 0 && StepOf(latest_) >= step_;
    if (is_saved && !std::exchange(was_saved_, true)) {
      lines.push_back(absl::StrCat(
          "the last step of job ", name, " is saved: checkpoint ", latest_, ", ",
          HumanBytes(saved.value("bytes", 0.0)), "; see syncline checkpoint list"));
    }
    members_.clear();
    for (const Json& member : job.value("members", Json::array())) {
      members_.insert(member.value("rank", -1));
    }
    is_known_ = is_listed_ = true;
  }
  return lines;
}

// The ranks that are waited for have left; members of other ranks are still training.
bool JobNews::OnlyOthersTrain() const {
  return !members_.empty() && std::ranges::none_of(members_, [this](int rank) {
    return options_.ranks.contains(rank);
  });
}

std::optional<absl::Status> JobNews::End(absl::Duration since) const {
  if (!is_listed_ || phase_ == "over" || phase_ == "failed") return Ended();
  if (is_saving()) return std::nullopt;
  if (OnlyOthersTrain()) return absl::OkStatus();
  if (since < options_.goodbyes_within) return std::nullopt;
  return Unknown(absl::DeadlineExceededError(
      absl::StrCat("the coordinator has not heard within ",
                   absl::FormatDuration(options_.goodbyes_within),
                   " that all of them left in order, and the job is ", phase_)));
}

absl::Status JobNews::Ended() const {
  const bool was_lost = was_saving_ && phase_ == "failed";
  const uint64_t saved = std::max(StepOf(latest_), StepOf(began_with_));
  const bool was_to_be_saved = was_saving_ || StepOf(error_) >= step_;
  const bool is_missing = phase_ == "over" && saved < step_ && was_to_be_saved;
  if (!was_lost && !is_missing) return absl::OkStatus();
  return WithFailure(
      absl::InternalError(absl::StrCat(
          "the workers are done, but the last step of job '", Printable(options_.name),
          "' is not saved: ", error_.empty() || was_lost ? reason_ : error_,
          "; the last checkpoint is ", LastCheckpoint())),
      Failure::kStateUnusable);
}

absl::Status JobNews::Unknown(const absl::Status& why) const {
  const bool may_be_saved = options_.is_scheduled || was_saving_ || !latest_.empty();
  if (!is_known_ || !may_be_saved) return absl::OkStatus();
  return WithFailure(absl::UnavailableError(absl::StrCat(
                         "the workers are done, but whether the last step of job '",
                         Printable(options_.name), "' is saved is not known: ",
                         std::string(why.message()), "; see syncline checkpoint list")),
                     Failure::kStateUnusable);
}

std::string JobNews::LastCheckpoint() const {
  return latest_.empty() ? "none of this run" : latest_;
}

std::optional<std::string> JobNews::Closing() const {
  const uint64_t saved = std::max(StepOf(latest_), StepOf(began_with_));
  if (failed_ == 0 || error_.empty() || saved >= step_) return std::nullopt;
  const std::string last = latest_.empty() ? began_with_ : latest_;
  return absl::StrCat("the last checkpoint of job ", Printable(options_.name), " is ",
                      last.empty() ? "none" : absl::StrCat(last, ", of step ", saved),
                      " of ", step_, ": ", failed_, " failed, the last one ", error_);
}

RunNews::RunNews(const JobNews::Options& job, std::string run_id)
    : options_(job), run_id_(std::move(run_id)) {
  jobs_.emplace(job.name, job);
}

void RunNews::Find(const std::string& status) {
  if (run_id_.empty()) return;
  const Json json = Json::parse(status, nullptr, /*allow_exceptions=*/false);
  const Json jobs = json.is_object() ? json.value("jobs", Json::array()) : Json::array();
  for (const Json& job : jobs) {
    if (job.value("run_id", "") != run_id_) continue;
    JobNews::Options options = options_;
    options.name = job.value("name", "");
    jobs_.try_emplace(options.name, options);
  }
}

void RunNews::Skip(const std::string& status) {
  Find(status);
  for (auto& [name, job] : jobs_) job.Skip(status);
}

std::vector<std::string> RunNews::Take(const std::string& status) {
  Find(status);
  std::vector<std::string> lines;
  for (auto& [name, job] : jobs_) {
    for (std::string& line : job.Take(status)) lines.push_back(std::move(line));
  }
  return lines;
}

bool RunNews::is_known() const {
  return std::ranges::any_of(jobs_,
                             [](const auto& entry) { return entry.second.is_known(); });
}

std::optional<absl::Status> RunNews::End(absl::Duration since) const {
  absl::Status first;
  for (const auto& [name, job] : jobs_) {
    const std::optional<absl::Status> end = job.End(since);
    if (!end) return std::nullopt;
    if (first.ok()) first = *end;
  }
  return first;
}

absl::Status RunNews::Unknown(const absl::Status& why) const {
  absl::Status first;
  for (const auto& [name, job] : jobs_) {
    if (first.ok()) first = job.Unknown(why);
  }
  return first;
}

std::string RunNews::LastCheckpoint() const {
  const JobNews& named = jobs_.at(options_.name);
  if (named.is_known()) return named.LastCheckpoint();
  for (const auto& [name, job] : jobs_) {
    if (job.is_known()) return job.LastCheckpoint();
  }
  return named.LastCheckpoint();
}

std::vector<std::string> RunNews::Closing() const {
  std::vector<std::string> lines;
  for (const auto& [name, job] : jobs_) {
    if (auto line = job.Closing()) lines.push_back(*std::move(line));
  }
  return lines;
}

JobWatch::JobWatch(const Options& options, std::function<void(const std::string&)> say)
    : options_(options),
      say_(std::move(say)),
      news_(options.job, options.run_id),
      thread_([this] { Run(); }) {}

JobWatch::~JobWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void JobWatch::Hurry() {
  absl::MutexLock lock(&mutex_);
  hurries_ = true;
  changed_.SignalAll();
}

std::optional<absl::Status> JobWatch::End() const {
  absl::MutexLock lock(&mutex_);
  return end_;
}

std::string JobWatch::LastCheckpoint() const {
  absl::MutexLock lock(&mutex_);
  return last_checkpoint_;
}

std::vector<std::string> JobWatch::Closing() const {
  absl::MutexLock lock(&mutex_);
  return closing_;
}

void JobWatch::Run() {
  if (options_.finds == Options::Finds::kNew) {
    const auto before =
        StatusJsonIfAnswered(options_.coordinator, options_.tls, kTimeout);
    if (before) news_.Skip(*before);
  }
  for (;;) {
    bool hurries = false;
    {
      absl::MutexLock lock(&mutex_);
      const absl::Duration next = clock_.Now() + (hurries_ ? kHurry : options_.every);
      const bool began_in_haste = hurries_;
      while (!stopping_ && hurries_ == began_in_haste &&
             changed_.WaitUntil(mutex_, clock_, next)) {
      }
      if (stopping_ || end_) return;
      hurries = hurries_;
    }
    Ask(hurries);
  }
}

void JobWatch::Ask(bool hurries) {
  const auto status = FetchStatusJson(options_.coordinator, options_.tls, kTimeout);
  if (status.ok()) {
    for (const std::string& line : news_.Take(*status)) say_(line);
    absl::MutexLock lock(&mutex_);
    last_checkpoint_ = news_.LastCheckpoint();
    closing_ = news_.Closing();
  }
  if (!hurries) return;
  if (!hurried_at_) hurried_at_ = clock_.Now();
  std::optional<absl::Status> end;
  if (status.ok()) {
    unanswered_ = 0;
    end = news_.End(clock_.Now() - *hurried_at_);
  } else if (!news_.is_known() || ++unanswered_ >= kTries) {
    // One missing answer is tolerated: the coordinator may be too busy.
    end = news_.Unknown(status.status());
  }
  absl::MutexLock lock(&mutex_);
  end_ = end;
}

}  // namespace syncline
