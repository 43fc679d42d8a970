#include "cli/coordinator_wait.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/channel.h"

namespace syncline {
namespace {

constexpr absl::Duration kLongestDiagnosis = absl::Milliseconds(500);
constexpr char kAdvice[] =
    "`syncline serve --role coordinator --listen ADDRESS:7070` starts one; without "
    "--coordinator this command starts its own";

std::string Written(absl::Duration limit) {
  return absl::FormatDuration(absl::Trunc(limit, absl::Milliseconds(1)));
}

}  // namespace

CoordinatorWait::CoordinatorWait(Options options,
                                 std::function<void(const std::string&)> say)
    : options_(std::move(options)), say_(std::move(say)), began_at_(clock_.Now()) {}

absl::StatusOr<bool> CoordinatorWait::Answers(absl::Duration slice) {
  // Of several coordinators, another one may lead by now.
  if (channel_ == nullptr || absl::StrContains(options_.coordinator, ',')) {
    SYNCLINE_ASSIGN_OR_RETURN(channel_, CreateChannel(options_.coordinator, options_.tls,
                                                      RpcTimeouts::Default()));
  }
  if (channel_->WaitForConnected(DeadlineIn(slice))) return true;
  const absl::Duration waited = clock_.Now() - began_at_;
  const bool is_over = waited >= options_.limit;
  if (!is_over && (was_said_ || waited < options_.quiet)) return false;
  const std::optional<Diagnosis> found = WhyNobodyAnswers();
  if (!found) return false;
  if (is_over || found->is_lasting) {
    return WithFailure(
        absl::UnavailableError(absl::StrCat(
            "no coordinator answered at ", options_.coordinator, " within ",
            Written(is_over ? options_.limit : waited), is_over ? " (--patience)" : "",
            ", and no worker was started: ", found->cause, "; ", kAdvice)),
        Failure::kUnreachable);
  }
  was_said_ = true;
  say_(absl::StrCat("no coordinator answers at ", options_.coordinator, ": ",
                    found->cause, "; workers are started once it does, within ",
                    Written(options_.limit), " (--patience); ", kAdvice));
  return false;
}

std::optional<Diagnosis> CoordinatorWait::WhyNobodyAnswers() {
  if (!inquiry_) {
    inquiry_.emplace(options_.coordinator, options_.tls, kLongestDiagnosis);
    inquired_at_ = clock_.Now();
  }
  std::optional<Diagnosis> found = inquiry_->found();
  if (!found) {
    if (clock_.Now() - inquired_at_ < options_.inquiry) return std::nullopt;
    found = inquiry_->SoFar();
  }
  inquiry_.reset();  // the next failure may have another reason
  return found;
}

}  // namespace syncline
