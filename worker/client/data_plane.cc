#include "worker/client/data_plane.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/base/steady_condition.h"
#include "comm/transport/message.h"
#include "comm/transport/tcp/member_key.h"

namespace syncline {
namespace {

// Fine enough for the exchange's first back-off, rare enough to cost nothing.
constexpr absl::Duration kTickPeriod = absl::Milliseconds(10);

// Publications in landing and BF16 blocks on their way out: twice the default window.
constexpr size_t kPoolBytes = 2 * kDefaultWindowBytes;

}  // namespace

DataPlane::DataPlane(DataPlaneOptions options, DataPlaneEvents events)
    : options_(std::move(options)),
      events_(std::move(events)),
      pool_(kPoolBytes),
      arena_(SharedArena::Create({})) {}

absl::StatusOr<std::unique_ptr<DataPlane>> DataPlane::Start(
    DataPlaneOptions options, std::vector<std::span<float>> weights,
    DataPlaneEvents events) {
  std::unique_ptr<DataPlane> self(new DataPlane(std::move(options), std::move(events)));
  DataPlane* plane = self.get();
  const auto make = [plane] {
    const auto& custom = plane->options_.make_transport;
    return custom ? custom(*plane) : plane->MakeTransport();
  };
  SYNCLINE_ASSIGN_OR_RETURN(self->loop_, TransportLoop::Start(make, {}));
  plane->loop_->Post([plane, weights = std::move(weights)](Transport& transport) {
    plane->Open(transport, weights);
  });
  plane->loop_->Every(kTickPeriod,
                      [plane](Transport& transport) { plane->Tick(transport); });
  return self;
}

absl::StatusOr<std::unique_ptr<Transport>> DataPlane::MakeTransport() {
  NetworkOptions options{
      .timeouts = options_.timeouts, .arena = arena_, .log = options_.log};
  SYNCLINE_ASSIGN_OR_RETURN(options.plan.mode, ModeOf(options_.shard_addresses));
  return CreateNetworkTransport(options, *this);
}

DataPlane::~DataPlane() { Stop(); }

// The endpoints go first: what they still send is cancelled, and its memory with it free
// once that was told.
bool DataPlane::Close(std::function<void()> closed) {
  return loop_->Post([this, closed = std::move(closed)](Transport&) {
    failed_ = true;
    exchange_ = nullptr;
    peers_.clear();
    if (closed) closed_ = closed;
    give_up_at_ = clock_.Now() + options_.timeouts.shutdown_grace;
    ReportIfClosed();
  });
}

void DataPlane::ReportIfClosed() {
  if (!closed_) return;
  if (borrowed_sends_ > 0) {
    if (clock_.Now() < give_up_at_) return;
    options_.log.Warning("closed connections still hold gradients",
                         {{"sends", borrowed_sends_}});
  }
  std::exchange(closed_, nullptr)();
}

void DataPlane::Stop() {
  if (loop_ == nullptr) return;  // it was never started
  Close(nullptr);
  loop_->Stop();
}

void DataPlane::Open(Transport& transport, const std::vector<std::span<float>>& weights) {
  peers_.resize(options_.shard_addresses.size());
  ExchangeOptions exchange = options_.exchange;
  exchange.clock = &clock_;
  bool all_local = true;
  for (uint32_t shard = 0; shard < peers_.size(); ++shard) {
    if (const absl::Status status = Connect(transport, shard); !status.ok())
      return Fail(status);
    const Endpoint& endpoint = *peers_[shard].endpoint;
    if (!endpoint.IsIntact()) exchange.checksum = Checksum::kHeaderAndPayload;
    all_local &= endpoint.IsLocal();
  }
  if (all_local) {
    exchange.receiver = ReceiverPlace::kThisHost;
    exchange.push_memory = [arena = arena_](size_t bytes) {
      return arena->Allocate(bytes);
    };
  }
  exchange_ = std::make_unique<Exchange>(exchange, weights, pool_);
  Run(exchange_->Start(clock_.Now()));
}

absl::Status DataPlane::Connect(Transport& transport, uint32_t shard) {
  Peer& peer = peers_[shard];
  peer.reconnect_at = absl::InfiniteDuration();
  // The server may only have lost this connection: try again until the coordinator gives
  // its verdict.
  const auto on_failure = [this, shard](const absl::Status& status) {
    options_.log.Warning("lost the connection to a shard",
                         {{"shard", shard}, {"error", std::string(status.message())}});
    peers_[shard].reconnect_at = clock_.Now() + options_.timeouts.heartbeat_interval;
  };
  SYNCLINE_ASSIGN_OR_RETURN(
      peer.endpoint, transport.Connect(options_.shard_addresses[shard],
                                       {.on_failure = on_failure, .key = KeyFor(shard)}));
  SayHello(transport, shard);
  return absl::OkStatus();
}

PeerKey DataPlane::KeyFor(uint32_t shard) const {
  if (shard >= options_.shard_keys.size()) return {};
  const ExchangeOptions& exchange = options_.exchange;
  return {EncodeIdentity({exchange.job, exchange.rank, exchange.incarnation}),
          options_.shard_keys[shard]};
}

void DataPlane::SayHello(Transport& transport, uint32_t shard) {
  const ExchangeOptions& exchange = options_.exchange;
  MessageHeader header;
  header.kind = static_cast<uint16_t>(MessageKind::kHello);
  header.job = exchange.job;
  header.rank = exchange.rank;
  header.incarnation = exchange.incarnation;
  header.epoch = exchange.epoch;
  header.session_key = exchange.session_key;
  header.shard = shard;
  const std::string& address = transport.address();
  const Buffer payload = Buffer::CopyOf(
      std::as_bytes(std::span<const char>(address.data(), address.size())));
  peers_[shard].endpoint->Send(SealHeader(header), {Slice::Of(payload)},
                               [](const absl::Status&) {});
}

void DataPlane::Push(uint32_t tensor, std::span<const float> gradient, uint32_t samples) {
  loop_->Post([this, tensor, gradient, samples](Transport&) {
    if (exchange_ != nullptr)
      Run(exchange_->Push(tensor, gradient, samples, clock_.Now()));
  });
}

void DataPlane::Skip(uint32_t tensor) {
  loop_->Post([this, tensor](Transport&) {
    if (exchange_ != nullptr) Run(exchange_->Skip(tensor, clock_.Now()));
  });
}

void DataPlane::PullAverage(uint32_t tensor) {
  loop_->Post([this, tensor](Transport&) {
    if (exchange_ != nullptr) Run(exchange_->PullAverage(tensor, clock_.Now()));
  });
}

void DataPlane::Part() {
  loop_->Post([this](Transport&) {
    if (exchange_ != nullptr) Run(exchange_->Part(clock_.Now()));
  });
}

absl::Status DataPlane::WithMemories(const std::function<absl::Status(Memories)>& use,
                                     absl::Duration limit) {
  struct Call {
    absl::Mutex mutex;
    bool is_wanted ABSL_GUARDED_BY(mutex) = true;
    std::optional<absl::Status> answer ABSL_GUARDED_BY(mutex);
    SteadyCondition answered;
  };
  const auto call = std::make_shared<Call>();
  loop_->Post([this, call, &use](Transport&) {
    absl::MutexLock lock(&call->mutex);
    if (!call->is_wanted) return;  // `use` may be gone
    if (exchange_ == nullptr) {
      call->answer = absl::FailedPreconditionError("the session is over");
      return call->answered.SignalAll();
    }
    std::vector<GradientMemory*> memories;
    for (uint32_t i = 0; i < exchange_->tensors(); ++i) {
      memories.push_back(&exchange_->memory(i));
    }
    call->answer = use(memories);
    call->answered.SignalAll();
  });
  absl::MutexLock lock(&call->mutex);
  const absl::Duration deadline = clock_.Now() + limit;
  while (!call->answer && call->answered.WaitUntil(call->mutex, clock_, deadline)) {
  }
  call->is_wanted = false;
  if (call->answer) return *call->answer;
  return absl::DeadlineExceededError("the data plane did not answer");
}

void DataPlane::EpochChanged(uint64_t epoch, SeedRole role) {
  loop_->Post([this, epoch, role](Transport&) {
    if (exchange_ != nullptr) Run(exchange_->EpochChanged(epoch, role, clock_.Now()));
  });
}

void DataPlane::Tick(Transport& transport) {
  ReportIfClosed();
  if (failed_ || exchange_ == nullptr) return;
  const absl::Duration now = clock_.Now();
  for (uint32_t shard = 0; shard < peers_.size(); ++shard) {
    if (peers_[shard].reconnect_at > now) continue;
    // A server that is gone cannot be connected to. Whether it is, the coordinator says.
    if (const absl::Status status = Connect(transport, shard); !status.ok()) {
      options_.log.Debug("a shard cannot be reached", {{"shard", shard}});
      peers_[shard].reconnect_at = now + options_.timeouts.heartbeat_interval;
    }
  }
  Run(exchange_->Tick(now));
}

void DataPlane::Run(ExchangeOutputs outputs) {
  for (ExchangeOutput& output : outputs) {
    if (failed_) return;
    if (auto* send = std::get_if<ExchangeSend>(&output)) Send(std::move(*send));
    if (auto* ready = std::get_if<ExchangeReady>(&output)) {
      PublishProgress();
      events_.on_ready(ready->tensor);
    }
    if (auto* failed = std::get_if<ExchangeFailed>(&output)) Fail(failed->status);
    if (auto* averaged = std::get_if<ExchangeAveraged>(&output)) {
      events_.on_averaged(*averaged);
    }
    if (std::holds_alternative<ExchangeParted>(output)) events_.on_parted();
  }
  if (exchange_ != nullptr) PublishProgress();
}

void DataPlane::Send(ExchangeSend send) {
  // Whether it arrived is not told by `done`: the exchange repeats what is not
  // acknowledged.
  SendDone done = [](const absl::Status&) {};
  if (send.borrows_gradient) {
    ++borrowed_sends_;
    done = [this, block = send.header.block](const absl::Status&) { Returned(block); };
  }
  peers_[send.shard].endpoint->Send(SealHeader(send.header), std::move(send.payload),
                                    std::move(done));
}

void DataPlane::Returned(uint32_t block) {
  --borrowed_sends_;
  if (!failed_) Run(exchange_->SendDone(block));
  ReportIfClosed();
}

absl::StatusOr<Buffer> DataPlane::Allocate(ByteView header, size_t payload_bytes) {
  SYNCLINE_ASSIGN_OR_RETURN(const MessageHeader parsed, ParseHeader(header));
  if (exchange_ == nullptr) return absl::FailedPreconditionError("not started");
  const size_t limit = exchange_->MaxPayloadBytes(parsed);
  if (payload_bytes > limit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "payload of ", payload_bytes, " bytes where at most ", limit, " can be meant"));
  }
  return pool_.Allocate(payload_bytes);
}

void DataPlane::OnMessage(ByteView header, Buffer payload) {
  Take(header, payload.view());
}

void DataPlane::OnBorrowed(ByteView header, Slice payload) {
  Take(header, {payload.data, payload.size});
}

void DataPlane::Take(ByteView header, ByteView payload) {
  const auto parsed = ParseHeader(header);
  if (!parsed.ok() || failed_ || exchange_ == nullptr) return;
  Run(exchange_->OnMessage(*parsed, payload, clock_.Now()));
}

void DataPlane::Fail(const absl::Status& status) {
  if (failed_) return;
  failed_ = true;
  events_.on_failed(status);
}

void DataPlane::PublishProgress() {
  loss_scale_.store(exchange_->loss_scale(), std::memory_order_relaxed);
  absl::MutexLock lock(&stats_mutex_);
  stats_ = exchange_->stats();
  if (codec_choice_ != exchange_->codec_choice()) {
    codec_choice_ = exchange_->codec_choice();
  }
}

std::string DataPlane::codec_choice() const {
  absl::MutexLock lock(&stats_mutex_);
  return codec_choice_;
}

ExchangeStats DataPlane::stats() const {
  absl::MutexLock lock(&stats_mutex_);
  return stats_;
}

}  // namespace syncline
