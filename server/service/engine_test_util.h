// An engine and workers over the real transport, in one process. For tests only.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "comm/codec/frame.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/service/engine.h"

namespace syncline {

inline constexpr uint32_t kJob = 4;
inline constexpr uint32_t kElements = 70'000;
inline constexpr absl::Duration kPatience = absl::Seconds(20);

// Holds what arrived, in order, for a test that waits for it.
template <typename T>
class Mailbox {
 public:
  void Put(T item) {
    absl::MutexLock lock(&mutex_);
    items_.push_back(std::move(item));
  }

  // Returns nullopt if nothing comes in time.
  std::optional<T> Take(absl::Duration patience = kPatience) {
    absl::MutexLock lock(&mutex_);
    const auto has_item = [this] { return !items_.empty(); };
    mutex_.AwaitWithTimeout(absl::Condition(&has_item), patience);
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  absl::Mutex mutex_;
  std::deque<T> items_;
};

struct ReceivedByWorker {
  MessageHeader header;
  Buffer payload;
};

inline std::string Describe(const std::optional<ReceivedByWorker>& message) {
  if (!message) return "nothing";
  const MessageHeader& header = message->header;
  const auto code = static_cast<RefuseCode>(header.code);
  switch (static_cast<MessageKind>(header.kind)) {
    case MessageKind::kAck:
      return absl::StrCat("ack s", header.step);
    case MessageKind::kPublish:
      return absl::StrCat("publish v", header.step);
    case MessageKind::kNoted:
      return absl::StrCat("noted v", header.step);
    case MessageKind::kWelcome:
      return absl::StrCat("welcome ", header.step);
    default:
      return absl::StrCat("refuse ", RefuseCodeName(code));
  }
}

// A worker, as an engine sees it.
class FakeWorker : private Receiver {
 public:
  // `key`: the key given to Admit, if the engine needs one.
  FakeWorker(uint32_t rank, const std::string& engine_address, SecretKey key = {})
      : rank_(rank) {
    const NetworkOptions options = {
        .plan = {.mode = *ModeOf(std::span(&engine_address, 1))}};
    loop_ = *TransportLoop::Start(
        [this, options] { return CreateNetworkTransport(options, *this); }, {});
    loop_->Post([this, engine_address, key](Transport& transport) {
      endpoint_ = *transport.Connect(
          engine_address, {.on_failure = [this](const absl::Status&) { lost_.Notify(); },
                           .key = {EncodeIdentity({kJob, rank_, 10 + rank_}), key}});
    });
  }
  void AwaitLoss() { lost_.WaitForNotification(); }
  ~FakeWorker() override { Die(); }

  // Returns when everything sent before has been handed to the transport.
  void Flush() {
    absl::Notification done;
    loop_->Post([&](Transport& transport) {
      transport.Progress();
      done.Notify();
    });
    done.WaitForNotification();
  }

  void Die() {
    loop_->Post([this](Transport&) { endpoint_ = nullptr; });
    loop_->Stop();
  }

  MessageHeader Header(MessageKind kind, uint64_t epoch, uint64_t step) const {
    MessageHeader header;
    header.kind = static_cast<uint16_t>(kind);
    header.job = kJob;
    header.rank = rank_;
    header.incarnation = 10 + rank_;
    header.session_key = 1000 + rank_;
    header.epoch = epoch;
    header.step = step;
    header.samples = kind == MessageKind::kSeed ? 0 : 1;
    return header;
  }

  void Send(MessageHeader header, const Buffer& payload) {
    loop_->Post([this, header, payload](Transport&) mutable {
      endpoint_->Send(SealHeader(header), {Slice::Of(payload)},
                      [](const absl::Status&) {});
    });
  }

  void SayHello() {
    SendHello(0);
    EXPECT_EQ(Next(), absl::StrCat("welcome ", hellos_));
  }
  // Sends the last hello again.
  void RepeatHello() {
    --hellos_;
    SayHello();
  }
  void SendHello(uint64_t session_key_offset) {
    MessageHeader header = Header(MessageKind::kHello, 0, ++hellos_);
    header.session_key += session_key_offset;
    const std::string& address = loop_->address();
    Send(header,
         Buffer::CopyOf(std::as_bytes(std::span(address.data(), address.size()))));
  }

  // Sends a block whose elements all have this value.
  void SendBlock(MessageKind kind, uint64_t epoch, uint64_t step, float value) {
    std::vector<float> values(kElements, value);
    const Buffer payload = Gather(EncodeBlock(
        codec(),
        {BlockRange{.tensor = 0, .first_element = 0, .elements = kElements}, step, epoch},
        values, Checksum::kHeaderOnly, pool_));
    Send(Header(kind, epoch, step), payload);
  }

  std::string Next() { return Describe(inbox_.Take()); }
  std::optional<ReceivedByWorker> NextMessage() { return inbox_.Take(); }

  const Codec& codec() const { return **codecs_.Find(CodecId::kFp32); }

 private:
  absl::StatusOr<Buffer> Allocate(ByteView, size_t payload_bytes) override {
    return Buffer::Allocate(payload_bytes);
  }
  void OnMessage(ByteView header, Buffer payload) override {
    inbox_.Put({*ParseHeader(header), std::move(payload)});
  }

  const uint32_t rank_;
  uint64_t hellos_ = 0;
  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  BufferPool pool_{0};
  Mailbox<ReceivedByWorker> inbox_;
  absl::Notification lost_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<TransportLoop> loop_;
};

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() { Restart({}); }

  void Restart(const DataPlanePlan& plan,
               uint64_t most_unread_bytes = WorkerLink::kMaxUnreadBytes) {
    EngineEvents events;
    events.on_output = [this](uint32_t, const ShardOutput& output) {
      outputs_.Put(output);
      if (std::holds_alternative<ShardPrepared>(output)) may_go_on_.WaitForNotification();
    };
    events.on_backed_up = [this](uint32_t, uint64_t key) { backed_up_.Put(key); };
    const Logger audit = Logger::Create(
        {.function = [this](LogLevel, const std::string& line) { audited_.Put(line); }});
    engine_ = *Engine::Start({.plan = plan,
                              .audit = audit,
                              .metrics = &metrics_,
                              .most_unread_bytes = most_unread_bytes},
                             std::move(events));
    AddJob(kJob);
  }

  // Returns a job of one trained block and `frozen` frozen ones.
  EngineJobOptions JobOptions(uint32_t job, uint32_t frozen = 0) const {
    EngineJobOptions options;
    options.shard.job = job;
    options.shard.seed_codec = *codecs_.Find(CodecId::kFp32);
    options.shard.transfers = {
        {.push = *ParseTransfer("fp32"), .publish = *ParseTransfer("fp32")}};
    options.shard.training.optimizer.options = {{"lr", 1}};
    const uint64_t elements = kElements;
    options.shard.tensors = {{.shape = TensorShape({&elements, 1})}};
    options.blocks = {{0, {.tensor = 0, .first_element = 0, .elements = kElements}}};
    for (uint32_t i = 1; i <= frozen; ++i) {
      options.shard.transfers.push_back(options.shard.transfers.front());
      options.shard.tensors.push_back(options.shard.tensors.front());
      options.shard.tensors.back().group.frozen = true;
      options.blocks.push_back(
          {i, {.tensor = i, .first_element = 0, .elements = kElements}});
    }
    return options;
  }
  void AddJob(uint32_t job, uint32_t frozen = 0) {
    auto built = engine_->Build(JobOptions(job, frozen));
    ASSERT_TRUE(built.ok()) << built.status();
    metrics_.NameJob(job, job == kJob ? "job" : absl::StrCat("job", job));
    engine_->Adopt(job, *std::move(built));
  }

  void Commit(uint64_t epoch, const std::vector<uint32_t>& ranks) {
    ShardCommit commit{.epoch = epoch};
    for (const uint32_t rank : ranks)
      commit.members.push_back({rank, 10 + rank, 0, 1000 + rank});
    engine_->Apply(kJob, commit);
    while (!std::holds_alternative<ShardCommitted>(outputs_.Take().value())) {
    }
  }

  std::string Exposition() {
    metrics_.Refresh();
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

  // Waits until the metrics contain the line. Messages on different connections have no
  // order; a message has been handled when it is counted.
  void AwaitExposition(const std::string& line) {
    while (!absl::StrContains(Exposition(), line)) std::this_thread::yield();
  }

  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  prometheus::Registry registry_;
  Metrics metrics_{registry_};
  Mailbox<ShardOutput> outputs_;
  Mailbox<std::string> audited_;
  Mailbox<uint64_t> backed_up_;  // session keys of backups that have the whole state
  // After ShardPrepared the engine's thread waits for this.
  absl::Notification may_go_on_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace syncline
