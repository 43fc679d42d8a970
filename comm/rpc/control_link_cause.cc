// Why a link never reached its coordinator, and what is said meanwhile.
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/rpc/control_link.h"
#include "comm/rpc/diagnosis.h"

namespace syncline {
namespace {

constexpr absl::Duration kSayWaitingEvery = absl::Seconds(10);
// A coordinator that is just starting or stopping may look like a stranger for a moment.
constexpr absl::Duration kLastingAfter = absl::Seconds(3);

}  // namespace

void ControlLink::SayThatItWaits() {
  const absl::Duration now = clock_.Now();
  if (was_attached_ || now < say_next_) return;
  say_next_ = now + kSayWaitingEvery;
  options_.log.Info(
      absl::StrCat("waiting for the coordinator at ", options_.attach.address),
      {{"reason", cause_}});
}

// For members that were never attached: the others know that address and files are right.
bool ControlLink::WantsCause() {
  absl::MutexLock lock(&mutex_);
  return !was_attached_ && !IsOver() &&
         (cause_.empty() || lasts_since_ || clock_.Now() >= say_next_);
}

void ControlLink::Found(const Diagnosis& diagnosis) {
  cause_ = diagnosis.cause;
  const absl::Duration now = clock_.Now();
  if (!diagnosis.is_lasting) {
    lasts_since_.reset();
  } else if (!lasts_since_) {
    lasts_since_ = now;
  } else if (now - *lasts_since_ >= kLastingAfter) {
    End(WithFailure(
        absl::UnauthenticatedError(absl::StrCat("cannot join the coordinator at ",
                                                options_.attach.address, ": ", cause_)),
        Failure::kUnreachable));
  }
}

}  // namespace syncline
