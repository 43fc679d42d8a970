#include "worker/examples/fashion_mnist/session_exchange.h"

#include <algorithm>
#include <utility>

#include "comm/base/status.h"

namespace syncline::fashion_mnist {

absl::StatusOr<std::unique_ptr<SessionExchange>> SessionExchange::Join(
    std::span<const Parameter> parameters, const OptimizerSettings& optimizer,
    const Codecs& codecs) {
  SYNCLINE_ASSIGN_OR_RETURN(SessionOptions options, SessionOptions::FromEnv());
  options.training.optimizer = optimizer.optimizer;
  options.training.schedule = optimizer.schedule;
  options.training.gradient = optimizer.gradient;
  options.settings.push_codec = codecs.push;
  options.settings.publish_codec = codecs.publish;
  SYNCLINE_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Create(options));
  std::unique_ptr<SessionExchange> exchange(new SessionExchange(std::move(session)));
  SYNCLINE_RETURN_IF_ERROR(exchange->Declare(parameters));
  SYNCLINE_RETURN_IF_ERROR(exchange->session_->Start());
  exchange->step_ = static_cast<int64_t>(exchange->session_->step());
  return exchange;
}

SessionExchange::SessionExchange(std::unique_ptr<Session> session)
    : session_(std::move(session)) {}

absl::Status SessionExchange::Declare(std::span<const Parameter> parameters) {
  for (const Parameter& parameter : parameters) {
    const TensorOptions tensor{.name = parameter.name,
                               .shape = {parameter.shape.begin(), parameter.shape.end()}};
    SYNCLINE_ASSIGN_OR_RETURN(tensors_.emplace_back(),
                              session_->Declare(tensor, parameter.values));
  }
  return absl::OkStatus();
}

absl::Status SessionExchange::WaitForWeights(size_t parameter) {
  return session_->Wait(tensors_[parameter]);
}

absl::Status SessionExchange::PushGradient(size_t parameter,
                                           std::span<const float> gradient,
                                           int64_t samples) {
  return session_->PushPull(tensors_[parameter], gradient,
                            static_cast<uint32_t>(samples));
}

absl::Status SessionExchange::EndStep(const StepResult& result) {
  session_->ReportLoss(static_cast<uint64_t>(step_), result.loss,
                       static_cast<uint32_t>(result.samples));
  // The session counts the step when its last weights have landed, which the next forward
  // pass waits for, layer by layer. The next batch is prepared meanwhile.
  step_ = std::max(step_ + 1, static_cast<int64_t>(session_->step()));
  return absl::OkStatus();
}

Traffic SessionExchange::traffic() const {
  const SessionStats stats = session_->Stats();
  return {.bytes_pushed = static_cast<int64_t>(stats.bytes_pushed),
          .bytes_pulled = static_cast<int64_t>(stats.bytes_pulled)};
}

}  // namespace syncline::fashion_mnist
