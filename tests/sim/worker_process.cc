#include "tests/sim/worker_process.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/job_seed.h"
#include "comm/base/status.h"
#include "tests/sim/push_oracle.h"

namespace syncline::sim {

WorkerProcess::WorkerProcess(Parts parts, uint32_t rank)
    : parts_(std::move(parts)),
      rank_(rank),
      random_(parts_.seed),
      codec_random_(~parts_.seed),
      transfers_(*parts_.job.Transfers()),
      pool_(size_t{1} << 20),
      transport_(parts_.network.CreateTransport(*this)) {
  for (uint32_t tensor = 0; tensor < parts_.job.tensors.size(); ++tensor) {
    std::vector<float>& values =
        weights_.emplace_back(parts_.job.tensors[tensor].elements());
    // Some workers declare the same values, which then need not be sent to them.
    const uint64_t seed = parts_.seed % 2 == 0 ? 0 : parts_.seed;
    for (size_t i = 0; i < values.size(); ++i) values[i] = Noise(seed, 77, tensor, i);
  }
  gradients_ = weights_;
  narrow_gradients_.resize(weights_.size());
  rate_factors_.assign(weights_.size(), 1);
  if (!parts_.host.empty()) parts_.network.PutOn(transport_->address(), parts_.host);
  Attach();
  Beat();
}

void WorkerProcess::Attach() {
  const auto on_end = [this](const absl::Status& status) {
    // A worker that has sent all its error feedback has left in any case.
    parts_.on_end(rank_, parted_ ? absl::OkStatus() : status);
  };
  connection_ =
      parts_.control.Attach({.on_message =
                                 [this, alive = alive_](const CoordinatorBody& body) {
                                   if (*alive) WhenAwake([=, this] { OnControl(body); });
                                 },
                             .on_end =
                                 [=, this, alive = alive_](const absl::Status& status) {
                                   if (*alive) WhenAwake([=] { on_end(status); });
                                 },
                             .on_lost =
                                 [this, alive = alive_] {
                                   if (*alive) WhenAwake([this] { OnLost(); });
                                 },
                             .host = parts_.host});
  WorkerHello hello = parts_.control.specs().Hello(
      parts_.job, {.rank = rank_,
                   .run_id = "sim",
                   .name = absl::StrCat("host", parts_.seed % 3, ":", rank_),
                   .session_key = random_()});
  if (exchange_ != nullptr) {
    membership_.step = exchange_->step();
    hello.member = membership_;
  }
  parts_.control.Send(connection_, std::move(hello));
}

// Connects again and repeats its goodbye, as Session does.
void WorkerProcess::OnLost() {
  Attach();
  if (parted_) parts_.control.Send(connection_, ::syncline::Leave{});
}

WorkerProcess::~WorkerProcess() { *alive_ = false; }

void WorkerProcess::Kill() {
  *alive_ = false;
  parts_.control.Break(connection_);
  parts_.network.Kill(transport_->address());
}

void WorkerProcess::Freeze() { frozen_ = true; }

void WorkerProcess::Thaw() {
  frozen_ = false;
  const std::shared_ptr<bool> alive = alive_;
  while (*alive && !when_thawed_.empty()) {
    const auto fn = std::move(when_thawed_.front());
    when_thawed_.pop_front();
    fn();
  }
}

void WorkerProcess::WhenAwake(std::function<void()> fn) {
  if (!*alive_) return;
  if (frozen_) {
    when_thawed_.push_back(std::move(fn));
  } else {
    fn();
  }
}

void WorkerProcess::After(absl::Duration delay, std::function<void()> fn) {
  parts_.events.After(delay, [this, alive = alive_, fn = std::move(fn)] {
    if (*alive) WhenAwake(fn);
  });
}

void WorkerProcess::Beat() {
  Heartbeat beat;
  if (exchange_ != nullptr) {
    beat.step = exchange_->step();
    beat.bytes = exchange_->stats().progress_bytes;
    beat.waiting = !computing_ && !done_;
  }
  parts_.control.Send(connection_, beat);
  After(parts_.timeouts.heartbeat_interval, [this] { Beat(); });
}

void WorkerProcess::OnControl(const CoordinatorBody& body) {
  if (const auto* describe = std::get_if<DescribeJob>(&body)) {
    parts_.control.Send(connection_,
                        parts_.control.specs().Declaration(describe->digest));
  }
  if (const auto* welcome = std::get_if<WorkerWelcome>(&body)) Begin(*welcome);
  if (const auto* released = std::get_if<BarrierReleased>(&body)) OnReleased(*released);
  if (const auto* change = std::get_if<EpochChanged>(&body);
      change != nullptr && exchange_) {
    for (const MovedShard& moved : change->moved) {
      if (moved.epoch <= membership_.epoch) continue;
      exchange_->Replaced(moved.shard, moved.epoch);
      links_->Move({.shard = moved.shard, .address = moved.address}, parts_.events.now());
    }
    membership_.epoch = change->epoch;
    const SeedRole role = change->seeder ? SeedRole::kSeeder : SeedRole::kReceiver;
    Do([&](Exchange& exchange) {
      return exchange.EpochChanged(change->epoch, role, parts_.events.now());
    });
    TakeStaleness(change->staleness);
  }
}

void WorkerProcess::TakeStaleness(std::optional<uint64_t> told) {
  if (parts_.job.training.sync().kind != SyncMode::Kind::kSsp) return;
  staleness_ = parts_.reference.StalenessIn(membership_.epoch);
  if (told != staleness_) {
    parts_.reference.Violate(absl::StrCat(
        "rank ", rank_, " was told of staleness ", told ? absl::StrCat(*told) : "-",
        " in epoch ", membership_.epoch, ", servers of ", staleness_));
  }
  for (uint64_t& one : may_be_ahead_) one = std::max(one, staleness_);
  has_run_ahead_ = has_run_ahead_ || staleness_ > 0;
  most_told_ = std::max(most_told_, staleness_);
  const uint64_t heard =
      (parts_.hears_no_less ? most_told_ : staleness_) + parts_.runs_ahead;
  Do([&](Exchange& exchange) {
    return exchange.SetStaleness(heard, parts_.events.now());
  });
}

void WorkerProcess::Begin(const WorkerWelcome& welcome) {
  incarnation_ = welcome.incarnation;
  parts_.reference.Began(rank_);
  membership_ = {.job = welcome.job,
                 .incarnation = welcome.incarnation,
                 .session_key = welcome.session_key,
                 .epoch = welcome.epoch,
                 .barriers = welcome.barriers};
  links_ = std::make_unique<ShardLinks>(
      ShardLinksOptions{.timeouts = parts_.timeouts,
                        .addresses = *welcome.shard_addresses,
                        .job = welcome.job,
                        .rank = rank_,
                        .incarnation = welcome.incarnation,
                        .session_key = welcome.session_key},
      *transport_);
  SYNCLINE_CHECK(links_->Connect(parts_.events.now()).ok());
  ExchangeOptions options{
      .job = welcome.job,
      .seed = JobSeed(parts_.job.name),
      .rank = rank_,
      .incarnation = welcome.incarnation,
      .session_key = welcome.session_key,
      .epoch = welcome.epoch,
      .first_step = welcome.first_step,
      .role = welcome.seeder ? SeedRole::kSeeder : SeedRole::kReceiver,
      .mode = parts_.job.training.sync(),
      .shards = static_cast<uint32_t>(welcome.shard_addresses->size()),
      .shard_of_block = welcome.placement->shard_of_block,
      .transfers = transfers_,
      .seed_codec = *parts_.codecs.Find(CodecId::kFp32),
      .checksum = Checksum::kHeaderAndPayload,
      .encodings_at_once = 1 + static_cast<uint32_t>(codec_random_() % 6),
      .follow_learning_rate = ResidualsFollow(parts_.job)};
  // Half of the workers encode into memory of their own. The others send from the
  // gradient itself.
  if (random_() % 2 == 0) {
    options.push_memory = [](size_t bytes) { return Buffer::Allocate(bytes).owner(); };
  }
  // Half of both have gradients that servers may read in place.
  if (codec_random_() % 2 == 0) {
    lent_gradients_.resize(weights_.size());
    options.keeper_of = [this](ByteView gradient) { return KeeperOf(gradient); };
  }
  for (const TensorSpec& tensor : parts_.job.tensors) {
    options.frozen.push_back(tensor.group.frozen);
  }
  exchange_ = std::make_unique<Exchange>(
      options, std::vector<MemoryView>(weights_.begin(), weights_.end()), pool_);
  may_be_ahead_.assign(weights_.size(), 0);
  Run(exchange_->Start(parts_.events.now()));
  TakeStaleness(welcome.staleness);
  for (uint64_t& one : may_be_ahead_)
    one = 0;  // the worker begins with the weights of its first step
  Tick();
}

void WorkerProcess::Tick() {
  if (failed_) return;
  Run(links_->Tick(*exchange_, parts_.events.now()));
  Do([&](Exchange& exchange) { return exchange.Tick(parts_.events.now()); });
  After(absl::Milliseconds(5), [this] { Tick(); });
}

void WorkerProcess::Compute() {
  const uint64_t step = exchange_->step();
  const bool leaves = parts_.leave_at && step >= *parts_.leave_at;
  const bool has_end = leaves || step >= parts_.target_step;
  const bool has_delays = has_run_ahead_ || parts_.job.training.sync().is_async();
  if (has_end && has_delays && !settling_) return Settle();
  if (step >= parts_.target_step) {
    done_ = true;
    return;
  }
  if (parts_.fault.kind != WorkerFault::kNone && step >= parts_.fault.from_step) {
    return StandStill();
  }
  if (leaves) return Leave();
  if (WaitsInBarrier(step) || Pulls(step)) return;
  computing_ = true;
  const int micros = std::uniform_int_distribution<int>(500, 20000)(random_);
  After(absl::Microseconds(parts_.slowness * micros), [this, step] { PushAll(step); });
}

std::map<uint32_t, uint64_t> WorkerProcess::Versions(uint32_t tensor) const {
  std::map<uint32_t, uint64_t> versions;
  for (uint32_t block = 0; block < exchange_->blocks(); ++block) {
    if (parts_.reference.blocks()[block].tensor != tensor) continue;
    versions[block] = exchange_->version_of(block);
  }
  return versions;
}

void WorkerProcess::Settle() {
  settling_ = true;
  ready_tensors_ = 0;
  for (uint32_t tensor = 0; tensor < weights_.size(); ++tensor) {
    if (parts_.job.tensors[tensor].group.frozen) ++ready_tensors_;
  }
  for (uint32_t tensor = 0; tensor < weights_.size(); ++tensor) {
    if (parts_.job.tensors[tensor].group.frozen) continue;
    Do([&](Exchange& exchange) { return exchange.Settle(tensor, parts_.events.now()); });
  }
}

void WorkerProcess::StandStill() {
  if (parts_.fault.kind == WorkerFault::kEntersBarrier) {
    parts_.control.Send(connection_, BarrierEntered{0});
  }
  if (parts_.fault.kind == WorkerFault::kCrashes) {
    After(absl::Milliseconds(1),
          [this] { parts_.on_end(rank_, absl::AbortedError("crashed")); });
  }
}

void WorkerProcess::Leave() {
  leaving_ = true;
  Do([&](Exchange& exchange) { return exchange.Part(parts_.events.now()); });
}

void WorkerProcess::Run(ExchangeOutputs outputs) {
  for (ExchangeOutput& output : outputs) {
    if (failed_) return;
    if (auto* send = std::get_if<ExchangeSend>(&output)) Send(std::move(*send));
    if (const auto* encode = std::get_if<ExchangeEncode>(&output)) {
      Encode(encode->work);
    }
    if (const auto* decode = std::get_if<ExchangeDecode>(&output)) {
      Decode(decode->work);
    }
    if (const auto* ready = std::get_if<ExchangeReady>(&output)) {
      SpoilLent(ready->tensor);
      if (++ready_tensors_ == weights_.size()) Compute();
    }
    if (const auto* late = std::get_if<ExchangeLate>(&output)) {
      parts_.reference.Late({rank_, *incarnation_, late->step});
    }
    if (auto* averaged = std::get_if<ExchangeAveraged>(&output)) {
      OnAveraged(std::move(*averaged));
    }
    if (std::holds_alternative<ExchangeParted>(output)) {
      parted_ = true;
      parts_.reference.Promised({rank_, *incarnation_, exchange_->step()});
      parts_.control.Send(connection_, ::syncline::Leave{});
    }
    if (auto* failed = std::get_if<ExchangeFailed>(&output)) {
      failed_ = true;
      After(absl::ZeroDuration(),
            [this, status = failed->status] { parts_.on_end(rank_, status); });
    }
  }
}

// Runs the work at the beginning or at the end of its time, so that other code that reads
// or writes the memory meanwhile would be found.
template <typename Answer>
void WorkerProcess::RunSometime(std::function<void()> run, const Answer& answer) {
  const bool is_late = codec_random_() % 2 == 0;
  if (!is_late) run();
  const int most = codec_random_() % 16 == 0 ? 20000 : 500;
  const int micros = std::uniform_int_distribution<int>(0, most)(codec_random_);
  After(absl::Microseconds(micros), [this, run = std::move(run), answer, is_late] {
    if (failed_) return;
    if (is_late) run();
    Do(answer);
  });
}

void WorkerProcess::Encode(const std::shared_ptr<EncodeWork>& work) {
  RunSometime([this, work] { work->Run(workspace_); },
              [this, work](Exchange& exchange) {
                return exchange.Encoded(*work, parts_.events.now());
              });
}

void WorkerProcess::Decode(const std::shared_ptr<DecodeWork>& work) {
  RunSometime(
      [this, work] { work->Run(workspace_); },
      [this, work](Exchange& exchange) {
        if (work->result() == ViewLanding::Result::kDiverged) {
          parts_.reference.Violate(absl::StrCat(
              "worker ", rank_, ": block ", work->header().block,
              " is not what the servers hold after version ", work->header().step));
        }
        return exchange.Decoded(*work, parts_.events.now());
      });
}

void WorkerProcess::Send(ExchangeSend send) {
  const uint32_t block = send.header.block;
  if (send.header.kind == static_cast<uint16_t>(MessageKind::kSeed)) {
    const BlockRange& range = parts_.reference.blocks()[block];
    parts_.reference.SeedSent(
        block,
        std::span(weights_[range.tensor]).subspan(range.first_element, range.elements));
  }
  const uint32_t tensor = parts_.reference.blocks()[block].tensor;
  const bool parts = (send.header.flags & kFlagParting) != 0;
  if (parts && parted_tensors_.insert({tensor, send.header.step}).second) {
    parts_.reference.Pushed({rank_, *incarnation_, send.header.step}, tensor,
                            {.samples = send.header.samples,
                             .loss_scale = exchange_->loss_scale(),
                             .rate_factor = rate_factors_[tensor],
                             .parting = true});
  }
  const bool is_push = send.header.kind == static_cast<uint16_t>(MessageKind::kPush);
  if (is_push && send.header.samples > 0) {
    if (!parts) pushed_.insert({block, send.header.step});
    NoteChoice(send);
  }
  const bool borrows = send.borrows_gradient;
  SendDone done = [this, alive = alive_, block, borrows](const absl::Status&) {
    if (!*alive) return;
    WhenAwake([this, block, borrows] {
      if (failed_) return;
      if (borrows) Run(exchange_->SendDone(block));
      Do([](Exchange&) { return ExchangeOutputs(); });
    });
  };
  if (is_push && parts_.pushes_twice && !send.payload.empty()) {
    ExchangeSend again{.shard = send.shard, .header = send.header};
    again.payload = {Slice::Of(Gather(send.payload))};
    links_->Send(
        std::move(again), [](const absl::Status&) {}, parts_.events.now());
  }
  links_->Send(std::move(send), std::move(done), parts_.events.now());
}

absl::StatusOr<Buffer> WorkerProcess::Allocate(ByteView header, size_t payload_bytes) {
  SYNCLINE_ASSIGN_OR_RETURN(const MessageHeader parsed, ParseHeader(header));
  if (exchange_ == nullptr) return absl::FailedPreconditionError("not started");
  if (payload_bytes > exchange_->MaxPayloadBytes(parsed)) {
    return absl::InvalidArgumentError("too long");
  }
  return Buffer::Allocate(payload_bytes);
}

void WorkerProcess::OnMessage(ByteView header, Buffer payload) {
  const auto parsed = ParseHeader(header);
  if (!parsed.ok()) return;
  parts_.traffic.Arrived(*parsed, payload.size());
  WhenAwake([this, header = *parsed, payload] {
    if (!failed_) Take(header, Slice::Of(payload));
  });
}

void WorkerProcess::OnBorrowed(ByteView header, Landed payload) {
  const auto parsed = ParseHeader(header);
  if (!parsed.ok()) return;
  parts_.traffic.Arrived(*parsed, payload.size());
  WhenAwake([this, header = *parsed, payload = std::move(payload.body)] {
    if (!failed_ && exchange_ != nullptr) Take(header, payload);
  });
}

void WorkerProcess::Take(const MessageHeader& header, const Slice& payload) {
  const absl::Duration now = parts_.events.now();
  if (links_->TakeWelcome(header)) {
    return Do([&](Exchange& exchange) { return exchange.Connected(header.shard, now); });
  }
  if (header.block >= exchange_->blocks()) return;
  const bool is_ack = header.kind == static_cast<uint16_t>(MessageKind::kAck);
  if (is_ack && pushed_.contains({header.block, header.step})) {
    parts_.reference.Acknowledged({rank_, *incarnation_, header.step}, header.block);
  }
  links_->Heard(exchange_->shard_of(header.block));
  Do([&](Exchange& exchange) { return exchange.OnMessage(header, payload, now); });
}

std::string WorkerProcess::Describe() const {
  return absl::StrCat(
      "worker ", rank_, ": ",
      incarnation_ ? absl::StrCat("incarnation ", *incarnation_) : "not welcomed",
      ", step ", exchange_ ? absl::StrCat(exchange_->step()) : "-",
      frozen_ ? ", frozen" : "", failed_ ? ", failed" : "", done_ ? ", done" : "");
}

}  // namespace syncline::sim
