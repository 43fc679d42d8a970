#include "cli/exit_reports.h"

#include <utility>

#include "absl/time/time.h"
#include "comm/base/printable.h"
#include "comm/rpc/channel.h"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {
namespace {

constexpr size_t kMaxWordsBytes = 1000;
// Limit for sending one report. The end of a run waits for a report that is being sent.
constexpr absl::Duration kTimeout = absl::Milliseconds(900);
// Limit of the queue. More processes exit at once only if all of a host do, and their
// reports say the same.
constexpr size_t kMaxWaiting = 256;

// Makes output of programs valid UTF-8, which a message must be. It may have any bytes,
// and may be cut anywhere.
std::string Words(const std::string& said) { return Printable(said, kMaxWordsBytes); }

grpc::Status SendOne(v1::Coordinator::Stub& stub, grpc::ClientContext& context,
                     const ExitReports::Options& options, const ExitReport& report) {
  v1::ReportExitRequest request;
  request.set_job(options.job);
  request.set_run_id(options.run_id);
  request.set_rank(report.rank);
  request.set_how(Words(report.how));
  request.set_then(Words(report.then));
  request.set_said(Words(report.said));
  v1::ReportExitReply reply;
  return stub.ReportExit(&context, request, &reply);
}

grpc::Status SendOne(v1::Coordinator::Stub& stub, grpc::ClientContext& context,
                     const ExitReports::Options& options, const StopReport& report) {
  v1::ReportStopRequest request;
  request.set_job(options.job);
  request.set_run_id(options.run_id);
  request.mutable_ranks()->Add(report.ranks.begin(), report.ranks.end());
  request.set_why(Words(report.why));
  request.set_host(Words(report.host));
  v1::ReportStopReply reply;
  return stub.ReportStop(&context, request, &reply);
}

}  // namespace

ExitReports::ExitReports(Options options)
    : options_(std::move(options)), thread_([this] { Run(); }) {}

ExitReports::~ExitReports() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void ExitReports::Add(Report report) {
  absl::MutexLock lock(&mutex_);
  if (reports_.size() < kMaxWaiting) reports_.push_back(std::move(report));
}

void ExitReports::Run() {
  bool answers = true;
  for (;;) {
    Report report;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [this] {
        mutex_.AssertHeld();
        return stopping_ || !reports_.empty();
      };
      mutex_.Await(absl::Condition(&has_work));
      if (stopping_ && (reports_.empty() || !answers)) return;
      report = std::move(reports_.front());
      reports_.pop_front();
    }
    answers = Send(report);
  }
}

// Returns false if the coordinator does not answer. A refusal is an answer.
bool ExitReports::Send(const Report& report) const {
  const auto channel =
      CreateChannel(options_.coordinator, options_.tls, RpcTimeouts::Default());
  if (!channel.ok()) return false;
  // The reason is not looked up, because that may take longer than the end of a run may
  // last.
  if (!(*channel)->WaitForConnected(DeadlineIn(kTimeout))) return false;
  const auto stub = v1::Coordinator::NewStub(*channel);
  grpc::ClientContext context;
  SetDeadline(context, kTimeout);
  const auto send = [&](const auto& one) {
    return SendOne(*stub, context, options_, one);
  };
  const grpc::Status sent = std::visit(send, report);
  return sent.error_code() != grpc::StatusCode::UNAVAILABLE &&
         sent.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED;
}

}  // namespace syncline
