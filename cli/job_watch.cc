#include "cli/job_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/status.h"
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

// "run1-step200: No space left": of which step.
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
    if (is_at_end && job.value("name", "") == job_) skipped_ = job.value("job", 0U);
  }
}

std::vector<std::string> JobNews::Take(const std::string& status) {
  const Json json = Json::parse(status, nullptr, /*allow_exceptions=*/false);
  const Json jobs = json.is_object() ? json.value("jobs", Json::array()) : Json::array();
  std::vector<std::string> lines;
  for (const Json& job : jobs) {
    if (job.value("name", "") != job_ || job.value("job", 0U) == skipped_) continue;
    const Json saved = job.value("checkpoint", Json::object());
    const std::string name = Printable(job_);
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
                                   " failed, earlier ones stay: ", error_));
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
    is_known_ = true;
  }
  return lines;
}

absl::Status JobNews::Ended() const {
  const bool was_lost = was_saving_ && phase_ == "failed";
  const bool has_failed = phase_ == "over" && !error_.empty() && StepOf(error_) >= step_;
  if (!was_lost && !has_failed) return absl::OkStatus();
  return WithFailure(absl::InternalError(absl::StrCat(
                         "the workers are done, but the last step of job '",
                         Printable(job_), "' is not saved: ", was_lost ? reason_ : error_,
                         "; the last checkpoint is ", LastCheckpoint())),
                     Failure::kStateUnusable);
}

absl::Status JobNews::Unknown(const absl::Status& why) const {
  if (!was_saving_) return absl::OkStatus();
  return WithFailure(absl::UnavailableError(absl::StrCat(
                         "the workers are done, but whether the last step of job '",
                         Printable(job_), "' is saved is not known: ",
                         std::string(why.message()), "; see syncline checkpoint list")),
                     Failure::kStateUnusable);
}

std::string JobNews::LastCheckpoint() const {
  return latest_.empty() ? "none of this run" : latest_;
}

JobWatch::JobWatch(const Options& options, std::function<void(const std::string&)> say)
    : options_(options),
      say_(std::move(say)),
      news_(options.job),
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

void JobWatch::Run() {
  if (options_.finds == Options::Finds::kNew) {
    const auto before = FetchStatusJson(options_.coordinator, options_.tls, kTimeout);
    if (before.ok()) news_.Skip(*before);
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
  }
  if (!hurries || (status.ok() && news_.is_saving())) {
    unanswered_ = 0;
    return;
  }
  // It may be too busy for one answer.
  if (!status.ok() && news_.is_known() && ++unanswered_ < kTries) return;
  absl::MutexLock lock(&mutex_);
  end_ = status.ok() ? news_.Ended() : news_.Unknown(status.status());
}

}  // namespace syncline
