#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/rpc/figures_proto.h"
#include "comm/rpc/phases_proto.h"
#include "worker/client/session_impl.h"

namespace syncline {

void Session::Impl::OnMessage(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kWaiting: {
      const std::string& reason = message.waiting().reason();
      absl::MutexLock lock(&mutex_);
      waiting_for_ = reason;
      if (waiting_lines_.IsDue(reason, clock_.Now())) options_.log.Info(reason);
      return;
    }
    case v1::CoordinatorMessage::kDescribeJob: {
      absl::MutexLock lock(&mutex_);
      is_asked_for_job_ = true;
      changed_.SignalAll();
      return;
    }
    case v1::CoordinatorMessage::kWorkerWelcome:
      return OnWelcome(message.worker_welcome());
    case v1::CoordinatorMessage::kEpochChanged:
      return OnEpochChanged(message.epoch_changed());
    case v1::CoordinatorMessage::kBarrierReleased: {
      absl::MutexLock lock(&mutex_);
      barriers_released_ =
          std::max(barriers_released_, message.barrier_released().barrier() + 1);
      if (membership_) membership_->set_barriers(message.barrier_released().barriers());
      changed_.SignalAll();
      return;
    }
    case v1::CoordinatorMessage::kJobFailed:
      return Fail(WithFailure(
          absl::UnavailableError(absl::StrCat(
              "job '", options_.job, "' failed: ", message.job_failed().reason())),
          Failure::kRetryable));
    case v1::CoordinatorMessage::kSlowestWorker: {
      const v1::SlowestWorker& slowest = message.slowest_worker();
      absl::MutexLock lock(&mutex_);
      slowest_.reset();
      if (slowest.has_rank()) slowest_ = slowest.rank();
      return;
    }
    case v1::CoordinatorMessage::kTraceOrder:
      return TakeOrder(message.trace_order());
    default:
      return;  // messages for servers
  }
}

void Session::Impl::OnWelcome(const v1::WorkerWelcome& welcome) {
  absl::MutexLock lock(&mutex_);
  welcome_ = std::make_unique<v1::WorkerWelcome>(welcome);
  epoch_ = welcome.epoch();
  members_ = welcome.members();
  is_seeder_ = welcome.seeder();
  contributions_ = {.hessian_every = welcome.contributions().hessian_every(),
                    .momentum_from = welcome.contributions().momentum_from()};
  if (welcome.has_staleness()) SetStaleness(welcome.staleness());
  v1::HeldMembership& membership = membership_.emplace();
  membership.set_job(welcome.job());
  membership.set_incarnation(welcome.incarnation());
  membership.set_session_key(welcome.session_key());
  membership.set_barriers(welcome.barriers());
  changed_.SignalAll();
}

void Session::Impl::SetStaleness(uint64_t staleness) {
  if (staleness_ && *staleness_ != staleness) {
    options_.log.Info("changed how many steps workers may be ahead of the slowest",
                      {{"staleness", staleness}, {"before", *staleness_}});
  }
  staleness_ = staleness;
  has_run_ahead_ = has_run_ahead_ || staleness > 0;
  if (data_plane_ != nullptr) data_plane_->SetStaleness(staleness);
}

v1::MemberMessage Session::Impl::HelloAgain() {
  absl::MutexLock lock(&mutex_);
  v1::MemberMessage hello = hello_;
  slowest_.reset();  // the coordinator that said so is gone
  if (!membership_) return hello;
  v1::HeldMembership& member = *hello.mutable_worker_hello()->mutable_member();
  member = *membership_;
  member.set_epoch(epoch_);
  member.set_step(step_);
  if (barriers_entered_ > barriers_released_) {
    member.set_is_in_barrier(true);
    member.set_barrier(barriers_entered_ - 1);
  }
  return hello;
}

void Session::Impl::OnEpochChanged(const v1::EpochChanged& change) {
  options_.log.Info("epoch changed", {{"epoch", change.epoch()},
                                      {"members", change.members()},
                                      {"reason", std::string_view(change.reason())}});
  absl::MutexLock lock(&mutex_);
  for (const v1::MovedShard& moved : change.moved()) {
    if (moved.epoch() <= epoch_) continue;
    moved_.push_back({.shard = moved.shard(),
                      .epoch = moved.epoch(),
                      .address = moved.address(),
                      .key = SecretKey::From(std::as_bytes(std::span(moved.key())))
                                 .value_or(SecretKey())});
  }
  epoch_ = change.epoch();
  members_ = change.members();
  slowest_.reset();
  is_seeder_ = change.seeder();
  if (change.has_staleness()) SetStaleness(change.staleness());
  if (data_plane_ == nullptr) return;
  if (!moved_.empty()) {
    options_.log.Info("a server came back: connecting to it",
                      {{"shards", moved_.size()}, {"epoch", epoch_}});
    data_plane_->Moved(std::exchange(moved_, {}));
  }
  data_plane_->EpochChanged(epoch_, seed_role());
}

v1::MemberMessage Session::Impl::Beat() {
  v1::MemberMessage message;
  v1::Heartbeat& beat = *message.mutable_heartbeat();
  absl::MutexLock lock(&mutex_);
  beat.set_step(step_);
  if (data_plane_ != nullptr) {
    const ExchangeStats stats = data_plane_->stats();
    beat.set_bytes(stats.progress_bytes);
    beat.set_waiting(waiters_ > 0);
    beat.set_window_fill(stats.window_fill);
    WritePhases(phases_.whole_steps(), *beat.mutable_phases());
    WriteFigures(phases_.durations(), samples_, *beat.mutable_figures());
    v1::CompressionFigures& compression = *beat.mutable_compression();
    compression.set_pushed_values(stats.pushed_values);
    compression.set_pushed_value_bytes(stats.pushed_value_bytes);
    compression.set_diverged_blocks(stats.diverged_blocks);
    compression.set_encode_ns_per_value(stats.encoding.nanoseconds_per_value());
    compression.set_decode_ns_per_value(stats.decoding.nanoseconds_per_value());
    compression.set_residual_ratio(stats.residual_ratio);
    compression.set_choice(data_plane_->codec_choice());
    v1::LinkFigures& links = *beat.mutable_links();
    links.set_sent_bytes_per_second(stats.sent_bytes_per_second);
    links.set_received_bytes_per_second(stats.received_bytes_per_second);
  }
  return message;
}

void Session::Impl::ReportLoss(uint64_t step, double loss, uint32_t samples) {
  v1::MemberMessage message;
  v1::LossReport& report = *message.mutable_loss_report();
  report.set_step(step);
  report.set_loss(loss);
  report.set_samples(samples);
  {
    absl::MutexLock lock(&mutex_);
    if (!CheckRunning().ok()) return;
  }
  link_->Send(message);
}

// Logs that the program waits for others. It does so after half the failure timeout, and
// then again each time the wait has doubled.
void Session::Impl::SayThatItWaits() {
  std::string line;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_.Now();
    if (waiters_ == 0 || data_plane_ == nullptr) {
      long_wait_.reset();
    } else if (!long_wait_ || long_wait_->step != step_) {
      long_wait_ = {
          .step = step_, .since = now, .say_after = options_.failure_timeout / 2};
    } else if (const absl::Duration waited = now - long_wait_->since;
               waited >= long_wait_->say_after) {
      long_wait_->say_after *= 2;
      line = absl::StrCat("waiting for others at step ", step_, " of job ", options_.job,
                          ", ", absl::ToInt64Seconds(waited), " s (", members_,
                          " members); `syncline status` says who holds it up");
    }
  }
  if (!line.empty()) options_.log.Info(line);
}

void Session::Impl::BeatUntilOver() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const absl::Duration next = clock_.Now() + timeouts_.heartbeat_interval;
      while (!IsOver() && over_.WaitUntil(mutex_, clock_, next)) {
      }
      if (IsOver()) return;
    }
    SayThatItWaits();
    if (!link_->Send(Beat())) return;
    SendTrace();
  }
}

void Session::Impl::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok() || phase_ == Phase::kEnding || phase_ == Phase::kOver) return;
  failure_ =
      status.ok() ? absl::UnavailableError("the coordinator ended the session") : status;
  // Without a data plane the session ends here. If Start is just creating one, it returns
  // status_ and stops it.
  if (data_plane_ != nullptr && data_plane_->Close([this] { Failed(); })) return;
  status_ = failure_;
  changed_.SignalAll();
  over_.SignalAll();
}

void Session::Impl::Failed() {
  absl::MutexLock lock(&mutex_);
  status_ = failure_;
  changed_.SignalAll();
  over_.SignalAll();
}

}  // namespace syncline
