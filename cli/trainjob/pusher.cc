#include "cli/trainjob/pusher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/coordinator_call.h"
#include "comm/rpc/status_json.h"

namespace syncline {
namespace {

// Limit of a call of the coordinator. The end of a run may wait for one.
constexpr absl::Duration kCall = absl::Milliseconds(900);

void ReportPushes(const std::string& coordinator, const TlsOptions& tls,
                  const v1::ReportPushesRequest& request) {
  const auto channel = CreateChannel(coordinator, tls, RpcTimeouts::Default());
  // A report that is lost is no loss: the next one has the same counts and more.
  if (!channel.ok() || !(*channel)->WaitForConnected(DeadlineIn(kCall))) return;
  (void)CoordinatorCaller(*channel).Call(&v1::Coordinator::Stub::ReportPushes, request,
                                         kCall);
}

}  // namespace

void PushPace::Take(bool has_failed, absl::Duration retry_after) {
  failures_ = has_failed ? std::min(failures_ + 1, 16) : 0;
  const absl::Duration grown = every_ * (int64_t{1} << failures_);
  pause_ = std::max(every_, std::min(grown, kLongest));
  if (has_failed) pause_ = std::max(pause_, std::min(retry_after, kLongestAsked));
}

TrainJobPusher::TrainJobPusher(Options options,
                               std::function<void(const std::string&)> say)
    : options_(std::move(options)),
      say_(std::move(say)),
      client_(options_.target),
      progress_(options_.progress),
      pace_(options_.every),
      thread_([this] { Run(); }) {}

TrainJobPusher::~TrainJobPusher() {
  Stop();
  if (thread_.joinable()) thread_.join();
}

void TrainJobPusher::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  client_.Cut();
}

void TrainJobPusher::Finish() {
  {
    absl::MutexLock lock(&mutex_);
    finishing_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

bool TrainJobPusher::AwaitTurn() {
  absl::MutexLock lock(&mutex_);
  const absl::Duration next = clock_.Now() + pace_.Pause();
  while (!stopping_ && !finishing_ && changed_.WaitUntil(mutex_, clock_, next)) {
  }
  return !stopping_ && !finishing_;
}

void TrainJobPusher::Run() {
  while (AwaitTurn()) PushOnce(/*is_last=*/false);
  bool is_over = false;
  {
    absl::MutexLock lock(&mutex_);
    is_over = stopping_;
  }
  if (is_over) return;
  progress_.Finish();
  PushOnce(/*is_last=*/true);
}

void TrainJobPusher::PushOnce(bool is_last) {
  const std::optional<std::string> status = options_.status();
  const bool is_known = status && progress_.Add(*status, clock_.Now());
  // The end is pushed with what was known before, if anything was.
  if (!is_known && (!is_last || progress_.job().empty())) return;
  const std::string news = progress_.News();
  const bool is_due = news != news_ || clock_.Now() - pushed_at_ >= options_.repeat;
  if (!is_due) return;
  // Counters begin at zero: a rate would miss the first failure otherwise.
  if (sent_ + failed_ == 0) options_.report(progress_.job(), 0, 0);
  absl::Duration retry_after;
  const absl::Status pushed =
      client_.Post(progress_.Message(absl::Now()),
                   is_last ? options_.last_limit : options_.limit, &retry_after);
  if (absl::IsCancelled(pushed)) return;
  if (pushed.ok()) {
    news_ = news;
    pushed_at_ = clock_.Now();
  }
  Take(pushed, retry_after);
  options_.report(progress_.job(), sent_, failed_);
}

void TrainJobPusher::Take(const absl::Status& pushed, absl::Duration retry_after) {
  pace_.Take(!pushed.ok(), retry_after);
  if (pushed.ok()) {
    ++sent_;
    if (has_said_failure_ && !std::exchange(has_said_success_, true)) {
      say_("the TrainJob shows the job's progress now");
    }
    return;
  }
  ++failed_;
  if (std::exchange(has_said_failure_, true)) return;
  say_(absl::StrCat(
      "the TrainJob does not show the job's progress: ", std::string(pushed.message()),
      "; the job goes on, and further failures are only counted "
      "(syncline_trainjob_pushes_total)"));
}

std::unique_ptr<TrainJobPusher> MakeTrainJobPusher(
    const std::string& coordinator, const TlsOptions& tls,
    const TrainJobProgress::Options& job,
    const std::function<void(const std::string&)>& say) {
  const auto target = TrainJobTarget::FromEnvironment();
  if (!target.ok()) {
    say(absl::StrCat("the TrainJob will not show the job's progress: ",
                     std::string(target.status().message())));
    return nullptr;
  }
  if (!target->has_value()) return nullptr;
  TrainJobPusher::Options options = {.target = **target, .progress = job};
  options.status = [=] { return StatusJsonIfAnswered(coordinator, tls, kCall); };
  options.report = [=](const std::string& name, uint64_t sent, uint64_t failed) {
    v1::ReportPushesRequest request;
    request.set_job(name);
    request.set_run_id(job.run_id);
    request.set_sent(sent);
    request.set_failed(failed);
    ReportPushes(coordinator, tls, request);
  };
  return std::make_unique<TrainJobPusher>(std::move(options), say);
}

}  // namespace syncline
