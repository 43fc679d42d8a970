#include "worker/client/session.h"

#include <string.h>

#include <algorithm>
#include <span>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "comm/base/job_seed.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "comm/rpc/channel.h"
#include "worker/client/job_request.h"
#include "worker/client/session_impl.h"

namespace syncline {
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
    if (phase_ != Phase::kDeclaring || link_ != nullptr) {
      return absl::FailedPreconditionError("the session was started before");
    }
    if (tensors_.empty()) return absl::FailedPreconditionError("no tensor is declared");
    for (const Tensor& tensor : tensors_) tensors.push_back(tensor.options);
  }
  // What matters comes back as a status, in one line.
  static absl::once_flag once;
  absl::call_once(once, SilenceGrpcLog);
  Announcement announcement = MakeAnnouncement(options_, tensors);
  link_ = ControlLink::Open(
      {.attach = {.address = options_.coordinator,
                  .tls = {.cert_file = options_.tls_cert,
                          .key_file = options_.tls_key,
                          .ca_file = options_.tls_ca},
                  .timeouts = timeouts_},
       .hello = std::move(announcement.hello),
       .patience = options_.start_timeout,
       .log = options_.log},
      {.on_message = [this](const auto& message) { OnMessage(message); },
       .on_end = [this](const absl::Status& status) { Fail(status); }});
  heart_ = std::thread([this] { BeatUntilOver(); });
  const absl::Status started = AwaitStart(announcement.declaration);
  if (!started.ok()) Stop(absl::ZeroDuration());
  return started;
}

absl::Status Session::Impl::AwaitStart(const v1::MemberMessage& declaration) {
  SYNCLINE_RETURN_IF_ERROR(
      AwaitWelcome(declaration, clock_.Now() + options_.start_timeout));
  SYNCLINE_RETURN_IF_ERROR(StartDataPlane());
  return WaitAll();
}

// Sends what the job is when the coordinator asks for it.
absl::Status Session::Impl::AwaitWelcome(const v1::MemberMessage& declaration,
                                         absl::Duration deadline) {
  absl::MutexLock lock(&mutex_);
  while (status_.ok() && welcome_ == nullptr) {
    if (std::exchange(is_asked_for_job_, false)) {
      link_->Send(declaration);
      continue;
    }
    if (!changed_.WaitUntil(mutex_, clock_, deadline)) {
      if (!link_->was_attached()) return link_->Unreachable();
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
      .seed = JobSeed(options_.job),
      .rank = options_.rank,
      .incarnation = welcome.incarnation(),
      .session_key = welcome.session_key(),
      .epoch = welcome.epoch(),
      .first_step = welcome.first_step(),
      .role = welcome.seeder() ? SeedRole::kSeeder : SeedRole::kReceiver,
      .retry = timeouts_.push_retry,
      .follow_learning_rate = FollowsLearningRate(options_.training)};
  SYNCLINE_ASSIGN_OR_RETURN(exchange.seed_codec, codecs_.Find(CodecId::kFp32));
  return exchange;
}

// They are erased from the message.
std::vector<SecretKey> TakeKeys(v1::WorkerWelcome& welcome) {
  std::vector<SecretKey> keys;
  for (std::string& key : *welcome.mutable_shard_keys()) {
    keys.push_back(SecretKey::From(std::as_bytes(std::span(key))).value_or(SecretKey()));
    explicit_bzero(key.data(), key.size());
  }
  return keys;
}

absl::Status Session::Impl::StartDataPlane() {
  std::vector<std::span<float>> weights;
  std::vector<uint64_t> elements;
  std::vector<bool> frozen;
  std::vector<Transfer::Shape> shapes;
  std::unique_ptr<v1::WorkerWelcome> welcome;
  {
    absl::MutexLock lock(&mutex_);
    welcome = std::move(welcome_);
    for (Tensor& tensor : tensors_) {
      frozen.push_back(tensor.options.frozen);
      weights.push_back(tensor.weights);
      elements.push_back(tensor.weights.size());
      shapes.push_back(Transfer::ShapeOf(tensor.options.name, tensor.options.shape));
    }
    BeginAt(welcome->first_step());
  }
  SYNCLINE_ASSIGN_OR_RETURN(JobLayout layout, ReadLayout(*welcome, elements));
  SYNCLINE_ASSIGN_OR_RETURN(ExchangeOptions exchange, MakeExchangeOptions(*welcome));
  exchange.shards = static_cast<uint32_t>(layout.shard_addresses.size());
  exchange.shard_of_block = std::move(layout.shard_of_block);
  exchange.frozen = std::move(frozen);
  SYNCLINE_ASSIGN_OR_RETURN(
      exchange.transfers,
      ParseTransfers(options_.push_codec, options_.publish_codec, shapes));
  DataPlaneOptions options{.timeouts = timeouts_,
                           .shard_addresses = std::move(layout.shard_addresses),
                           .shard_keys = TakeKeys(*welcome),
                           .exchange = std::move(exchange),
                           .log = options_.log};
  SYNCLINE_ASSIGN_OR_RETURN(
      auto data_plane,
      DataPlane::Start(std::move(options), std::move(weights),
                       {.on_ready = [this](uint32_t tensor) { OnReady(tensor); },
                        .on_failed = [this](const absl::Status& status) { Fail(status); },
                        .on_averaged =
                            [this](ExchangeAveraged averaged) {
                              absl::MutexLock lock(&mutex_);
                              averaged_ = std::move(averaged);
                              changed_.SignalAll();
                            },
                        .on_parted =
                            [this] {
                              absl::MutexLock lock(&mutex_);
                              parted_ = true;
                              changed_.SignalAll();
                            }}));
  absl::MutexLock lock(&mutex_);
  data_plane_ = std::move(data_plane);
  data_plane_->EpochChanged(epoch_, seed_role());  // it may have changed meanwhile
  if (phase_ == Phase::kDeclaring) phase_ = Phase::kRunning;
  return status_;
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
  if (phase_ != Phase::kRunning) {
    return absl::FailedPreconditionError("the session is over");
  }
  return absl::OkStatus();
}

// Also while the session ends: until then the tensor's memory may be in use.
absl::Status Session::Impl::Wait(TensorId id) {
  absl::MutexLock lock(&mutex_);
  if (phase_ == Phase::kDeclaring) return CheckRunning();
  if (id >= tensors_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no tensor number ", id));
  }
  ++waiters_;
  while (!IsOver() && !tensors_[id].ready) changed_.Wait(mutex_);
  --waiters_;
  return CheckRunning();
}

absl::Status Session::Impl::WaitAll() {
  size_t tensors = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (phase_ == Phase::kDeclaring) return CheckRunning();
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
  SessionStats stats{.epoch = epoch_, .members = members_};
  if (data_plane_ == nullptr) return stats;
  const ExchangeStats exchange = data_plane_->stats();
  stats.bytes_pushed = exchange.bytes_pushed;
  stats.bytes_pulled = exchange.bytes_pulled;
  stats.resent_blocks = exchange.resent_blocks;
  return stats;
}

// One at a time; others wait for their turn.
absl::Status Session::Impl::PullAverage(TensorId id, std::span<float> out) {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckRunning());
  if (id >= tensors_.size() || out.size() != tensors_[id].weights.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no tensor number ", id, " of ", out.size(), " elements"));
  }
  ++waiters_;
  while (!IsOver() && average_under_way_) changed_.Wait(mutex_);
  average_under_way_ = true;
  averaged_.reset();
  if (!IsOver()) data_plane_->PullAverage(id);
  while (!IsOver() && !averaged_) changed_.Wait(mutex_);
  --waiters_;
  average_under_way_ = false;
  changed_.SignalAll();
  if (IsOver()) return CheckRunning();
  if (averaged_->status.ok()) std::ranges::copy(averaged_->weights, out.begin());
  return averaged_->status;
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
  link_->Send(message);
  absl::MutexLock lock(&mutex_);
  ++waiters_;
  while (!IsOver() && barriers_released_ <= barrier) changed_.Wait(mutex_);
  --waiters_;
  return CheckRunning();
}

// Hands over what lossy encodings have kept, if the servers take it in time.
absl::Status Session::Impl::Part() {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckRunning());
  const bool is_quiet = std::ranges::all_of(tensors_, &Tensor::ready);
  if (is_quiet) data_plane_->Part();
  const absl::Duration deadline = clock_.Now() + options_.failure_timeout;
  while (is_quiet && !IsOver() && !parted_) {
    if (!changed_.WaitUntil(mutex_, clock_, deadline)) break;
  }
  if (is_quiet && !IsOver() && !parted_) {
    options_.log.Warning("left before the servers held all that compression had kept",
                         {{"rank", options_.rank}});
  }
  SYNCLINE_RETURN_IF_ERROR(CheckRunning());
  phase_ = Phase::kEnding;
  return absl::OkStatus();
}

absl::Status Session::Impl::Leave() {
  SYNCLINE_RETURN_IF_ERROR(Part());
  v1::MemberMessage message;
  link_->Send(Beat());  // with the last step, for `syncline status`
  message.mutable_leave();
  link_->Send(message);
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

// ---- Facade ----

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

absl::StatusOr<std::unique_ptr<Session>> Session::Create(const SessionOptions& options) {
  SYNCLINE_RETURN_IF_ERROR(CheckSessionOptions(options));
  for (const std::string& warning : SessionWarnings(options)) {
    options.log.Warning(warning, {});
  }
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
absl::Status Session::Skip(TensorId tensor) { return impl_->Skip({&tensor, 1}); }
absl::Status Session::Skip(std::span<const TensorId> tensors) {
  return impl_->Skip(tensors);
}
absl::Status Session::Wait(TensorId tensor) { return impl_->Wait(tensor); }
absl::Status Session::WaitAll() { return impl_->WaitAll(); }
absl::Status Session::PullAverage(TensorId tensor, std::span<float> out) {
  return impl_->PullAverage(tensor, out);
}
bool Session::IsReady(TensorId tensor) const { return impl_->IsReady(tensor); }
absl::Status Session::PushPullAndWait(TensorId tensor, std::span<const float> gradient,
                                      uint32_t samples) {
  SYNCLINE_RETURN_IF_ERROR(impl_->PushPull(tensor, gradient, samples));
  return impl_->Wait(tensor);
}
uint64_t Session::step() const { return impl_->step(); }
float Session::loss_scale() const { return impl_->loss_scale(); }
ContributionKind Session::expects() const { return impl_->expects(); }
uint32_t Session::rank() const { return impl_->options().rank; }
uint32_t Session::world_size() const { return impl_->options().world_size; }
SessionStats Session::Stats() const { return impl_->Stats(); }
void Session::ReportLoss(uint64_t step, double loss, uint32_t samples) {
  impl_->ReportLoss(step, loss, samples);
}
absl::Status Session::Barrier() { return impl_->Barrier(); }
absl::Status Session::Leave() { return impl_->Leave(); }
absl::Status Session::SaveResiduals(const std::string& path) {
  return impl_->SaveResiduals(path);
}
absl::Status Session::RestoreResiduals(const std::string& path) {
  return impl_->RestoreResiduals(path);
}

}  // namespace syncline
