#include "worker/client/session.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/codec/codec.h"
#include "comm/rpc/address.h"
#include "comm/rpc/attach_stream.h"
#include "worker/client/data_plane.h"
#include "worker/client/job_request.h"

namespace syncline {
namespace {

// A process that missed so many of its own heartbeats did not run meanwhile.
constexpr int kStandstillBeats = 3;

}  // namespace
class Session::Impl {
 public:
  explicit Impl(const SessionOptions& options)
      : options_(options),
        timeouts_(Timeouts::Derive(options.failure_timeout)),
        codecs_(CodecRegistry::Builtin()) {}

  ~Impl() { Stop(absl::ZeroDuration()); }

  const SessionOptions& options() const { return options_; }

  absl::StatusOr<TensorId> Declare(const TensorOptions& tensor, std::span<float> weights);
  absl::Status Start() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status PushPull(TensorId tensor, std::span<const float> gradient,
                        uint32_t samples) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Wait(TensorId tensor) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status WaitAll() ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsReady(TensorId tensor) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Barrier() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t step() ABSL_LOCKS_EXCLUDED(mutex_);
  SessionStats Stats() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Phase { kDeclaring, kRunning, kOver };

  struct Tensor {
    TensorOptions options;
    std::span<float> weights;
    bool ready = false;
    uint64_t version = 0;  // counts what Wait has let through
  };

  absl::Status AwaitStart() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AwaitWelcome(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status StartDataPlane() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<ExchangeOptions> MakeExchangeOptions(
      const v1::WorkerWelcome& welcome) const;
  void OnMessage(const v1::CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEpochChanged(const v1::EpochChanged& change) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnReady(uint32_t tensor) ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void BeatUntilOver() ABSL_LOCKS_EXCLUDED(mutex_);
  v1::MemberMessage Beat() ABSL_LOCKS_EXCLUDED(mutex_);
  void Stop(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckRunning() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !status_.ok() || phase_ == Phase::kOver;
  }
  SeedRole seed_role() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return is_seeder_ ? SeedRole::kSeeder : SeedRole::kReceiver;
  }
  uint64_t StepLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionOptions options_;
  const Timeouts timeouts_;
  const CodecRegistry codecs_;
  std::unique_ptr<AttachStream> stream_;
  std::unique_ptr<DataPlane> data_plane_;  // set before phase_ becomes kRunning
  std::thread heart_;

  absl::Mutex mutex_;
  absl::CondVar changed_;  // anything that a user's call may wait for
  absl::CondVar over_;     // IsOver() became true: the heart wakes for nothing else
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kDeclaring;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<Tensor> tensors_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<v1::WorkerWelcome> welcome_ ABSL_GUARDED_BY(mutex_);
  std::string waiting_for_ ABSL_GUARDED_BY(mutex_);
  bool is_seeder_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t members_ ABSL_GUARDED_BY(mutex_) = 0;
  int waiters_ ABSL_GUARDED_BY(mutex_) = 0;  // user threads blocked on other members
  absl::Time last_beat_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration longest_silence_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  uint64_t barriers_entered_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t barriers_released_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::StatusOr<TensorId> Session::Impl::Declare(const TensorOptions& tensor,
                                                std::span<float> weights) {
  absl::MutexLock lock(&mutex_);
  if (phase_ != Phase::kDeclaring) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", tensor.name, "' is declared after Start"));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckTensor(tensor, weights.size()));
  if (!names_.insert(tensor.name).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("tensor '", tensor.name, "' is declared already"));
  }
  tensors_.push_back({.options = tensor, .weights = weights});
  return static_cast<TensorId>(tensors_.size() - 1);
}

absl::Status Session::Impl::Start() {
  std::vector<TensorOptions> tensors;
  {
    absl::MutexLock lock(&mutex_);
    if (phase_ != Phase::kDeclaring || stream_ != nullptr) {
      return absl::FailedPreconditionError("the session was started before");
    }
    if (tensors_.empty()) return absl::FailedPreconditionError("no tensor is declared");
    for (const Tensor& tensor : tensors_) tensors.push_back(tensor.options);
    last_beat_ = absl::Now();
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      stream_, AttachStream::Open(
                   {.address = options_.coordinator,
                    .tls = {.cert_file = options_.tls_cert,
                            .key_file = options_.tls_key,
                            .ca_file = options_.tls_ca},
                    .timeouts = timeouts_},
                   {.on_message = [this](const auto& message) { OnMessage(message); },
                    .on_end = [this](const absl::Status& status) { Fail(status); }}));
  stream_->Send(MakeHello(options_, tensors));
  heart_ = std::thread([this] { BeatUntilOver(); });
  const absl::Status started = AwaitStart();
  if (!started.ok()) Stop(absl::ZeroDuration());
  return started;
}

absl::Status Session::Impl::AwaitStart() {
  SYNCLINE_RETURN_IF_ERROR(AwaitWelcome(absl::Now() + options_.start_timeout));
  SYNCLINE_RETURN_IF_ERROR(StartDataPlane());
  return WaitAll();
}

absl::Status Session::Impl::AwaitWelcome(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  while (status_.ok() && welcome_ == nullptr) {
    if (changed_.WaitWithDeadline(&mutex_, deadline)) {
      return absl::DeadlineExceededError(absl::StrCat(
          "job '", options_.job, "' did not begin within ",
          absl::FormatDuration(options_.start_timeout), ": ",
          waiting_for_.empty() ? "the coordinator did not answer" : waiting_for_));
    }
  }
  return status_;
}

absl::StatusOr<ExchangeOptions> Session::Impl::MakeExchangeOptions(
    const v1::WorkerWelcome& welcome) const {
  ExchangeOptions exchange{
      .job = welcome.job(),
      .rank = options_.rank,
      .incarnation = welcome.incarnation(),
      .session_key = welcome.session_key(),
      .epoch = welcome.epoch(),
      .first_step = welcome.first_step(),
      .role = welcome.seeder() ? SeedRole::kSeeder : SeedRole::kReceiver,
      .shards = static_cast<uint32_t>(welcome.shard_addresses_size()),
      .shard_of_block = {welcome.shard_of_block().begin(),
                         welcome.shard_of_block().end()},
      .retry = timeouts_.push_retry};
  SYNCLINE_ASSIGN_OR_RETURN(exchange.push_codec, codecs_.FindByName(options_.push_codec));
  SYNCLINE_ASSIGN_OR_RETURN(exchange.publish_codec,
                            codecs_.FindByName(options_.publish_codec));
  SYNCLINE_ASSIGN_OR_RETURN(exchange.seed_codec, codecs_.Find(CodecId::kFp32));
  return exchange;
}

absl::Status Session::Impl::StartDataPlane() {
  std::vector<std::span<float>> weights;
  std::vector<uint64_t> elements;
  std::unique_ptr<v1::WorkerWelcome> welcome;
  {
    absl::MutexLock lock(&mutex_);
    welcome = std::move(welcome_);
    for (Tensor& tensor : tensors_) {
      weights.push_back(tensor.weights);
      elements.push_back(tensor.weights.size());
      tensor.version = welcome->first_step();
    }
  }
  SYNCLINE_RETURN_IF_ERROR(CheckPlacement(*welcome, elements));
  SYNCLINE_ASSIGN_OR_RETURN(ExchangeOptions exchange, MakeExchangeOptions(*welcome));
  SYNCLINE_ASSIGN_OR_RETURN(const HostPort coordinator,
                            ParseHostPort(options_.coordinator));
  DataPlaneOptions options{
      .reach = IsLoopback(coordinator.host) ? Reach::kHostOnly : Reach::kNetwork,
      .timeouts = timeouts_,
      .shard_addresses = {welcome->shard_addresses().begin(),
                          welcome->shard_addresses().end()},
      .exchange = std::move(exchange),
      .log = options_.log};
  SYNCLINE_ASSIGN_OR_RETURN(
      auto data_plane,
      DataPlane::Start(
          std::move(options), std::move(weights),
          {.on_ready = [this](uint32_t tensor) { OnReady(tensor); },
           .on_failed = [this](const absl::Status& status) { Fail(status); }}));
  absl::MutexLock lock(&mutex_);
  data_plane_ = std::move(data_plane);
  data_plane_->EpochChanged(epoch_, seed_role());  // it may have changed meanwhile
  if (phase_ == Phase::kDeclaring) phase_ = Phase::kRunning;
  return status_;
}

// ---- Control plane ----

void Session::Impl::OnMessage(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kWaiting: {
      options_.log.Info(message.waiting().reason());
      absl::MutexLock lock(&mutex_);
      waiting_for_ = message.waiting().reason();
      return;
    }
    case v1::CoordinatorMessage::kWorkerWelcome: {
      absl::MutexLock lock(&mutex_);
      welcome_ = std::make_unique<v1::WorkerWelcome>(message.worker_welcome());
      epoch_ = message.worker_welcome().epoch();
      members_ = message.worker_welcome().members();
      is_seeder_ = message.worker_welcome().seeder();
      changed_.SignalAll();
      return;
    }
    case v1::CoordinatorMessage::kEpochChanged:
      return OnEpochChanged(message.epoch_changed());
    case v1::CoordinatorMessage::kBarrierReleased: {
      absl::MutexLock lock(&mutex_);
      barriers_released_ =
          std::max(barriers_released_, message.barrier_released().barrier() + 1);
      changed_.SignalAll();
      return;
    }
    case v1::CoordinatorMessage::kJobFailed:
      return Fail(WithFailure(
          absl::UnavailableError(absl::StrCat(
              "job '", options_.job, "' failed: ", message.job_failed().reason())),
          Failure::kRetryable));
    default:
      return;  // for servers
  }
}

void Session::Impl::OnEpochChanged(const v1::EpochChanged& change) {
  options_.log.Info("epoch changed", {{"epoch", change.epoch()},
                                      {"members", change.members()},
                                      {"reason", std::string_view(change.reason())}});
  absl::MutexLock lock(&mutex_);
  epoch_ = change.epoch();
  members_ = change.members();
  is_seeder_ = change.seeder();
  if (data_plane_ != nullptr) data_plane_->EpochChanged(epoch_, seed_role());
}

v1::MemberMessage Session::Impl::Beat() {
  v1::MemberMessage message;
  v1::Heartbeat& beat = *message.mutable_heartbeat();
  absl::MutexLock lock(&mutex_);
  longest_silence_ = std::max(longest_silence_, absl::Now() - last_beat_);
  last_beat_ = absl::Now();
  beat.set_step(StepLocked());
  if (data_plane_ != nullptr) {
    const ExchangeStats stats = data_plane_->stats();
    beat.set_bytes(stats.bytes_pushed + stats.bytes_pulled);
    beat.set_waiting(waiters_ > 0 && data_plane_->all_held());
  }
  return message;
}

void Session::Impl::BeatUntilOver() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const absl::Time next = absl::Now() + timeouts_.heartbeat_interval;
      while (!IsOver() && !over_.WaitWithDeadline(&mutex_, next)) {
      }
      if (IsOver()) return;
    }
    if (!stream_->Send(Beat())) return;
  }
}

void Session::Impl::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok() || phase_ == Phase::kOver) return;
  status_ =
      status.ok() ? absl::UnavailableError("the coordinator ended the session") : status;
  // A process that was stopped finds its connection dead before it can read why.
  const absl::Duration silent = std::max(longest_silence_, absl::Now() - last_beat_);
  if (absl::IsUnavailable(status) &&
      silent > kStandstillBeats * timeouts_.heartbeat_interval) {
    status_ = absl::AbortedError(
        absl::StrCat("worker ", options_.rank, " was dropped from job '", options_.job,
                     "': it stood still for ",
                     absl::FormatDuration(absl::Trunc(silent, absl::Milliseconds(1))),
                     "; connect again to rejoin"));
  }
  changed_.SignalAll();
  over_.SignalAll();
}

// ---- Data plane ----

void Session::Impl::OnReady(uint32_t tensor) {
  absl::MutexLock lock(&mutex_);
  tensors_[tensor].ready = true;
  changed_.SignalAll();
}

absl::Status Session::Impl::CheckRunning() const {
  if (!status_.ok()) return status_;
  if (phase_ == Phase::kDeclaring)
    return absl::FailedPreconditionError("the session is not started");
  if (phase_ == Phase::kOver) return absl::FailedPreconditionError("the session is over");
  return absl::OkStatus();
}

absl::Status Session::Impl::PushPull(TensorId id, std::span<const float> gradient,
                                     uint32_t samples) {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckRunning());
  if (id >= tensors_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no tensor number ", id, ", only ", tensors_.size(), " are declared"));
  }
  Tensor& tensor = tensors_[id];
  if (gradient.size() != tensor.weights.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gradient of tensor '", tensor.options.name, "' has ", gradient.size(),
        " elements, the tensor has ", tensor.weights.size()));
  }
  if (samples == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient of tensor '", tensor.options.name,
                     "' is the mean of 0 samples; at least 1 is needed"));
  }
  if (!tensor.ready) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", tensor.options.name,
                     "' is pushed again before Wait, at step ", tensor.version));
  }
  tensor.ready = false;
  ++tensor.version;
  data_plane_->Push(id, gradient, samples);
  return absl::OkStatus();
}

absl::Status Session::Impl::Wait(TensorId id) {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckRunning());
  if (id >= tensors_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no tensor number ", id));
  }
  ++waiters_;
  while (!IsOver() && !tensors_[id].ready) changed_.Wait(&mutex_);
  --waiters_;
  return CheckRunning();
}

absl::Status Session::Impl::WaitAll() {
  size_t tensors = 0;
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(CheckRunning());
    tensors = tensors_.size();
  }
  for (size_t id = 0; id < tensors; ++id) {
    SYNCLINE_RETURN_IF_ERROR(Wait(static_cast<TensorId>(id)));
  }
  return absl::OkStatus();
}

bool Session::Impl::IsReady(TensorId id) {
  absl::MutexLock lock(&mutex_);
  return id < tensors_.size() && tensors_[id].ready;
}

uint64_t Session::Impl::StepLocked() const {
  if (tensors_.empty()) return 0;
  return std::min_element(
             tensors_.begin(), tensors_.end(),
             [](const Tensor& a, const Tensor& b) { return a.version < b.version; })
      ->version;
}

uint64_t Session::Impl::step() {
  absl::MutexLock lock(&mutex_);
  return StepLocked();
}

SessionStats Session::Impl::Stats() {
  absl::MutexLock lock(&mutex_);
  SessionStats stats{.epoch = epoch_, .members = members_};
  if (data_plane_ == nullptr) return stats;
  const ExchangeStats exchange = data_plane_->stats();
  stats.bytes_pushed = exchange.bytes_pushed;
  stats.bytes_pulled = exchange.bytes_pulled;
  stats.resent_blocks = exchange.resent_blocks;
  return stats;
}

// ---- Barrier and goodbye ----

absl::Status Session::Impl::Barrier() {
  v1::MemberMessage message;
  uint64_t barrier = 0;
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(CheckRunning());
    barrier = barriers_entered_++;
  }
  message.mutable_barrier_entered()->set_barrier(barrier);
  stream_->Send(message);
  absl::MutexLock lock(&mutex_);
  ++waiters_;
  while (!IsOver() && barriers_released_ <= barrier) changed_.Wait(&mutex_);
  --waiters_;
  return CheckRunning();
}

absl::Status Session::Impl::Leave() {
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(CheckRunning());
    phase_ = Phase::kOver;
  }
  v1::MemberMessage message;
  message.mutable_leave();
  stream_->Send(message);
  Stop(timeouts_.shutdown_grace);
  return absl::OkStatus();
}

void Session::Impl::Stop(absl::Duration grace) {
  {
    absl::MutexLock lock(&mutex_);
    phase_ = Phase::kOver;
    changed_.SignalAll();
    over_.SignalAll();
  }
  if (stream_ != nullptr) stream_->Close(grace);
  if (heart_.joinable()) heart_.join();
  if (data_plane_ != nullptr) data_plane_->Stop();
}

// ---- Facade ----

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

absl::StatusOr<std::unique_ptr<Session>> Session::Create(const SessionOptions& options) {
  SYNCLINE_RETURN_IF_ERROR(CheckSessionOptions(options));
  return std::unique_ptr<Session>(new Session(std::make_unique<Impl>(options)));
}

absl::StatusOr<TensorId> Session::Declare(const TensorOptions& tensor,
                                          std::span<float> weights) {
  return impl_->Declare(tensor, weights);
}
absl::Status Session::Start() { return impl_->Start(); }
absl::Status Session::PushPull(TensorId tensor, std::span<const float> gradient,
                               uint32_t samples) {
  return impl_->PushPull(tensor, gradient, samples);
}
absl::Status Session::Wait(TensorId tensor) { return impl_->Wait(tensor); }
absl::Status Session::WaitAll() { return impl_->WaitAll(); }
bool Session::IsReady(TensorId tensor) const { return impl_->IsReady(tensor); }
absl::Status Session::PushPullAndWait(TensorId tensor, std::span<const float> gradient,
                                      uint32_t samples) {
  SYNCLINE_RETURN_IF_ERROR(impl_->PushPull(tensor, gradient, samples));
  return impl_->Wait(tensor);
}
uint64_t Session::step() const { return impl_->step(); }
uint32_t Session::rank() const { return impl_->options().rank; }
uint32_t Session::world_size() const { return impl_->options().world_size; }
SessionStats Session::Stats() const { return impl_->Stats(); }
absl::Status Session::Barrier() { return impl_->Barrier(); }
absl::Status Session::Leave() { return impl_->Leave(); }

}  // namespace syncline
