#include "worker/client/session.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "worker/client/job_request.h"
#include "worker/client/session_impl.h"

namespace syncline {
namespace {

constexpr size_t kMaxWhyBytes = 500;

}  // namespace

absl::StatusOr<TensorId> Session::Impl::Declare(const TensorOptions& tensor,
                                                TensorMemory weights) {
  absl::MutexLock lock(&mutex_);
  if (was_started_) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", tensor.name, "' is declared after Start"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const size_t elements, CheckTensor(tensor));
  if (weights.data == nullptr && elements > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", tensor.name, "' has no memory for its weights"));
  }
  if (weights.device != nullptr) SYNCLINE_RETURN_IF_ERROR(weights.device->status());
  if (!names_.insert(tensor.name).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("tensor '", tensor.name, "' is declared already"));
  }
  tensors_.push_back({.options = tensor, .elements = elements, .memory = weights});
  ++unready_;
  return static_cast<TensorId>(tensors_.size() - 1);
}

absl::StatusOr<size_t> Session::Impl::ElementsOf(TensorId id) {
  absl::MutexLock lock(&mutex_);
  if (id < tensors_.size()) return tensors_[id].elements;
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no tensor number ", id, ", only ", tensors_.size(), " are declared"));
}

absl::Status Session::Impl::SetState(TensorId id, const SeedState& state) {
  SYNCLINE_ASSIGN_OR_RETURN(const size_t elements, ElementsOf(id));
  absl::MutexLock lock(&mutex_);
  if (was_started_) {
    return absl::FailedPreconditionError(
        "state can only be given before the session starts");
  }
  Tensor& tensor = tensors_[id];
  const bool fits = std::ranges::all_of(
      state.arrays, [&](const auto& array) { return array.size() == elements; });
  if (!fits || state.updates > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        tensor.options.name, ": its optimizer's state is ", state.arrays.size(),
        " arrays of ", elements, " numbers each, after at most 4294967295 updates"));
  }
  if (tensor.options.frozen && state.updates > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.options.name, ": it is frozen, and has no optimizer"));
  }
  tensor.state = state;
  return absl::OkStatus();
}

absl::Status Session::Impl::CheckRunning() const {
  if (!status_.ok()) return status_;
  if (phase_ == Phase::kDeclaring)
    return absl::FailedPreconditionError("the session is not started");
  if (phase_ != Phase::kRunning) {
    return absl::FailedPreconditionError("the session is over");
  }
  return absl::OkStatus();
}

bool Session::Impl::KeepsLate(TensorId id) {
  absl::MutexLock lock(&mutex_);
  return id < tensors_.size() && tensors_[id].keeps_late;
}

bool Session::Impl::IsReady(TensorId id) {
  absl::MutexLock lock(&mutex_);
  return IsOver() || (id < tensors_.size() && tensors_[id].ready);
}

float Session::Impl::loss_scale() {
  absl::MutexLock lock(&mutex_);
  return data_plane_ == nullptr ? 1.0f : data_plane_->loss_scale();
}

ContributionKind Session::Impl::expects() {
  absl::MutexLock lock(&mutex_);
  const TrainingOptions& training = options_.training;
  const bool on_server = training.accumulate_on == TrainingOptions::Accumulate::kServer;
  const uint64_t update = step_ / (on_server ? training.accumulate_steps : 1);
  return contributions_.KindAt(update);
}

uint64_t Session::Impl::step() {
  absl::MutexLock lock(&mutex_);
  return step_;
}

SessionStats Session::Impl::Stats() {
  absl::MutexLock lock(&mutex_);
  SessionStats stats{.epoch = epoch_,
                     .members = members_,
                     .slowest = slowest_,
                     .phases = phases_.sums()};
  if (data_plane_ == nullptr) return stats;
  const ExchangeStats exchange = data_plane_->stats();
  stats.bytes_pushed = exchange.bytes_pushed;
  stats.bytes_pulled = exchange.bytes_pulled;
  stats.resent_blocks = exchange.resent_blocks;
  stats.late_steps = exchange.late_steps;
  stats.foreign_messages = exchange.foreign_messages;
  return stats;
}

std::string Session::Impl::device_codecs() {
  absl::MutexLock lock(&mutex_);
  return device_codecs_;
}

// ---- Leaving ----

bool Session::Impl::AwaitAllReady(absl::Duration deadline) {
  while (!AllReady() && !IsOver()) {
    if (!changed_.WaitUntil(mutex_, clock_, deadline)) break;
  }
  return AllReady();
}

// Sends error feedback to the servers, if they accept it in time.
absl::StatusOr<std::string> Session::Impl::Part() {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckRunning());
  const absl::Duration deadline = clock_.Now() + options_.failure_timeout;
  // Wait for the present step. When this worker leaves, the servers drop its
  // contributions to unfinished steps, which could be some blocks of the last push and
  // not others. Do not wait for a step in which only some tensors were pushed, because it
  // never ends.
  const bool ends = has_delays() || IsBetweenSteps();
  bool is_quiet = ends ? AwaitAllReady(deadline) : AllReady();
  if (is_quiet && has_delays()) {
    Settle();
    is_quiet = AwaitAllReady(deadline);
  }
  if (is_quiet) data_plane_->Part();
  while (is_quiet && !IsOver() && !parted_) {
    if (!changed_.WaitUntil(mutex_, clock_, deadline)) break;
  }
  std::string lost;
  if (is_quiet && !parted_) {
    lost = "the servers had not received everything yet that compression had held back";
  } else if (!is_quiet && ends) {
    lost = "its last step had not ended, and its last contributions may be lost";
  }
  if (!lost.empty() && !IsOver()) {
    options_.log.Warning(
        absl::StrCat("left before all was done: ", lost),
        {{"rank", options_.rank}, {"mode", FormatNamedOptions(options_.training.mode)}});
  }
  SYNCLINE_RETURN_IF_ERROR(CheckRunning());
  phase_ = Phase::kEnding;
  return lost;
}

void Session::Impl::SayGoodbye(const std::string& why) {
  v1::MemberMessage message;
  message.mutable_leave()->set_why(Printable(why, kMaxWhyBytes));
  link_->Send(message);
}

absl::Status Session::Impl::Leave() {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string lost, Part());
  link_->Send(Beat());  // with the last step, for `syncline status`
  EndTrace();
  SayGoodbye(lost);
  Stop(timeouts_.shutdown_grace);
  return absl::OkStatus();
}

void Session::Impl::Stop(absl::Duration grace) {
  {
    absl::MutexLock lock(&mutex_);
    if (phase_ != Phase::kOver) phase_ = Phase::kEnding;
  }
  if (data_plane_ != nullptr) data_plane_->Stop();
  {
    absl::MutexLock lock(&mutex_);
    phase_ = Phase::kOver;
    changed_.SignalAll();
    over_.SignalAll();
  }
  if (link_ != nullptr) link_->Close(grace);
  if (heart_.joinable()) heart_.join();
}

// ---- Public interface ----

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

absl::StatusOr<std::unique_ptr<Session>> Session::Create(const SessionOptions& options) {
  SYNCLINE_RETURN_IF_ERROR(CheckSessionOptions(options));
  return std::unique_ptr<Session>(new Session(std::make_unique<Impl>(options)));
}

absl::StatusOr<TensorId> Session::Declare(const TensorOptions& tensor,
                                          std::span<float> weights) {
  SYNCLINE_RETURN_IF_ERROR(CheckTensor(tensor, weights.size()));
  return impl_->Declare(tensor, {.data = weights.data(), .dtype = DType::kF32});
}
absl::StatusOr<TensorId> Session::Declare(const TensorOptions& tensor,
                                          TensorMemory weights) {
  return impl_->Declare(tensor, weights);
}
absl::Status Session::Start(absl::Duration timeout) {
  // Warn here and not in Create, because some sessions only check declarations.
  for (const std::string& warning : SessionWarnings(impl_->options())) {
    impl_->options().log.Warning(warning, {});
  }
  return impl_->Start(timeout);
}
absl::Status Session::PushPull(TensorId tensor, std::span<const float> gradient,
                               uint32_t samples) {
  return impl_->PushPull(tensor, gradient, samples);
}
absl::Status Session::PushPull(TensorId tensor, ConstTensorMemory gradient,
                               uint32_t samples) {
  return impl_->PushPull(tensor, gradient, samples);
}
absl::Status Session::ScaleLearningRate(TensorId tensor, double factor) {
  return impl_->ScaleLearningRate(tensor, factor);
}
absl::StatusOr<std::shared_ptr<void>> Session::AllocateTensor(size_t elements,
                                                              DType dtype) {
  return impl_->AllocateTensor(elements, dtype);
}
absl::Status Session::Skip(TensorId tensor) { return impl_->Skip({&tensor, 1}); }
absl::Status Session::Skip(std::span<const TensorId> tensors) {
  return impl_->Skip(tensors);
}
absl::Status Session::Wait(TensorId tensor, absl::Duration timeout) {
  return impl_->Wait(tensor, timeout);
}
absl::Status Session::WaitAll(absl::Duration timeout) { return impl_->WaitAll(timeout); }
absl::Status Session::PullAverage(TensorId tensor, std::span<float> out,
                                  absl::Duration timeout) {
  return impl_->PullAverage(tensor, out, timeout);
}
absl::StatusOr<uint64_t> Session::PullState(StateArray array, std::span<float> out,
                                            absl::Duration timeout) {
  return impl_->PullState(array, out, timeout);
}
absl::Status Session::SetState(TensorId tensor, const SeedState& state) {
  return impl_->SetState(tensor, state);
}
void Session::Cancel() { impl_->Cancel(); }
void Session::Uncancel() { impl_->Uncancel(); }
bool Session::KeepsLate(TensorId tensor) const { return impl_->KeepsLate(tensor); }
bool Session::IsReady(TensorId tensor) const { return impl_->IsReady(tensor); }
absl::Status Session::PushPullAndWait(TensorId tensor, std::span<const float> gradient,
                                      uint32_t samples) {
  SYNCLINE_RETURN_IF_ERROR(impl_->PushPull(tensor, gradient, samples));
  return impl_->Wait(tensor, absl::InfiniteDuration());
}
uint64_t Session::step() const { return impl_->step(); }
float Session::loss_scale() const { return impl_->loss_scale(); }
ContributionKind Session::expects() const { return impl_->expects(); }
uint32_t Session::rank() const { return impl_->options().rank; }
uint32_t Session::world_size() const { return impl_->options().world_size; }
absl::StatusOr<size_t> Session::ElementsOf(TensorId tensor) const {
  return impl_->ElementsOf(tensor);
}
std::string Session::device_codecs() const { return impl_->device_codecs(); }
absl::Status Session::Undeclare(TensorId tensor) { return impl_->Undeclare(tensor); }
SessionStats Session::Stats() const { return impl_->Stats(); }
void Session::ReportLoss(uint64_t step, double loss, uint32_t samples) {
  impl_->ReportLoss(step, loss, samples);
}
bool Session::BeginPass(ModelPass pass) { return impl_->BeginPass(pass); }
void Session::EndPass() { impl_->EndPass(); }
absl::Status Session::Barrier(absl::Duration timeout) { return impl_->Barrier(timeout); }
absl::Status Session::Leave() { return impl_->Leave(); }
absl::Status Session::SaveResiduals(const std::string& path) {
  return impl_->SaveResiduals(path);
}
absl::Status Session::RestoreResiduals(const std::string& path) {
  return impl_->RestoreResiduals(path);
}

}  // namespace syncline
