#include "worker/client/data_plane.h"

#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/base/steady_condition.h"
#include "comm/transport/message.h"

namespace syncline {
namespace {

// Shorter than about the exchange's first back-off, and long enough to cost nothing.
constexpr absl::Duration kTickPeriod = absl::Milliseconds(10);

// Bytes of gradients that are pushed before the loop thread is woken. Its messages then
// wake the server once. Two and four times as many were not faster (tests/bench/ddp.py).
constexpr size_t kTogetherBytes = 256 << 10;

// Number of elements (one large block, or many small ones) that the loop thread encodes
// between two rounds of the transport, unless all servers are on this host.
constexpr size_t kTogetherElements = kTileElements;

// The pool has memory for views that arrive and for encoded blocks that are sent: twice
// the default window.
constexpr size_t kPoolBytes = 2 * kDefaultWindowBytes;

bool IsWelcome(const MessageHeader& header) {
  return header.kind == static_cast<uint16_t>(MessageKind::kWelcome);
}

}  // namespace

class DataPlane::FromShard : public Receiver {
 public:
  FromShard(DataPlane& plane, uint32_t shard) : plane_(plane), shard_(shard) {}

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override {
    return plane_.Land(shard_, header, payload_bytes);
  }
  void OnMessage(ByteView header, Buffer payload) override {
    plane_.Take(shard_, header, Slice::Of(payload));
  }

 private:
  DataPlane& plane_;
  const From shard_;
};

DataPlane::DataPlane(DataPlaneOptions options, DataPlaneEvents events)
    : options_(std::move(options)),
      events_(std::move(events)),
      pool_(kPoolBytes),
      arena_(options_.arena) {
  for (uint32_t shard = 0; shard < options_.shard_addresses.size(); ++shard) {
    from_shards_.push_back(std::make_unique<FromShard>(*this, shard));
  }
}

absl::StatusOr<std::unique_ptr<DataPlane>> DataPlane::Start(
    DataPlaneOptions options, std::vector<MemoryView> weights, DataPlaneEvents events) {
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
  plane->loop_->Every(kTickPeriod, [plane](Transport&) { plane->Tick(); });
  return self;
}

absl::StatusOr<std::unique_ptr<Transport>> DataPlane::MakeTransport() {
  NetworkOptions options{
      .timeouts = options_.timeouts, .arena = arena_, .log = options_.log};
  SYNCLINE_ASSIGN_OR_RETURN(options.plan.mode, ModeOf(options_.shard_addresses));
  return CreateNetworkTransport(options, *this);
}

DataPlane::~DataPlane() { Stop(); }

void DataPlane::Open(Transport& transport, const std::vector<MemoryView>& weights) {
  ExchangeOptions exchange = options_.exchange;
  exchange.clock = &clock_;
  workspace_.trace = exchange.trace;
  if (const uint32_t threads = options_.codec_threads; threads > 0) {
    // While a thread encodes one block, the next one already waits for it.
    exchange.encodings_at_once = 2 * threads;
    codec_threads_ = std::make_unique<CodecThreads>(
        CodecThreads::Options{.threads = threads, .tracks = options_.codec_tracks});
  }
  links_ = std::make_unique<ShardLinks>(LinksOptions(), transport);
  if (const absl::Status status = links_->Connect(clock_.Now()); !status.ok()) {
    return Fail(status);
  }
  bool all_local = true;
  bool any_local = false;
  for (uint32_t shard = 0; shard < options_.shard_addresses.size(); ++shard) {
    const Endpoint& endpoint = links_->endpoint(shard);
    if (!endpoint.IsIntact()) exchange.checksum = Checksum::kHeaderAndPayload;
    all_local &= endpoint.IsLocal();
    any_local |= endpoint.IsLocal();
  }
  all_local_ = all_local;
  if (all_local) {
    exchange.receiver = ReceiverPlace::kThisHost;
    exchange.push_memory = [arena = arena_](size_t bytes) {
      return arena->Allocate(bytes);
    };
  }
  if (any_local) {
    exchange.keeper_of = [arena = arena_](ByteView gradient) {
      return arena->KeeperOf(gradient);
    };
  }
  exchange_ = std::make_unique<Exchange>(exchange, weights, pool_);
  Run(exchange_->Start(clock_.Now()));
}

ShardLinksOptions DataPlane::LinksOptions() const {
  const ExchangeOptions& exchange = options_.exchange;
  return {.timeouts = options_.timeouts,
          .addresses = options_.shard_addresses,
          .keys = options_.shard_keys,
          .receiver_of = [this](uint32_t shard) { return from_shards_[shard].get(); },
          .job = exchange.job,
          .rank = exchange.rank,
          .incarnation = exchange.incarnation,
          .session_key = exchange.session_key,
          .log = options_.log};
}

template <typename Act>
void DataPlane::Do(const Act& act) {
  if (failed_ || exchange_ == nullptr) return;
  links_->OfferRoom(*exchange_, clock_.Now());
  Run(act(*exchange_));
  if (failed_ || exchange_ == nullptr) return;
  // The input may have made room for more.
  links_->OfferRoom(*exchange_, clock_.Now());
  Run(exchange_->Pump(clock_.Now()));
  EncodeHere();
}

void DataPlane::Encode(std::shared_ptr<EncodeWork> work) {
  if (work->IsShort() || codec_threads_ == nullptr) {
    to_encode_.push_back(std::move(work));
  } else {
    Submit(std::move(work));
  }
}

// The loop thread decodes a view itself if the codec threads are behind, so that received
// views do not pile up.
void DataPlane::Decode(std::shared_ptr<DecodeWork> work) {
  const bool is_here =
      work->IsShort() || codec_threads_ == nullptr || codec_threads_->IsBehind();
  if (!is_here) return Submit(std::move(work));
  work->Run(workspace_);
  Run(exchange_->Decoded(*work, clock_.Now()));
}

template <typename Work>
void DataPlane::Submit(std::shared_ptr<Work> work) {
  codec_threads_->Submit([this, work = std::move(work)](CodecWorkspace& workspace) {
    work->Run(workspace);
    loop_->Post([this, work](Transport&) {
      Do([&](Exchange& exchange) {
        if constexpr (std::is_same_v<Work, DecodeWork>) {
          return exchange.Decoded(*work, clock_.Now());
        } else {
          return exchange.Encoded(*work, clock_.Now());
        }
      });
    });
  });
}

// Sends each block before it encodes the next one. Between hosts it returns to the
// transport after kTogetherElements, to keep the transfer going. Within a host the
// transfer needs no help. Looking for an answer after each block would make processes
// that share few cores take turns block by block.
void DataPlane::EncodeHere() {
  if (std::exchange(encodes_here_, true)) return;  // called again from a finished send
  size_t elements = 0;
  while (!to_encode_.empty() && !failed_) {
    if (elements >= kTogetherElements && !all_local_) {
      loop_->PostQuietly(
          [this](Transport&) { Do([](Exchange&) { return ExchangeOutputs(); }); });
      break;
    }
    const std::shared_ptr<EncodeWork> work = std::move(to_encode_.front());
    to_encode_.pop_front();
    elements += work->contribution().label.range.elements;
    work->Run(workspace_);
    Run(exchange_->Encoded(*work, clock_.Now()));
  }
  encodes_here_ = false;
}

void DataPlane::AwaitCodecs() {
  if (codec_threads_ != nullptr) codec_threads_->Finish();
}

void DataPlane::Push(uint32_t tensor, const ConstMemoryView& gradient, uint32_t samples) {
  loop_->PostQuietly([this, tensor, gradient, samples](Transport&) {
    Do([&](Exchange& exchange) {
      return exchange.Push(tensor, gradient, samples, clock_.Now());
    });
  });
  waiting_bytes_ += gradient.bytes().size();
  if (waiting_bytes_ >= kTogetherBytes) Flush();
}

void DataPlane::Flush() {
  waiting_bytes_ = 0;
  loop_->Wake();
}

void DataPlane::SetRateFactor(uint32_t tensor, float factor) {
  loop_->PostQuietly([this, tensor, factor](Transport&) {
    if (exchange_ != nullptr) exchange_->SetRateFactor(tensor, factor);
  });
}

void DataPlane::Skip(uint32_t tensor) {
  loop_->PostQuietly([this, tensor](Transport&) {
    Do([&](Exchange& exchange) { return exchange.Skip(tensor, clock_.Now()); });
  });
}

void DataPlane::Release(uint32_t tensor) {
  loop_->PostQuietly([this, tensor](Transport&) {
    if (exchange_ != nullptr) exchange_->Release(tensor);
  });
}

void DataPlane::Settle(uint32_t tensor) {
  loop_->Post([this, tensor](Transport&) {
    Do([&](Exchange& exchange) { return exchange.Settle(tensor, clock_.Now()); });
  });
}

void DataPlane::PullAverage(uint32_t tensor) {
  loop_->Post([this, tensor](Transport&) {
    Do([&](Exchange& exchange) { return exchange.PullAverage(tensor); });
  });
}

void DataPlane::PullState(uint32_t tensor, uint32_t array) {
  loop_->Post([this, tensor, array](Transport&) {
    Do([&](Exchange& exchange) { return exchange.PullState(tensor, array); });
  });
}

void DataPlane::Part() {
  loop_->Post([this](Transport&) {
    Do([&](Exchange& exchange) { return exchange.Part(clock_.Now()); });
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
    AwaitCodecs();  // without the lock, so that the caller can time out meanwhile
    absl::MutexLock lock(&call->mutex);
    if (!call->is_wanted) return;  // the caller timed out: `use` is no longer valid
    if (exchange_ == nullptr) {
      call->answer = absl::FailedPreconditionError("the session is over");
      return call->answered.SignalAll();
    }
    std::vector<GradientMemory*> memories;
    for (uint32_t i = 0; i < exchange_->tensors(); ++i) {
      memories.push_back(&exchange_->memory(i));
    }
    const absl::Status status = exchange_->kept_status();
    call->answer = status.ok() ? use(memories) : status;
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
    Do([&](Exchange& exchange) {
      return exchange.EpochChanged(epoch, role, clock_.Now());
    });
  });
}

void DataPlane::SetStaleness(uint64_t staleness) {
  loop_->Post([this, staleness](Transport&) {
    Do([&](Exchange& exchange) {
      return exchange.SetStaleness(staleness, clock_.Now());
    });
  });
}

void DataPlane::Moved(std::vector<ShardPlace> places) {
  loop_->Post([this, places = std::move(places)](Transport&) {
    if (failed_ || exchange_ == nullptr) return;
    for (const ShardPlace& place : places) {
      if (place.shard >= options_.shard_addresses.size()) continue;
      exchange_->Replaced(place.shard, place.epoch);
      links_->Move(place, clock_.Now());
    }
  });
}

void DataPlane::Tick() {
  ReportIfClosed();
  if (failed_ || exchange_ == nullptr) return;
  Run(links_->Tick(*exchange_, clock_.Now()));
  Do([&](Exchange& exchange) { return exchange.Tick(clock_.Now()); });
}

void DataPlane::Run(ExchangeOutputs outputs) {
  for (ExchangeOutput& output : outputs) {
    if (failed_) return;
    if (auto* send = std::get_if<ExchangeSend>(&output)) Send(std::move(*send));
    if (auto* encode = std::get_if<ExchangeEncode>(&output)) {
      Encode(std::move(encode->work));
    }
    if (auto* decode = std::get_if<ExchangeDecode>(&output)) {
      Decode(std::move(decode->work));
    }
    if (auto* ready = std::get_if<ExchangeReady>(&output)) {
      PublishProgress();
      events_.on_ready(*ready);
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
  // `done` does not mean that the message arrived. The shard's answer confirms that, or
  // the connection fails.
  SendDone done = [](const absl::Status&) {};
  if (send.borrows_gradient) {
    ++borrowed_sends_;
    done = [this, block = send.header.block](const absl::Status&) { Returned(block); };
  } else if (!send.payload.empty()) {
    done = [this](const absl::Status&) { Sent(); };
  }
  links_->Send(std::move(send), std::move(done), clock_.Now());
}

void DataPlane::Sent() {
  Do([](Exchange&) { return ExchangeOutputs(); });
}

void DataPlane::Returned(uint32_t block) {
  --borrowed_sends_;
  if (!failed_) Run(exchange_->SendDone(block));
  Sent();
  ReportIfClosed();
}

absl::StatusOr<Buffer> DataPlane::Allocate(ByteView header, size_t payload_bytes) {
  return Land(std::nullopt, header, payload_bytes);
}

absl::StatusOr<Buffer> DataPlane::Land(const From& from, ByteView header,
                                       size_t payload_bytes) {
  SYNCLINE_ASSIGN_OR_RETURN(const MessageHeader parsed, ParseHeader(header));
  if (exchange_ == nullptr) return absl::FailedPreconditionError("not started");
  if (!IsOfItsShard(from, parsed)) {
    return absl::PermissionDeniedError("not from the shard that has this block");
  }
  const size_t limit = exchange_->MaxPayloadBytes(parsed);
  if (payload_bytes > limit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "payload of ", payload_bytes, " bytes, but at most ", limit, " are allowed"));
  }
  return pool_.Allocate(payload_bytes);
}

void DataPlane::OnMessage(ByteView header, Buffer payload) {
  Take(std::nullopt, header, Slice::Of(payload));
}

// A view is contiguous, so it has no head. Other messages are dropped.
void DataPlane::OnBorrowed(ByteView header, Landed payload) {
  if (payload.head.size == 0) Take(std::nullopt, header, std::move(payload.body));
}

bool DataPlane::IsOfItsShard(const From& from, const MessageHeader& header) {
  uint32_t shard = header.shard;
  if (!IsWelcome(header)) {
    if (header.block >= exchange_->blocks()) return false;
    shard = exchange_->shard_of(header.block);
  }
  if (shard >= options_.shard_addresses.size()) return false;
  if (links_->MayBeFrom(shard, from)) return true;
  ++foreign_messages_;
  if (!named_foreign_.insert(from).second) return false;
  options_.log.Warning(
      "a message in the name of a shard came from another sender; such messages are "
      "dropped",
      {{"shard", shard},
       {"from", from ? absl::StrCat("shard ", *from) : "this host's shared memory"},
       {"address", links_->Describe(from.value_or(shard))}});
  return false;
}

void DataPlane::Take(const From& from, ByteView header, Slice payload) {
  const auto parsed = ParseHeader(header);
  if (!parsed.ok() || failed_ || exchange_ == nullptr) return;
  if (!IsOfItsShard(from, *parsed)) return;
  const absl::Duration now = clock_.Now();
  if (!IsWelcome(*parsed)) {
    links_->Heard(exchange_->shard_of(parsed->block));
    Do([&](Exchange& exchange) {
      return exchange.OnMessage(*parsed, std::move(payload), now);
    });
  } else if (links_->TakeWelcome(*parsed)) {
    Do([&](Exchange& exchange) { return exchange.Connected(parsed->shard, now); });
  }
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
  stats_.foreign_messages = foreign_messages_;
  if (links_ != nullptr) {
    stats_.window_fill = links_->window_fill();
    stats_.sent_bytes_per_second = links_->rates().sent_bytes_per_second();
    stats_.received_bytes_per_second = links_->rates().received_bytes_per_second();
  }
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
