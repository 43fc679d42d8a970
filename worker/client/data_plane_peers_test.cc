// Tests that a server cannot send messages in another shard's name. There are two servers
// of one shard each, connected by TLS. An attacker controls one of them.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "comm/codec/frame.h"
#include "comm/transport/message.h"
#include "comm/transport/network/network.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/data_plane.h"

namespace syncline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kElements = 100;

SecretKey TheKey() {
  std::array<std::byte, SecretKey::kBytes> bytes;
  bytes.fill(std::byte{7});
  return *SecretKey::From(bytes);
}

MessageHeader As(const MessageHeader& question, MessageKind kind) {
  MessageHeader header = question;
  header.kind = static_cast<uint16_t>(kind);
  return header;
}

// The server of one shard. The test decides what it sends.
class FakeShard : private Receiver, private Acceptor {
 public:
  FakeShard() {
    const NetworkOptions options = {
        .plan = {.mode = DataPlaneMode::kTls, .listen_host = "127.0.0.1"},
        .acceptor = this};
    transport_ = *CreateNetworkTransport(options, *this);
  }

  const std::string& address() const { return transport_->address(); }
  void Progress() { transport_->Progress(); }
  void Break() { endpoint_ = nullptr; }

  // Removes the messages of this kind, and returns the newest one. Null: there are none.
  std::unique_ptr<MessageHeader> Take(MessageKind kind) {
    std::unique_ptr<MessageHeader> found;
    std::erase_if(arrived_, [&](const MessageHeader& header) {
      if (header.kind != static_cast<uint16_t>(kind)) return false;
      found = std::make_unique<MessageHeader>(header);
      return true;
    });
    return found;
  }

  void Send(MessageHeader header) { endpoint_->Send(SealHeader(header), {}, nullptr); }
  // Answers `pull` with a view whose elements are all `value`.
  void Publish(const MessageHeader& pull, float value) {
    MessageHeader header = As(pull, MessageKind::kPublish);
    header.flags = 0;
    const std::vector<float> values(kElements, value);
    const BlockLabel label = {
        {.tensor = header.block, .elements = kElements}, header.step, header.epoch};
    Buffer payload = Gather(EncodeBlock(**codecs_.Find(CodecId::kFp32), label, values,
                                        Checksum::kHeaderAndPayload, pool_));
    endpoint_->Send(SealHeader(header), {Slice::Of(std::move(payload))}, nullptr);
  }

 private:
  const SecretKey* FindKey(std::string_view) override { return &key_; }
  ConnectOptions OnAccepted(const std::string&,
                            std::unique_ptr<Endpoint> endpoint) override {
    endpoint_ = std::move(endpoint);
    return {.receiver = this};
  }
  absl::StatusOr<Buffer> Allocate(ByteView, size_t bytes) override {
    return Buffer::Allocate(bytes);
  }
  void OnMessage(ByteView header, Buffer) override {
    arrived_.push_back(*ParseHeader(header));
  }

  const SecretKey key_ = TheKey();
  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  BufferPool pool_{1 << 20};
  std::vector<MessageHeader> arrived_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> endpoint_;
};

// A transport that can also deliver messages without a shard's connection, as shared
// memory does.
class WithAnotherWay : public Transport {
 public:
  WithAnotherWay(std::unique_ptr<Transport> inner, Receiver& receiver)
      : inner_(std::move(inner)), receiver_(receiver) {}

  void Deliver(const MessageHeader& header) {
    const absl::MutexLock lock(&mutex_);
    waiting_.push_back(header);
  }

  const std::string& address() const override { return inner_->address(); }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const std::string& address,
                                                    ConnectOptions options) override {
    return inner_->Connect(address, std::move(options));
  }
  int Progress() override {
    std::vector<MessageHeader> waiting;
    {
      const absl::MutexLock lock(&mutex_);
      waiting = std::exchange(waiting_, {});
    }
    for (MessageHeader& header : waiting) receiver_.OnMessage(SealHeader(header), {});
    return inner_->Progress();
  }
  void Wait(absl::Duration timeout) override { inner_->Wait(timeout); }
  void Wake() override { inner_->Wake(); }

 private:
  const std::unique_ptr<Transport> inner_;
  Receiver& receiver_;
  absl::Mutex mutex_;
  std::vector<MessageHeader> waiting_ ABSL_GUARDED_BY(mutex_);
};

// A worker with two tensors of one block each. The first is on the honest shard 0, the
// second on the stolen shard 1.
class DataPlanePeers : public ::testing::Test {
 protected:
  DataPlanePeers() {
    const Transfer fp32 = *ParseTransfer("fp32");
    DataPlaneOptions options;
    options.shard_addresses = {honest_.address(), stolen_.address()};
    options.shard_keys = {TheKey(), TheKey()};
    options.exchange.shards = 2;
    options.exchange.shard_of_block = {0, 1};
    options.exchange.transfers.assign(2, {fp32, fp32});
    options.exchange.seed_codec = *codecs_.Find(CodecId::kFp32);
    options.log =
        Logger::Create({.function = [this](LogLevel level, const std::string& line) {
          const absl::MutexLock lock(&mutex_);
          if (level == LogLevel::kWarning) warnings_.push_back(line);
        }});
    options.make_transport =
        [this](Receiver& receiver) -> absl::StatusOr<std::unique_ptr<Transport>> {
      auto transport = std::make_unique<WithAnotherWay>(
          *CreateNetworkTransport({.plan = {.mode = DataPlaneMode::kTls}}, receiver),
          receiver);
      other_way_ = transport.get();
      return transport;
    };
    plane_ = *DataPlane::Start(std::move(options), {weights_[0], weights_[1]},
                               {.on_ready =
                                    [this](const ExchangeReady& ready) {
                                      const absl::MutexLock lock(&mutex_);
                                      ready_.insert(ready.tensor);
                                    },
                                .on_failed = [](const absl::Status&) {}});
  }
  ~DataPlanePeers() override { plane_->Stop(); }

  bool Await(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (!condition()) {
      if (absl::Now() > deadline) return false;
      for (FakeShard* shard : {&honest_, &stolen_, &stand_in_}) shard->Progress();
    }
    return true;
  }
  MessageHeader Next(FakeShard& shard, MessageKind kind) {
    std::unique_ptr<MessageHeader> header;
    EXPECT_TRUE(Await([&] { return (header = shard.Take(kind)) != nullptr; }));
    return header != nullptr ? *header : MessageHeader();
  }
  // Welcomes the worker to this shard. Returns the first request that follows.
  MessageHeader Greet(FakeShard& shard) {
    shard.Send(As(Next(shard, MessageKind::kHello), MessageKind::kWelcome));
    return Next(shard, MessageKind::kPull);
  }
  std::set<uint32_t> ready() {
    const absl::MutexLock lock(&mutex_);
    return ready_;
  }
  bool AwaitForeign(uint64_t count) {
    return Await([&] { return plane_->stats().foreign_messages == count; });
  }

  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  FakeShard honest_, stolen_, stand_in_;
  std::vector<float> weights_[2] = {std::vector<float>(kElements),
                                    std::vector<float>(kElements)};
  absl::Mutex mutex_;
  std::set<uint32_t> ready_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> warnings_ ABSL_GUARDED_BY(mutex_);
  std::atomic<WithAnotherWay*> other_way_ = nullptr;
  std::unique_ptr<DataPlane> plane_;
};

TEST_F(DataPlanePeers, AServerSpeaksForItsOwnBlocksOnly) {
  const MessageHeader of_honest = Greet(honest_);
  const MessageHeader of_stolen = Greet(stolen_);
  for (int i = 0; i < 3; ++i) stolen_.Publish(of_honest, 666);
  stolen_.Publish(of_stolen, 1);
  ASSERT_TRUE(Await([&] { return !ready().empty(); }));
  EXPECT_THAT(ready(), ElementsAre(1));
  ASSERT_TRUE(AwaitForeign(3));
  honest_.Publish(of_honest, 2);
  ASSERT_TRUE(Await([&] { return ready().size() == 2; }));
  EXPECT_THAT(weights_[0], Each(2.0f));
  EXPECT_THAT(weights_[1], Each(1.0f));
  const absl::MutexLock lock(&mutex_);
  EXPECT_THAT(warnings_,
              ElementsAre(testing::AllOf(HasSubstr("shard=0"), HasSubstr("shard 1"),
                                         HasSubstr("address=127.0.0.1:"))));
}

TEST_F(DataPlanePeers, AServerWelcomesNobodyForAnother) {
  const MessageHeader hello = Next(honest_, MessageKind::kHello);
  const MessageHeader of_stolen_hello = Next(stolen_, MessageKind::kHello);
  stolen_.Send(As(hello, MessageKind::kWelcome));
  stolen_.Send(As(of_stolen_hello, MessageKind::kWelcome));
  Next(stolen_, MessageKind::kPull);
  ASSERT_TRUE(AwaitForeign(1));
  EXPECT_EQ(honest_.Take(MessageKind::kPull), nullptr);
  honest_.Send(As(hello, MessageKind::kWelcome));
  Next(honest_, MessageKind::kPull);
}

TEST_F(DataPlanePeers, WhatComesByNoConnectionIsOfNoShardThatHasOne) {
  const MessageHeader of_honest = Greet(honest_);
  // The shard may answer that the worker's own values are the view.
  ASSERT_EQ(of_honest.flags & kFlagHeld, kFlagHeld);
  const MessageHeader forged = As(of_honest, MessageKind::kPublish);
  other_way_.load()->Deliver(forged);
  ASSERT_TRUE(AwaitForeign(1));
  EXPECT_THAT(ready(), IsEmpty());
}

TEST_F(DataPlanePeers, AShardIsHeardOnItsNextConnection) {
  Greet(honest_);
  honest_.Break();
  honest_.Publish(Greet(honest_), 3);
  ASSERT_TRUE(Await([&] { return ready().contains(0); }));
  EXPECT_THAT(weights_[0], Each(3.0f));
  EXPECT_EQ(plane_->stats().foreign_messages, 0u);
}

TEST_F(DataPlanePeers, AStandInSpeaksForTheShardThatItTookOver) {
  Greet(honest_);
  plane_->Moved({{.shard = 0, .address = stand_in_.address(), .key = TheKey()}});
  plane_->EpochChanged(1, SeedRole::kReceiver);
  stand_in_.Publish(Greet(stand_in_), 4);
  ASSERT_TRUE(Await([&] { return ready().contains(0); }));
  EXPECT_THAT(weights_[0], Each(4.0f));
  EXPECT_EQ(plane_->stats().foreign_messages, 0u);
}

}  // namespace
}  // namespace syncline
