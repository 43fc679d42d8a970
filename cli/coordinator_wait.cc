#include "cli/coordinator_wait.h"

#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/diagnosis.h"

namespace syncline {
namespace {

constexpr absl::Duration kLongestDiagnosis = absl::Milliseconds(500);
constexpr char kAdvice[] =
    "`syncline serve --role coordinator --listen ADDRESS:7070` starts one, and without "
    "--coordinator this command has its own";

std::string Written(absl::Duration limit) {
  return absl::FormatDuration(absl::Trunc(limit, absl::Milliseconds(1)));
}

}  // namespace

class CoordinatorWait::Inquiry {
 public:
  void Answer(Diagnosis found) {
    absl::MutexLock lock(&mutex_);
    found_ = std::move(found);
  }
  std::optional<Diagnosis> found() const {
    absl::MutexLock lock(&mutex_);
    return found_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::optional<Diagnosis> found_ ABSL_GUARDED_BY(mutex_);
};

CoordinatorWait::CoordinatorWait(Options options,
                                 std::function<void(const std::string&)> say)
    : options_(std::move(options)), say_(std::move(say)), began_at_(clock_.Now()) {}

absl::StatusOr<bool> CoordinatorWait::Answers(absl::Duration slice) {
  if (channel_ == nullptr) {
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
  if (inquiry_ == nullptr) {
    inquiry_ = std::make_shared<Inquiry>();
    inquired_at_ = clock_.Now();
    std::thread([inquiry = inquiry_, address = options_.coordinator, tls = options_.tls] {
      inquiry->Answer(DiagnoseConnection(address, tls, kLongestDiagnosis));
    }).detach();
  }
  if (const std::optional<Diagnosis> found = inquiry_->found()) {
    inquiry_.reset();  // at the limit it may be something else
    return found;
  }
  if (clock_.Now() - inquired_at_ < options_.inquiry) return std::nullopt;
  return Diagnosis{
      "its name is still being looked up; check the name and the name server"};
}

}  // namespace syncline
