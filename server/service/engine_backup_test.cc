// Tests of what an engine accepts from the stand-in that holds a job's backup:
// acknowledgements only.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "comm/codec/codec.h"
#include "comm/transport/message.h"
#include "comm/transport/network/network.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/service/engine.h"

namespace syncline {
namespace {

constexpr uint32_t kJob = 4;
constexpr uint32_t kElements = 100;
constexpr uint64_t kSessionKey = 5;  // of the pair

SecretKey TheKey() {
  std::array<std::byte, SecretKey::kBytes> bytes;
  bytes.fill(std::byte{7});
  return *SecretKey::From(bytes);
}

// A backup that sends what the test wants.
class FakeBackup : private Receiver, private Acceptor {
 public:
  FakeBackup() {
    const NetworkOptions options = {
        .plan = {.mode = DataPlaneMode::kTls, .listen_host = "127.0.0.1"},
        .acceptor = this};
    transport_ = *CreateNetworkTransport(options, *this);
  }

  const std::string& address() const { return transport_->address(); }
  void Progress() { transport_->Progress(); }
  bool is_connected() const { return endpoint_ != nullptr; }
  void Send(MessageKind kind, uint32_t rank) {
    MessageHeader header;
    header.kind = static_cast<uint16_t>(kind);
    header.job = kJob;
    header.rank = rank;
    header.session_key = kSessionKey;
    endpoint_->Send(SealHeader(header), {}, nullptr);
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
  void OnMessage(ByteView, Buffer) override {}

  const SecretKey key_ = TheKey();
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> endpoint_;
};

class EngineBackup : public ::testing::Test {
 protected:
  EngineBackup() {
    EngineOptions options = {
        .plan = {.mode = DataPlaneMode::kTls, .listen_host = "127.0.0.1"},
        .metrics = &metrics_};
    engine_ = *Engine::Start(options, {.on_output = [](uint32_t, const ShardOutput&) {}});
    EngineJobOptions job;
    job.sends_records = true;
    job.shard.job = kJob;
    job.shard.seed_codec = *codecs_.Find(CodecId::kFp32);
    job.shard.transfers = {
        {.push = *ParseTransfer("fp32"), .publish = *ParseTransfer("fp32")}};
    job.shard.training.optimizer.options = {{"lr", 1}};
    const uint64_t elements = kElements;
    job.shard.tensors = {{.shape = TensorShape({&elements, 1})}};
    job.blocks = {{0, {.tensor = 0, .first_element = 0, .elements = kElements}}};
    engine_->Adopt(kJob, *engine_->Build(std::move(job)));
    engine_->SendRecords(kJob, backup_.address(),
                         {.session_key = kSessionKey, .key = TheKey()},
                         Engine::Backups::kWithState);
  }

  bool Await(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (!condition()) {
      if (absl::Now() > deadline) return false;
      backup_.Progress();
    }
    return true;
  }
  bool HasRefused(int count) const {
    const std::string text = prometheus::TextSerializer().Serialize(registry_.Collect());
    return absl::StrContains(
        text,
        absl::StrCat("syncline_auth_refused_total{door=\"data\",reason=\"identity\"} ",
                     count, "\n"));
  }

  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  prometheus::Registry registry_;
  Metrics metrics_{registry_};
  FakeBackup backup_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineBackup, SpeaksForItsRecordsAndForNoWorker) {
  ASSERT_TRUE(Await([&] { return backup_.is_connected(); }));
  backup_.Send(MessageKind::kRecordAck, kBackupRanks);
  backup_.Send(MessageKind::kPull, 0);
  EXPECT_TRUE(Await([&] { return HasRefused(1); }));
  backup_.Send(MessageKind::kPush, 1);
  EXPECT_TRUE(Await([&] { return HasRefused(2); }));
}

}  // namespace
}  // namespace syncline
