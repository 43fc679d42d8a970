// An engine and workers over the real transport, in one process.
#include "server/service/engine.h"

#include <deque>
#include <optional>
#include <thread>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "comm/codec/frame.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kJob = 4;
constexpr uint32_t kElements = 70'000;
constexpr absl::Duration kPatience = absl::Seconds(20);

// What arrived, in order, for a test that waits for it.
template <typename T>
class Mailbox {
 public:
  void Put(T item) {
    absl::MutexLock lock(&mutex_);
    items_.push_back(std::move(item));
  }

  // Nullopt when nothing comes.
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

struct Received {
  MessageHeader header;
  Buffer payload;
};

std::string Describe(const std::optional<Received>& message) {
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

// The worker's end of the wire.
class FakeWorker : private Receiver {
 public:
  // `key`: as the engine was told, where it asks for one.
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

  // Returns when what was sent before has been handed to the transport.
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
  void SendHello(uint64_t session_key_offset) {
    MessageHeader header = Header(MessageKind::kHello, 0, ++hellos_);
    header.session_key += session_key_offset;
    const std::string& address = loop_->address();
    Send(header,
         Buffer::CopyOf(std::as_bytes(std::span(address.data(), address.size()))));
  }

  // All elements have the same value.
  void SendBlock(MessageKind kind, uint64_t epoch, uint64_t step, float value) {
    std::vector<float> values(kElements, value);
    const Buffer payload = Gather(EncodeBlock(
        codec(),
        {BlockRange{.tensor = 0, .first_element = 0, .elements = kElements}, step, epoch},
        values, Checksum::kHeaderOnly, pool_));
    Send(Header(kind, epoch, step), payload);
  }

  std::string Next() { return Describe(inbox_.Take()); }
  std::optional<Received> NextMessage() { return inbox_.Take(); }

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
  Mailbox<Received> inbox_;
  absl::Notification lost_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<TransportLoop> loop_;
};

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() { Restart({}); }

  void Restart(const DataPlanePlan& plan) {
    EngineEvents events;
    events.on_output = [this](uint32_t, const ShardOutput& output) {
      outputs_.Put(output);
      if (std::holds_alternative<ShardPrepared>(output)) may_go_on_.WaitForNotification();
    };
    engine_ = *Engine::Start({.plan = plan, .metrics = &metrics_}, std::move(events));
    AddJob(kJob);
  }

  // A job of one block, and of so many that are frozen.
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

  // Connections have no order among each other: what one has sent is there when it counts.
  void AwaitExposition(const std::string& line) {
    while (!absl::StrContains(Exposition(), line)) std::this_thread::yield();
  }

  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  prometheus::Registry registry_;
  Metrics metrics_{registry_};
  Mailbox<ShardOutput> outputs_;
  absl::Notification may_go_on_;  // the engine stands still from ShardPrepared to this
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, CarriesAStepFromPushesToPublishedWeights) {
  Commit(1, {0, 1});
  FakeWorker first(0, engine_->address());
  FakeWorker second(1, engine_->address());
  first.SayHello();
  second.SayHello();
  first.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(first.Next(), "ack s0");
  first.SendBlock(MessageKind::kPush, 1, 0, 1.0f);
  EXPECT_EQ(first.Next(), "ack s0");
  second.SendBlock(MessageKind::kPush, 1, 0, 3.0f);
  EXPECT_EQ(second.Next(), "ack s0");
  EXPECT_EQ(second.Next(), "publish v1");
  const auto published = first.NextMessage();
  ASSERT_EQ(Describe(published), "publish v1");
  const auto view = ParseBlock(
      published->payload.view(),
      {BlockRange{.tensor = 0, .first_element = 0, .elements = kElements}, 1, 1},
      {&first.codec()});
  ASSERT_TRUE(view.ok()) << view.status();
  std::vector<float> weights(kTileElements);
  ASSERT_TRUE(first.codec().Decode(view->tiles[0].bytes, weights).ok());
  EXPECT_EQ(weights, std::vector<float>(kTileElements, 6.0f));
  EXPECT_EQ(engine_->step(), 1u);
  EXPECT_GT(engine_->bytes(), 5u * 4 * kElements);
  first.SendBlock(MessageKind::kPush, 1, 0, 1.0f);  // again: counted before
  EXPECT_EQ(first.Next(), "ack s0");
  first.Send(first.Header(MessageKind::kPull, 1, 1), {});
  EXPECT_EQ(first.Next(), "noted v1") << "it was sent, and this connection loses nothing";
  first.SayHello();
  first.SendBlock(MessageKind::kPush, 1, 0, 1.0f);
  EXPECT_EQ(first.Next(), "ack s0");
  EXPECT_EQ(first.Next(), "publish v1") << "the last connection may have lost it";
  EXPECT_THAT(Exposition(),
              HasSubstr("syncline_pushes_total{job_name=\"job\",result=\"counted\"} 2"));
  EXPECT_THAT(Exposition(),
              HasSubstr("syncline_pushes_total{job_name=\"job\",result=\"repeated\"} 2"));
  EXPECT_THAT(Exposition(), HasSubstr("syncline_step_seconds_count{job_name=\"job\"} 1"));
}

// Frozen tensors make no steps.
TEST_F(EngineTest, AStepIsWholeWithoutTheFrozenBlocks) {
  AddJob(kJob, 2);
  Commit(1, {0});
  FakeWorker worker(0, engine_->address());
  worker.SayHello();
  worker.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(worker.Next(), "ack s0");
  for (uint64_t step = 0; step < 3; ++step) {
    worker.SendBlock(MessageKind::kPush, 1, step, 1.0f);
    EXPECT_EQ(worker.Next(), absl::StrCat("ack s", step));
    EXPECT_EQ(worker.Next(), absl::StrCat("publish v", step + 1));
  }
  EXPECT_THAT(Exposition(), HasSubstr("syncline_step_seconds_count{job_name=\"job\"} 3"));
}

TEST_F(EngineTest, TellsAWorkerWhyItsMessageIsNotTaken) {
  Commit(2, {0});
  FakeWorker worker(0, engine_->address());
  worker.SayHello();
  worker.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(worker.Next(), "refuse stale epoch");
  worker.SendBlock(MessageKind::kSeed, 3, 0, 8.0f);
  EXPECT_EQ(worker.Next(), "refuse future epoch");
  worker.SendBlock(MessageKind::kSeed, 2, 0, 8.0f);
  EXPECT_EQ(worker.Next(), "ack s0");
  worker.Send(worker.Header(MessageKind::kPush, 2, 0),
              Buffer::Allocate(1 << 20));  // too long
  EXPECT_EQ(worker.Next(), "refuse malformed");
  EXPECT_THAT(
      Exposition(),
      HasSubstr("syncline_refused_total{job_name=\"job\",reason=\"stale_epoch\"} 1"));
}

// The refusal of what arrived too early says so, also when the epoch has come meanwhile.
TEST_F(EngineTest, JudgesAMessageByTheEpochOfItsArrival) {
  Commit(1, {0});
  FakeWorker worker(0, engine_->address());
  worker.SayHello();
  worker.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(worker.Next(), "ack s0");
  engine_->Apply(kJob, ShardPrepare{2});
  EXPECT_TRUE(std::holds_alternative<ShardPrepared>(outputs_.Take().value()));
  // The engine stands still: the commit is queued before the push is looked at.
  worker.SendBlock(MessageKind::kPush, 2, 0, 1.0f);
  worker.Flush();
  engine_->Apply(kJob, ShardCommit{.epoch = 2, .members = {{0, 10, 0, 1000}}});
  may_go_on_.Notify();
  const std::string answer = worker.Next();
  EXPECT_TRUE(answer == "refuse future epoch" || answer == "ack s0") << answer;
  worker.SendBlock(MessageKind::kPush, 2, 0, 1.0f);
  EXPECT_EQ(worker.Next(), answer == "ack s0" ? "publish v1" : "ack s0");
}

TEST_F(EngineTest, AnswersOnlyWhoShowsTheSessionKey) {
  Commit(1, {0});
  FakeWorker worker(0, engine_->address());
  worker.SendHello(/*session_key_offset=*/1);
  worker.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);  // its ack has no way back
  worker.SayHello();
  worker.Send(worker.Header(MessageKind::kPull, 1, 0), {});
  EXPECT_EQ(worker.Next(), "publish v0");
}

// An engine whose workers come over TCP, by the mode.
class TcpEngineTest : public EngineTest,
                      public ::testing::WithParamInterface<DataPlaneMode> {
 protected:
  TcpEngineTest() { Restart({.mode = GetParam(), .listen_host = "127.0.0.1"}); }

  static SecretKey KeyOf(uint32_t rank) {
    std::array<std::byte, SecretKey::kBytes> bytes;
    bytes.fill(static_cast<std::byte>(rank + 1));
    return *SecretKey::From(bytes);
  }

  void Admit(const std::vector<uint32_t>& ranks) {
    std::vector<EngineMember> members;
    for (const uint32_t rank : ranks) members.push_back({rank, 10 + rank, KeyOf(rank)});
    engine_->Admit(kJob, members);
  }
};

INSTANTIATE_TEST_SUITE_P(Tcp, TcpEngineTest,
                         ::testing::Values(DataPlaneMode::kTls, DataPlaneMode::kPlain),
                         [](const auto& info) {
                           return info.param == DataPlaneMode::kTls ? "tls" : "plain";
                         });

TEST_P(TcpEngineTest, CarriesAStepOnTheConnectionsThatWorkersOpened) {
  Admit({0, 1});
  Commit(1, {0, 1});
  FakeWorker first(0, engine_->address(), KeyOf(0));
  FakeWorker second(1, engine_->address(), KeyOf(1));
  first.SayHello();
  second.SayHello();
  first.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(first.Next(), "ack s0");
  first.SendBlock(MessageKind::kPush, 1, 0, 1.0f);
  EXPECT_EQ(first.Next(), "ack s0");
  second.SendBlock(MessageKind::kPush, 1, 0, 3.0f);
  EXPECT_EQ(second.Next(), "ack s0");
  EXPECT_EQ(second.Next(), "publish v1");
  EXPECT_EQ(first.Next(), "publish v1");
}

TEST_P(TcpEngineTest, WhoSpeaksInTheNameOfAnotherLosesItsConnection) {
  Admit({0, 1});
  Commit(1, {0, 1});
  FakeWorker worker(0, engine_->address(), KeyOf(0));
  worker.SayHello();
  MessageHeader header = worker.Header(MessageKind::kPull, 1, 0);
  header.rank = 1;  // a member, too
  header.incarnation = 11;
  header.session_key = 1001;
  worker.Send(header, {});
  worker.AwaitLoss();
  EXPECT_THAT(
      Exposition(),
      HasSubstr("syncline_auth_refused_total{door=\"data\",reason=\"identity\"} 1"));
}

TEST_P(TcpEngineTest, StrangersAndThoseWhoWereDroppedAreNotLetIn) {
  Admit({0, 1});
  Commit(1, {0, 1});
  FakeWorker stranger(2, engine_->address(), KeyOf(2));
  stranger.SendHello(0);
  stranger.AwaitLoss();
  FakeWorker dropped(1, engine_->address(), KeyOf(1));
  dropped.SayHello();
  dropped.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(dropped.Next(), "ack s0");
  Admit({0});
  Commit(2, {0});
  dropped.AwaitLoss();
  FakeWorker again(1, engine_->address(), KeyOf(1));
  again.SendHello(0);
  again.AwaitLoss();
}

TEST_F(EngineTest, DroppedMembersHearNothingMore) {
  Commit(1, {0, 1});
  FakeWorker first(0, engine_->address());
  FakeWorker second(1, engine_->address());
  first.SayHello();
  second.SayHello();
  second.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
  EXPECT_EQ(second.Next(), "ack s0");
  Commit(2, {0});
  second.SendBlock(MessageKind::kPush, 2, 0, 1.0f);
  AwaitExposition("syncline_refused_total{job_name=\"job\",reason=\"not_a_member\"} 1");
  first.SendBlock(MessageKind::kPush, 2, 0, 1.0f);
  EXPECT_EQ(first.Next(), "ack s0");
  EXPECT_EQ(first.Next(), "publish v1");
  const auto applied = outputs_.Take();
  ASSERT_TRUE(applied.has_value() && std::holds_alternative<ShardApplied>(*applied));
  EXPECT_EQ(std::get<ShardApplied>(*applied).contributors.size(), 1u);
  // Back in the job: anything sent to it meanwhile would come before this.
  Commit(3, {0, 1});
  second.SayHello();
  second.Send(second.Header(MessageKind::kPull, 3, 1), {});
  EXPECT_EQ(second.Next(), "publish v1");
}

TEST_F(EngineTest, OutlivesWorkersThatDieInTheMiddle) {
  Commit(1, {0, 1});
  FakeWorker survivor(0, engine_->address());
  {
    FakeWorker victim(1, engine_->address());
    victim.SayHello();
    victim.SendBlock(MessageKind::kSeed, 1, 0, 8.0f);
    EXPECT_EQ(victim.Next(), "ack s0");
  }
  survivor.SayHello();
  survivor.SendBlock(MessageKind::kPush, 1, 0, 1.0f);
  EXPECT_EQ(survivor.Next(), "ack s0");
  Commit(2, {0});
  EXPECT_EQ(survivor.Next(), "publish v1");
}

TEST_F(EngineTest, AJobThatIsReleasedAnswersNothing) {
  Commit(1, {0});
  const std::shared_ptr<Shard> shard = engine_->Release(kJob);
  ASSERT_NE(shard, nullptr);
  EXPECT_EQ(shard->epoch(), 1u) << "it is whole, and the caller's";
  EXPECT_EQ(engine_->Release(kJob), nullptr);
  engine_->Apply(kJob, ShardPrepare{2});
  EXPECT_TRUE(engine_->ReleaseAll().empty());
  EXPECT_FALSE(outputs_.Take(absl::ZeroDuration()).has_value());
}

TEST_F(EngineTest, WhatCannotBeBuiltIsSaidAndLeavesOtherJobsAlone) {
  EngineJobOptions options = JobOptions(kJob + 1);
  options.shard.training.optimizer.name = "no such thing";
  EXPECT_EQ(engine_->Build(options).status().code(), absl::StatusCode::kInvalidArgument);
  Commit(1, {0});
  EXPECT_EQ(engine_->ReleaseAll().size(), 1u);
}

}  // namespace
}  // namespace syncline
