// Tests of the data plane over a transport that does not finish its sends by itself.
#include "worker/client/data_plane.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "comm/base/env.h"
#include "comm/base/eventually.h"
#include "comm/base/limits.h"
#include "comm/base/tiling.h"
#include "comm/base/trace_recorder.h"
#include "comm/codec/frame.h"
#include "comm/transport/message.h"
#include "comm/transport/shared_arena.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);
// How long tests wait for something that must not happen.
constexpr absl::Duration kMoment = absl::Milliseconds(50);
constexpr uint32_t kElements = 1000;
constexpr uint32_t kManyElements = 2 * kTileElements;  // still one block

// Values that the test and the loop thread share.
struct Script {
  std::atomic<int> held = 0;    // number of sends that are not done
  std::atomic<int> rounds = 0;  // number of calls of Progress
  std::atomic<int> wakes = 0;
  std::atomic<uint32_t> elements = kElements;   // of each tensor
  std::atomic<CodecId> codec = CodecId::kFp32;  // of views
  std::atomic<bool> closed = false;             // the endpoint is gone
  std::atomic<bool> let_go = false;             // sends of closed endpoints may complete
  std::atomic<bool> acknowledge = false;        // acknowledge the held send, once
};

// Answers pulls, and reads the payload of every push in every round, like a network card
// that has not sent it yet.
class HoldingTransport : public Transport {
 public:
  HoldingTransport(Receiver& receiver, Script& script)
      : receiver_(receiver), script_(script) {}
  ~HoldingTransport() override { Cancel(); }

  const std::string& address() const override { return address_; }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const std::string&,
                                                    ConnectOptions) override {
    return std::make_unique<HoldingEndpoint>(*this);
  }

  int Progress() override {
    ++script_.rounds;
    for (const Held& one : held_) ReadAll(one.payload);
    if (script_.acknowledge.exchange(false)) {
      for (const Held& one : held_) answers_.push_back(AnswerTo(one.header, {}));
    }
    if (script_.closed && script_.let_go) {
      Cancel();
    }
    for (Answer& answer : std::exchange(answers_, {})) {
      receiver_.OnMessage(SealHeader(answer.header), answer.payload);
    }
    return 0;
  }

  void Wait(absl::Duration timeout) override {
    const absl::MutexLock lock(&mutex_);
    // The time limit keeps rounds going if nothing wakes the loop.
    mutex_.AwaitWithTimeout(absl::Condition(&awake_),
                            std::min(timeout, absl::Milliseconds(1)));
    awake_ = false;
  }
  void Wake() override {
    ++script_.wakes;
    const absl::MutexLock lock(&mutex_);
    awake_ = true;
  }

 private:
  struct Answer {
    MessageHeader header;
    Buffer payload;
  };
  struct Held {
    MessageHeader header;
    Payload payload;
    SendDone done;
  };

  class HoldingEndpoint : public Endpoint {
   public:
    explicit HoldingEndpoint(HoldingTransport& transport) : transport_(transport) {}
    ~HoldingEndpoint() override { transport_.script_.closed = true; }
    void Send(ByteView header, Payload payload, SendDone done) override {
      transport_.Send(*ParseHeader(header), std::move(payload), std::move(done));
    }
    // The window has room for one block.
    SendState send_state() const override {
      return {.accepted_bytes = transport_.held_.empty() ? 0 : kDefaultWindowBytes};
    }
    bool IsLocal() const override { return false; }
    std::string Describe() const override { return "holding"; }

   private:
    HoldingTransport& transport_;
  };

  void Cancel() {
    for (const Held& one : std::exchange(held_, {})) {
      --script_.held;
      one.done(absl::CancelledError("endpoint was closed"));
    }
  }

  static Answer AnswerTo(const MessageHeader& asked, Buffer payload) {
    MessageHeader header = asked;
    const bool is_push = header.kind == static_cast<uint16_t>(MessageKind::kPush);
    header.kind =
        static_cast<uint16_t>(is_push ? MessageKind::kAck : MessageKind::kPublish);
    return {header, std::move(payload)};
  }

  static void ReadAll(const Payload& payload) {
    unsigned sum = 0;
    for (const Slice& slice : payload) {
      for (size_t i = 0; i < slice.size; ++i)
        sum += std::to_integer<unsigned>(slice.data[i]);
    }
    volatile unsigned keep = sum;
    static_cast<void>(keep);
  }

  void Send(const MessageHeader& header, Payload payload, SendDone done) {
    if (header.kind == static_cast<uint16_t>(MessageKind::kPush)) {
      held_.push_back({header, std::move(payload), std::move(done)});
      ++script_.held;
      return;
    }
    if (header.kind == static_cast<uint16_t>(MessageKind::kHello)) {
      answers_.push_back({header, {}});
      answers_.back().header.kind = static_cast<uint16_t>(MessageKind::kWelcome);
    }
    if (header.kind != static_cast<uint16_t>(MessageKind::kPull)) return;
    const std::vector<float> zeros(script_.elements);
    const CodecRegistry codecs = CodecRegistry::Builtin();
    const BlockLabel label = {{.tensor = header.block, .elements = script_.elements},
                              header.step,
                              header.epoch};
    answers_.push_back(
        AnswerTo(header, Gather(EncodeBlock(**codecs.Find(script_.codec), label, zeros,
                                            Checksum::kHeaderAndPayload, pool_))));
  }

  Receiver& receiver_;
  Script& script_;
  const std::string address_ = "holding";
  BufferPool pool_{1 << 20};
  std::vector<Held> held_;
  std::vector<Answer> answers_;
  absl::Mutex mutex_;
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;
};

// A clock whose Now blocks until LetGo.
class HoldingClock final : public Clock {
 public:
  absl::Duration Now() const override {
    asked_ = true;
    let_go_.WaitForNotificationWithTimeout(kPatience);
    return absl::ZeroDuration();
  }
  bool asked() const { return asked_; }
  void LetGo() { let_go_.Notify(); }

 private:
  mutable std::atomic<bool> asked_ = false;
  absl::Notification let_go_;
};

// Two tensors whose gradients were both pushed. The transport holds one, and the other
// waits in the exchange for room.
class ClosingDataPlane : public ::testing::Test {
 protected:
  void Push(absl::Duration grace) {
    Start(grace, "fp32");
    for (uint32_t tensor : {0u, 1u}) plane_->Push(tensor, *gradients_[tensor], 1);
    ASSERT_TRUE(Eventually([&] { return script_.held == 1; }));
  }

  void Start(absl::Duration grace, const char* codec, uint32_t threads = 0) {
    Launch(grace, {*ParseTransfer(codec), *ParseTransfer("fp32")}, threads);
    ASSERT_TRUE(Eventually([&] { return ready_ == 2; }));
  }

  void Launch(absl::Duration grace, const TensorTransfers& transfers, uint32_t threads) {
    DataPlaneOptions options;
    options.timeouts.shutdown_grace = grace;
    options.timeouts.link_silence = absl::Hours(1);
    options.shard_addresses = {"holding"};
    options.exchange.shards = 1;
    options.exchange.shard_of_block = {0, 0};
    options.exchange.transfers.assign(2, transfers);
    options.exchange.first_step = first_step_;
    options.codec_threads = threads;
    options.codec_tracks = tracks_;
    options.arena = arena_;
    options.exchange.seed_codec = *codecs_.Find(CodecId::kFp32);
    options.make_transport = [this](Receiver& receiver) {
      return std::make_unique<HoldingTransport>(receiver, script_);
    };
    plane_ = *DataPlane::Start(std::move(options), {weights_[0], weights_[1]},
                               {.on_ready = [this](const ExchangeReady&) { ++ready_; },
                                .on_failed = [](const absl::Status&) {}});
  }

  // Lets a codec thread decode a view until clock_ is let go, while another view waits.
  void ReceiveOnAThread() {
    script_.elements = kManyElements;
    script_.codec = CodecId::kBf16;
    for (auto& weights : weights_) weights.assign(kManyElements, 5.0f);
    first_step_ = 1;  // version 0 is not the result of a step, so it is not traced
    tracks_ = {recorder_.AddTrack("codec 1")};
    recorder_.Open(0);
    recorder_.Limit(1);
    Launch(absl::Hours(1), {*ParseTransfer("fp32"), *ParseTransfer("bf16")}, 1);
    ASSERT_TRUE(Eventually([&] { return clock_.asked(); }));
  }

  // Lets a codec thread encode a gradient until clock_ is let go. Nothing else reads that
  // clock.
  void PushToAThread(const char* codec) {
    script_.elements = kManyElements;
    for (auto& weights : weights_) weights.assign(kManyElements, 0.0f);
    for (auto& gradient : gradients_) gradient.emplace(kManyElements, 1.0f);
    tracks_ = {recorder_.AddTrack("codec 1")};
    recorder_.Open(0);
    Start(absl::Hours(1), codec, 1);
    plane_->Push(0, *gradients_[0], 1);
    plane_->Flush();
    ASSERT_TRUE(Eventually([&] { return clock_.asked(); }));
  }

  void RunRounds() {
    const int rounds = script_.rounds;
    ASSERT_TRUE(Eventually([&] { return script_.rounds > rounds + 3; }));
  }

  // Closes the data plane, and blocks its loop until go_on_ is notified.
  void CloseAndHoldTheLoop() {
    script_.let_go = true;
    plane_->Close([this] {
      told_.Notify();
      go_on_.WaitForNotification();
    });
    ASSERT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
  }

  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  std::vector<float> weights_[2] = {std::vector<float>(kElements),
                                    std::vector<float>(kElements)};
  std::optional<std::vector<float>> gradients_[2] = {std::vector<float>(kElements, 1.0f),
                                                     std::vector<float>(kElements, 1.0f)};
  const std::shared_ptr<SharedArena> arena_ = SharedArena::Create({});
  Script script_;
  uint64_t first_step_ = 0;
  std::atomic<int> ready_ = 0;
  absl::Notification told_, go_on_;
  HoldingClock clock_;
  TraceRecorder recorder_{clock_};
  std::vector<TraceTrack*> tracks_;  // of the codec threads
  std::unique_ptr<DataPlane> plane_;
};

TEST_F(ClosingDataPlane, SaysSoWhenNothingReadsGradientsAnyMore) {
  Push(absl::Hours(1));
  ASSERT_TRUE(plane_->Close([this] { told_.Notify(); }));
  ASSERT_TRUE(Eventually([&] { return script_.closed.load(); }));
  RunRounds();
  EXPECT_FALSE(told_.HasBeenNotified()) << "the transport still reads";
  script_.let_go = true;
  ASSERT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(script_.held, 0);
  for (auto& gradient : gradients_) gradient.reset();
  RunRounds();
}

TEST_F(ClosingDataPlane, EncodesNothingMoreWhateverArrives) {
  Push(absl::Hours(1));
  script_.let_go = true;
  plane_->Close([this] { told_.Notify(); });
  // This makes the room that the other gradient waits for.
  script_.acknowledge = true;
  ASSERT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
  for (auto& gradient : gradients_) gradient.reset();
  plane_->Push(1, {}, 1);
  plane_->Skip(1);
  plane_->EpochChanged(7, SeedRole::kSeeder);
  RunRounds();
  EXPECT_EQ(script_.held, 0);
  EXPECT_EQ(ready_, 2);
}

TEST_F(ClosingDataPlane, DoesNotWaitForeverForATransportThatDoesNotLetGo) {
  Push(absl::ZeroDuration());
  plane_->Close([this] { told_.Notify(); });
  EXPECT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
  script_.let_go = true;
  plane_->Stop();
}

// Once Close has reported the end, the program may free its gradients, including those
// that codec threads were encoding.
TEST_F(ClosingDataPlane, WaitsForWhatIsBeingEncoded) {
  script_.elements = kManyElements;
  for (const uint32_t threads : {0u, 1u, 3u}) {
    for (int round = 0; round < 10; ++round) {
      for (auto& weights : weights_) weights.assign(kManyElements, 0.0f);
      for (auto& gradient : gradients_) gradient.emplace(kManyElements, 1.0f);
      ready_ = 0;
      absl::Notification told;
      Start(absl::Hours(1), "onebit:min_elements=0,vectors=1", threads);
      for (uint32_t tensor : {0u, 1u}) plane_->Push(tensor, *gradients_[tensor], 1);
      plane_->Flush();
      script_.let_go = true;
      if (round % 2 == 1) {
        ASSERT_TRUE(Eventually([&] { return script_.held > 0; }));
      }
      ASSERT_TRUE(plane_->Close([&] { told.Notify(); }));
      ASSERT_TRUE(told.WaitForNotificationWithTimeout(kPatience));
      for (auto& gradient : gradients_) gradient.reset();
      plane_ = nullptr;
      EXPECT_EQ(script_.held, 0);
      script_.closed = script_.let_go = false;
    }
  }
}

// The exchange keeps no error feedback for this codec, so a failure here does not break
// other tests.
TEST_F(ClosingDataPlane, IsNotClosedWhileAThreadEncodes) {
  PushToAThread("bf16");
  script_.let_go = true;
  ASSERT_TRUE(plane_->Close([this] { told_.Notify(); }));
  EXPECT_FALSE(told_.WaitForNotificationWithTimeout(kMoment)) << "a thread still reads";
  clock_.LetGo();
  EXPECT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
}

TEST_F(ClosingDataPlane, GoesOnWhileAThreadDecodes) {
  ReceiveOnAThread();
  RunRounds();
  EXPECT_EQ(ready_, 0);
  clock_.LetGo();
  ASSERT_TRUE(Eventually([&] { return ready_ == 2; }));
  for (const auto& weights : weights_) {
    EXPECT_EQ(weights, std::vector<float>(kManyElements, 0.0f));
  }
  script_.let_go = true;
}

// Once Close has reported the end, the program may use its weights.
TEST_F(ClosingDataPlane, IsNotClosedWhileAThreadDecodes) {
  ReceiveOnAThread();
  script_.let_go = true;
  ASSERT_TRUE(plane_->Close([this] { told_.Notify(); }));
  EXPECT_FALSE(told_.WaitForNotificationWithTimeout(kMoment)) << "a thread still writes";
  clock_.LetGo();
  ASSERT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
  for (auto& weights : weights_) weights.assign(kManyElements, 7.0f);
  RunRounds();
  EXPECT_EQ(ready_, 0);
  EXPECT_EQ(weights_[0], std::vector<float>(kManyElements, 7.0f));
  EXPECT_EQ(weights_[1], std::vector<float>(kManyElements, 7.0f));
}

TEST_F(ClosingDataPlane, LendsItsMemoriesToNobodyWhileAThreadEncodes) {
  PushToAThread("onebit:min_elements=0,vectors=1");
  absl::Notification lent;
  std::thread asks([&] {
    const auto use = [&](DataPlane::Memories memories) {
      EXPECT_EQ(memories.size(), 2u);
      lent.Notify();
      return absl::OkStatus();
    };
    EXPECT_TRUE(plane_->WithMemories(use, kPatience).ok());
  });
  EXPECT_FALSE(lent.WaitForNotificationWithTimeout(kMoment)) << "a thread writes to one";
  clock_.LetGo();
  asks.join();
  EXPECT_TRUE(lent.HasBeenNotified());
  script_.let_go = true;
}

TEST_F(ClosingDataPlane, WakesItsLoopForManySmallGradientsOnce) {
  Push(absl::Hours(1));
  CloseAndHoldTheLoop();
  const int before = script_.wakes;
  const std::vector<float> gradient((256 << 10) / sizeof(float));
  const auto push = [&](size_t elements) {
    plane_->Push(0, std::span(gradient).first(elements), 1);
  };
  plane_->Flush();
  push(10);
  push(gradient.size() - 11);
  EXPECT_EQ(script_.wakes, before);
  push(1);
  EXPECT_EQ(script_.wakes, before + 1);
  go_on_.Notify();
}

TEST_F(ClosingDataPlane, FlushWakesItsLoopForASmallGradient) {
  Push(absl::Hours(1));
  CloseAndHoldTheLoop();
  const int before = script_.wakes;
  plane_->Skip(0);
  EXPECT_EQ(script_.wakes, before);
  plane_->Flush();
  EXPECT_EQ(script_.wakes, before + 1);
  go_on_.Notify();
}

// A server reads the gradient of tensor 0 in place, and holds it.
class LendingDataPlane : public ClosingDataPlane {
 protected:
  LendingDataPlane() : memory_(arena_->AllocateTensor(kElements * sizeof(float))) {
    std::ranges::fill(values(), 1.0f);
    const ByteView bytes = std::as_bytes(values());
    borrowed_ = *borrower_.Borrow(arena_->Lend(bytes)->loan);
  }
  std::span<float> values() const {
    return {reinterpret_cast<float*>(memory_.get()), kElements};
  }
  // Returns the first element as the server sees it.
  float first() const { return *reinterpret_cast<const float*>(borrowed_.data); }

  const std::shared_ptr<std::byte> memory_;
  SharedBorrower borrower_;
  Slice borrowed_;
};

TEST_F(LendingDataPlane, HidesWhatIsWrittenToAGradientThatMayStillCount) {
  Start(absl::Hours(1), "fp32");
  plane_->Push(0, std::span<const float>(values()), 1);
  plane_->Flush();
  ASSERT_TRUE(Eventually([&] { return script_.held == 1; }));
  script_.let_go = true;
  ASSERT_TRUE(plane_->Close([this] { told_.Notify(); }));
  ASSERT_TRUE(told_.WaitForNotificationWithTimeout(kPatience));
  std::ranges::fill(values(), 2.0f);
  EXPECT_EQ(first(), 1.0f);
  plane_->Stop();
  EXPECT_EQ(values()[0], 2.0f);
}

TEST_F(LendingDataPlane, LeavesMemoryThatIsNotUnderWayAsItIs) {
  Start(absl::Hours(1), "fp32");
  plane_->Stop();
  std::ranges::fill(values(), 2.0f);
  EXPECT_EQ(first(), 2.0f);
}

TEST_F(ClosingDataPlane, StopsWithoutItsAnswer) {
  Push(absl::Hours(1));
  plane_->Close([this] { told_.Notify(); });
  plane_->Stop();
  EXPECT_FALSE(plane_->Close([] {}));
}

}  // namespace
}  // namespace syncline
