#include "server/etcd/leadership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

// The rates of clocks on different hosts differ by less than the rest.
constexpr double kOwnShareOfLease = 0.9;
constexpr absl::Duration kShortestTtl = absl::Seconds(5);
constexpr absl::Duration kResignLimit = absl::Seconds(1);
// Limit of one call. A process that ends waits for it.
constexpr absl::Duration kCallLimit = absl::Seconds(2);

}  // namespace

absl::Duration Leadership::TtlFor(const Timeouts& timeouts) {
  return std::max(kShortestTtl,
                  absl::Ceil(timeouts.failure_timeout / 2, absl::Seconds(1)));
}

Leadership::Leadership(EtcdClient& etcd, LeadershipOptions options)
    : etcd_(etcd),
      options_(std::move(options)),
      key_(absl::StrCat(etcd.address().prefix, "/leader")),
      thread_([this] { Run(); }) {}

Leadership::~Leadership() { Resign(); }

absl::Duration Leadership::time_left() const {
  const int64_t until = std::min(until_ns_.load(), end_ns_.load());
  return std::max(absl::Nanoseconds(until) - clock_.Now(), absl::ZeroDuration());
}

void Leadership::EndWithin(absl::Duration time) {
  const int64_t end = absl::ToInt64Nanoseconds(clock_.Now() + time);
  int64_t before = end_ns_;
  while (end < before && !end_ns_.compare_exchange_weak(before, end)) {
  }
}

EtcdGuard Leadership::guard() const {
  absl::MutexLock lock(&mutex_);
  return {key_, create_revision_};
}

std::string Leadership::leader() const {
  absl::MutexLock lock(&mutex_);
  return leader_;
}

absl::Status Leadership::etcd_status() const {
  absl::MutexLock lock(&mutex_);
  return etcd_status_;
}

void Leadership::Resign() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
  // True also after the time of EndWithin, because the lease still exists then.
  const bool holds_lease = absl::Nanoseconds(until_ns_.load()) > clock_.Now();
  LeadUntil(absl::ZeroDuration());
  int64_t lease = 0;
  {
    absl::MutexLock lock(&mutex_);
    lease = lease_;
  }
  // Otherwise the lease ends without it.
  if (holds_lease) etcd_.Revoke(lease, kResignLimit).IgnoreError();
}

bool Leadership::WaitFor(absl::Duration time) {
  absl::MutexLock lock(&mutex_);
  const absl::Duration until = clock_.Now() + time;
  while (!stopping_ && changed_.WaitUntil(mutex_, clock_, until)) {
  }
  return !stopping_;
}

void Leadership::SetLeader(const std::string& leader) {
  {
    absl::MutexLock lock(&mutex_);
    if (leader_ == leader) return;
    leader_ = leader;
  }
  if (leader.empty()) return options_.log.Info("no coordinator leads");
  if (leader != options_.address || !leads()) {
    options_.log.Info("this coordinator is a standby", {{"leader", leader}});
  }
}

// Logs each change once.
void Leadership::SayWhetherEtcdAnswers(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    etcd_status_ = status;
  }
  const bool was_away = std::exchange(etcd_is_away_, !status.ok());
  if (was_away == !status.ok()) return;
  if (status.ok()) return options_.log.Info("etcd answers again");
  if (!leads()) {
    return options_.log.Warning("waiting for etcd; nobody can become the leader",
                                {{"reason", std::string(status.message())}});
  }
  options_.log.Warning(
      "etcd does not answer: unless it does soon, this coordinator steps down",
      {{"in", absl::FormatDuration(absl::Trunc(time_left(), absl::Milliseconds(1)))},
       {"reason", std::string(status.message())}});
}

void Leadership::Run() {
  for (;;) {
    const absl::StatusOr<bool> led = Try();
    SayWhetherEtcdAnswers(led.status());
    if (led.ok() && *led) break;
    if (!WaitFor(options_.look_every)) return;
  }
  options_.log.Info("this coordinator leads", {{"address", options_.address}});
  const absl::Status lost = Lead();
  if (lost.ok()) return;
  LeadUntil(absl::ZeroDuration());
  options_.on_lost(lost);
}

absl::StatusOr<bool> Leadership::Try() {
  etcdserverpb::RangeRequest request;
  request.set_key(key_);
  SYNCLINE_ASSIGN_OR_RETURN(const auto found, etcd_.Range(request, kCallLimit));
  if (!found.kvs().empty()) {
    SetLeader(found.kvs(0).value());
    return false;
  }
  SetLeader("");
  return TakeLead();
}

absl::StatusOr<bool> Leadership::TakeLead() {
  const absl::Duration asked = clock_.Now();
  SYNCLINE_ASSIGN_OR_RETURN(const auto lease, etcd_.Grant(options_.ttl, kCallLimit));
  etcdserverpb::TxnRequest take;
  auto* absent = take.add_compare();
  absent->set_target(etcdserverpb::Compare::CREATE);
  absent->set_key(key_);
  absent->set_create_revision(0);
  auto* put = take.add_success()->mutable_request_put();
  put->set_key(key_);
  put->set_value(options_.address);
  put->set_lease(lease.id());
  take.add_failure()->mutable_request_range()->set_key(key_);
  const auto taken = etcd_.Txn(take, kCallLimit);
  int64_t revision = 0;
  if (taken.ok() && taken->succeeded()) revision = taken->header().revision();
  if (taken.ok() && !taken->succeeded()) {
    const auto& found = taken->responses(0).response_range();
    // The key is ours: it was created by an attempt whose answer was lost.
    if (!found.kvs().empty() && found.kvs(0).lease() == lease.id()) {
      revision = found.kvs(0).create_revision();
    } else if (!found.kvs().empty()) {
      SetLeader(found.kvs(0).value());
    }
  }
  const absl::Duration until = asked + kOwnShareOfLease * absl::Seconds(lease.ttl());
  if (revision == 0 || clock_.Now() >= until) {
    etcd_.Revoke(lease.id(), kResignLimit).IgnoreError();
    SYNCLINE_RETURN_IF_ERROR(taken.status());
    return false;
  }
  {
    absl::MutexLock lock(&mutex_);
    lease_ = lease.id();
    create_revision_ = revision;
    leader_ = options_.address;
  }
  LeadUntil(until);
  return true;
}

// The lease alone is not enough: if the key was deleted, another coordinator may lead.
absl::Status Leadership::Renew() {
  if (!leads()) return absl::UnavailableError("its time is over");
  int64_t lease = 0;
  int64_t create_revision = 0;
  {
    absl::MutexLock lock(&mutex_);
    lease = lease_;
    create_revision = create_revision_;
  }
  const absl::Duration asked = clock_.Now();
  SYNCLINE_ASSIGN_OR_RETURN(const absl::Duration left,
                            etcd_.KeepAlive(lease, std::min(time_left(), kCallLimit)));
  etcdserverpb::RangeRequest request;
  request.set_key(key_);
  SYNCLINE_ASSIGN_OR_RETURN(const auto found,
                            etcd_.Range(request, std::min(time_left(), kCallLimit)));
  if (found.kvs().empty() || found.kvs(0).create_revision() != create_revision) {
    return absl::NotFoundError("its key was deleted");
  }
  if (leads()) LeadUntil(asked + kOwnShareOfLease * left);
  return absl::OkStatus();
}

absl::Status Leadership::Lead() {
  while (WaitFor(options_.ttl / 5)) {
    const absl::Status renewed = Renew();
    const bool is_gone = absl::IsNotFound(renewed);
    if (!is_gone) SayWhetherEtcdAnswers(renewed);
    if (!is_gone && leads()) continue;
    if (clock_.Now() >= absl::Nanoseconds(end_ns_.load())) return absl::OkStatus();
    return WithFailure(
        absl::UnavailableError(absl::StrCat(
            "this coordinator led, and does not any more: ",
            is_gone ? "etcd has ended its leadership" : "etcd did not answer in time",
            " (",
            renewed.ok() ? "this process stood still" : std::string(renewed.message()),
            "); start it again, and it is a standby")),
        Failure::kRetryable);
  }
  return absl::OkStatus();
}

}  // namespace syncline
