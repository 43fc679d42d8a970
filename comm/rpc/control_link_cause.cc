// Finds out why a link has never reached its coordinator, and logs it meanwhile.
#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/rpc/control_link.h"
#include "comm/rpc/diagnosis.h"

namespace syncline {
namespace {

constexpr absl::Duration kSayWaitingEvery = absl::Seconds(10);
// A cause must last this long: a coordinator that is starting or stopping may look like
// another program for a moment.
constexpr absl::Duration kLastingAfter = absl::Seconds(3);

}  // namespace

void ControlLink::SayThatItWaits() {
  const absl::Duration now = clock_.Now();
  if (was_attached_ || now < say_next_) return;
  say_next_ = now + kSayWaitingEvery;
  options_.log.Info(
      absl::StrCat("waiting for the coordinator at ", options_.attach.address),
      {{"reason", WithAdvice(cause_)}});
}

std::string ControlLink::WithAdvice(const std::string& cause) const {
  if (options_.advice.empty()) return cause;
  return absl::StrCat(cause, cause.empty() ? "" : "; ", options_.advice);
}

// Returns true if the cause is still needed. Members that were attached before know that
// address and files are right.
bool ControlLink::WantsCause() {
  absl::MutexLock lock(&mutex_);
  const auto lasts = [](const std::optional<absl::Duration>& since) {
    return since.has_value();
  };
  return !was_attached_ && !IsOver() &&
         (cause_.empty() || std::ranges::any_of(lasts_since_, lasts) ||
          clock_.Now() >= say_next_);
}

void ControlLink::Found(const Diagnosis& diagnosis) {
  cause_ = diagnosis.cause;
  const absl::Duration now = clock_.Now();
  std::optional<absl::Duration>& since = lasts_since_[target_ % targets_.size()];
  if (!diagnosis.is_lasting) return since.reset();
  if (!since) since = now;
  // If only some addresses are wrong, a coordinator at another address may still come.
  const bool all_last = std::ranges::all_of(lasts_since_, [&](const auto& each) {
    return each && now - *each >= kLastingAfter;
  });
  if (!all_last) return;
  End(WithFailure(
      absl::UnauthenticatedError(absl::StrCat("cannot join the coordinator at ",
                                              options_.attach.address, ": ", cause_)),
      Failure::kUnreachable));
}

}  // namespace syncline
