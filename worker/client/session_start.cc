// The part of a session that joins the job: hello, welcome, data plane, first weights.
#include <string.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "comm/base/job_seed.h"
#include "comm/base/patience.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "comm/rpc/channel.h"
#include "worker/client/device_ways.h"
#include "worker/client/job_request.h"
#include "worker/client/session_impl.h"

namespace syncline {

absl::Status Session::Impl::Start(absl::Duration timeout) {
  std::vector<TensorOptions> tensors;
  Call call = {};
  {
    absl::MutexLock lock(&mutex_);
    if (was_started_) {
      return absl::FailedPreconditionError("the session was started before");
    }
    if (tensors_.empty()) return absl::FailedPreconditionError("no tensor is declared");
    was_started_ = true;
    call = Begin(std::min(timeout, options_.start_timeout));
    for (const Tensor& tensor : tensors_) tensors.push_back(tensor.options);
  }
  // Errors are returned as a status, so gRPC's own log is not needed.
  static absl::once_flag once;
  absl::call_once(once, SilenceGrpcLog);
  Announcement announcement = MakeAnnouncement(options_, tensors);
  {
    absl::MutexLock lock(&mutex_);
    hello_ = announcement.hello;
  }
  ControlLinkOptions link;
  link.attach.address = options_.coordinator;
  link.attach.tls = {.cert_file = options_.tls_cert,
                     .key_file = options_.tls_key,
                     .ca_file = options_.tls_ca,
                     .identities_file = options_.identities};
  link.attach.timeouts = timeouts_;
  link.hello = std::move(announcement.hello);
  link.patience = options_.start_timeout;
  link.outage = options_.patience.value_or(DefaultPatience(options_.failure_timeout));
  link.advice =
      "`syncline run` starts a program together with a coordinator and servers, and "
      "SYNCLINE_COORDINATOR=HOST:PORT says where one runs already";
  link.meanwhile = "training goes on until a change of members or a decision is needed";
  link.hello_again = [this] { return HelloAgain(); };
  link.log = options_.log;
  link_ = ControlLink::Open(
      std::move(link), {.on_message = [this](const auto& message) { OnMessage(message); },
                        .on_end = [this](const absl::Status& status) { Fail(status); }});
  heart_ = std::thread([this] { BeatUntilOver(); });
  const absl::Status started = AwaitStart(announcement.declaration, call);
  if (!started.ok()) GiveUpStart(started);
  return started;
}

absl::Status Session::Impl::AwaitStart(const v1::MemberMessage& declaration,
                                       const Call& call) {
  SYNCLINE_RETURN_IF_ERROR(AwaitWelcome(declaration, call));
  SYNCLINE_RETURN_IF_ERROR(StartDataPlane());
  absl::MutexLock lock(&mutex_);
  for (TensorId id = 0; id < tensors_.size(); ++id) {
    SYNCLINE_RETURN_IF_ERROR(WaitFor(id, call));
  }
  phases_.Begin();
  return absl::OkStatus();
}

// After a timeout or Cancel the coordinator is told, so that the other workers do not
// have to wait until this one counts as silent.
void Session::Impl::GiveUpStart(const absl::Status& reason) {
  const bool by_itself = absl::IsCancelled(reason) || absl::IsDeadlineExceeded(reason);
  if (!by_itself || !link_->was_attached()) return Stop(absl::ZeroDuration());
  SayGoodbye(std::string(reason.message()));
  Stop(timeouts_.shutdown_grace);
}

// Waits for the welcome. Sends the job's declaration if the coordinator asks for it.
absl::Status Session::Impl::AwaitWelcome(const v1::MemberMessage& declaration,
                                         const Call& call) {
  absl::MutexLock lock(&mutex_);
  do {
    if (std::exchange(is_asked_for_job_, false)) link_->Send(declaration);
    if (welcome_ != nullptr) return status_;
  } while (AwaitChange(call));
  SYNCLINE_RETURN_IF_ERROR(status_);
  const bool is_late = !IsCancelled(call);
  if (is_late && !link_->was_attached()) return link_->Unreachable();
  return EndedEarly(
      call,
      absl::StrCat("job '", options_.job, "' began (",
                   waiting_for_.empty() ? "the coordinator did not answer" : waiting_for_,
                   ")"));
}

absl::StatusOr<ExchangeOptions> Session::Impl::MakeExchangeOptions(
    const v1::WorkerWelcome& welcome) const {
  SYNCLINE_ASSIGN_OR_RETURN(const SyncMode mode, ParseSyncMode(options_.training.mode));
  ExchangeOptions exchange{
      .job = welcome.job(),
      .seed = JobSeed(options_.job),
      .rank = options_.rank,
      .incarnation = welcome.incarnation(),
      .session_key = welcome.session_key(),
      .epoch = welcome.epoch(),
      .first_step = welcome.first_step(),
      .role = welcome.seeder() ? SeedRole::kSeeder : SeedRole::kReceiver,
      .mode = mode,
      // If workers run ahead, the rate that comes with a view belongs to another step.
      .follow_learning_rate =
          FollowsLearningRate(options_.training) && !mode.skips_versions()};
  SYNCLINE_ASSIGN_OR_RETURN(exchange.seed_codec, codecs_.Find(CodecId::kFp32));
  return exchange;
}

// Returns the keys, and erases them in the message.
std::vector<SecretKey> TakeKeys(v1::WorkerWelcome& welcome) {
  std::vector<SecretKey> keys;
  for (std::string& key : *welcome.mutable_shard_keys()) {
    keys.push_back(SecretKey::From(std::as_bytes(std::span(key))).value_or(SecretKey()));
    explicit_bzero(key.data(), key.size());
  }
  return keys;
}

// An FP32 copy starts with the declared values, because the seeder sends them.
MemoryView Session::Impl::Open(Tensor& tensor, const Transfer& publish) {
  if (tensor.memory.dtype == DType::kF32 || !publish.compresses()) {
    return {tensor.memory, tensor.elements};
  }
  tensor.view.resize(tensor.elements);
  Buffer copy;
  const ByteView own = BytesOnHost(MemoryView(tensor.memory, tensor.elements), copy);
  Widen({.data = own.data(), .dtype = tensor.memory.dtype}, tensor.view);
  return std::span(tensor.view);
}

void Session::Impl::OnParted() {
  absl::MutexLock lock(&mutex_);
  parted_ = true;
  changed_.SignalAll();
}

absl::Status Session::Impl::StartDataPlane() {
  std::vector<MemoryView> weights;
  std::vector<TensorTransfers> transfers;
  std::vector<uint64_t> elements;
  std::vector<bool> frozen;
  std::vector<SeedState> states;
  std::vector<Transfer::Shape> shapes;
  std::vector<PlacedTensor> placed;
  std::unique_ptr<v1::WorkerWelcome> welcome;
  {
    absl::MutexLock lock(&mutex_);
    welcome = std::move(welcome_);
    for (const Tensor& tensor : tensors_) {
      frozen.push_back(tensor.options.frozen);
      states.push_back(tensor.state);
      elements.push_back(tensor.elements);
      shapes.push_back(Transfer::ShapeOf(tensor.options.name, tensor.options.shape));
    }
    SYNCLINE_ASSIGN_OR_RETURN(transfers,
                              ParseTransfers(options_.settings.push_codec,
                                             options_.settings.publish_codec, shapes));
    for (size_t i = 0; i < tensors_.size(); ++i) {
      weights.push_back(Open(tensors_[i], transfers[i].publish));
      if (Device* const device = tensors_[i].memory.device) {
        SYNCLINE_RETURN_IF_ERROR(device->status());
      }
      const Transfer& push = transfers[i].push;
      placed.push_back({tensors_[i].memory, transfers[i], frozen[i]});
      tensors_[i].keeps_late = push.compresses() && push.memory.kind != MemoryKind::kNone;
    }
    device_codecs_ =
        DescribeDeviceWays(placed, {.push = options_.settings.push_codec,
                                    .publish = options_.settings.publish_codec});
    if (!device_codecs_.empty()) options_.log.Info("codecs: " + device_codecs_);
    BeginAt(welcome->first_step());
  }
  SYNCLINE_ASSIGN_OR_RETURN(JobLayout layout, ReadLayout(*welcome, elements));
  SYNCLINE_ASSIGN_OR_RETURN(ExchangeOptions exchange, MakeExchangeOptions(*welcome));
  exchange.shards = static_cast<uint32_t>(layout.shard_addresses.size());
  exchange.shard_of_block = std::move(layout.shard_of_block);
  exchange.frozen = std::move(frozen);
  exchange.seed_states = std::move(states);
  exchange.phases = &phases_;
  exchange.trace = exchange_track_;
  phases_.TraceTo(phases_track_, exchange.job, exchange.first_step);
  exchange.transfers = std::move(transfers);
  DataPlaneOptions options{.timeouts = timeouts_,
                           .shard_addresses = std::move(layout.shard_addresses),
                           .shard_keys = TakeKeys(*welcome),
                           .exchange = std::move(exchange),
                           .codec_threads = static_cast<uint32_t>(codec_tracks_.size()),
                           .codec_tracks = codec_tracks_,
                           .arena = arena_,
                           .log = options_.log};
  SYNCLINE_ASSIGN_OR_RETURN(
      auto data_plane,
      DataPlane::Start(
          std::move(options), std::move(weights),
          {.on_ready = [this](const ExchangeReady& ready) { OnReady(ready); },
           .on_failed = [this](const absl::Status& status) { Fail(status); },
           .on_averaged =
               [this](ExchangeAveraged averaged) { OnAveraged(std::move(averaged)); },
           .on_parted = [this] { OnParted(); }}));
  absl::MutexLock lock(&mutex_);
  data_plane_ = std::move(data_plane);
  data_plane_->Moved(std::exchange(moved_, {}));
  data_plane_->EpochChanged(epoch_, seed_role());  // the epoch may have changed meanwhile
  if (staleness_) data_plane_->SetStaleness(*staleness_);
  if (phase_ == Phase::kDeclaring) phase_ = Phase::kRunning;
  return status_;
}

}  // namespace syncline
