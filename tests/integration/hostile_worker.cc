// A member of a job that sends messages which no client library would send. Every message
// must be refused with a typed code (or dropped before it takes memory), and must have no
// effect.
//
// It joins as RANK of the job that steps_worker makes, sends the bad messages, prints
// "refused CASE CODE" or "dropped CASE" for each, and leaves. The exit code is 1 if an
// answer was not the expected one.
//
// With `--stay` it prints "in", and sends heartbeats until the coordinator ends its
// stream. Then it connects to the first server again with its old keys, which the server
// must refuse.
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/status.h"
#include "comm/codec/codec.h"
#include "comm/codec/frame.h"
#include "comm/rpc/announcement.h"
#include "comm/rpc/attach_stream.h"
#include "comm/transport/message.h"
#include "comm/transport/network/network.h"
#include "comm/transport/tcp/member_key.h"
#include "worker/client/session.h"

namespace syncline {
namespace {

constexpr uint64_t kSizes[] = {200000, 300, 1};

Announcement Hello(const SessionOptions& options) {
  v1::JobSpec job;
  job.set_name(options.job);
  job.set_workers(options.world_size);
  job.set_push_codec("bf16");
  job.set_publish_codec("bf16");
  v1::TrainingSpec& training = *job.mutable_training();
  training.mutable_optimizer()->set_name("adamw");
  v1::Option& learning_rate = *training.mutable_optimizer()->add_options();
  learning_rate.set_name("lr");
  learning_rate.set_value(1e-3);
  training.set_state("f32");
  training.mutable_schedule()->set_name("constant");
  for (int i = 0; i < 3; ++i) {
    v1::TensorSpec& tensor = *job.add_tensors();
    tensor.set_name(absl::StrCat("tensor", i));
    tensor.add_shape(kSizes[i]);
    tensor.set_learning_rate_scale(1);
  }
  return Announce(job, {.rank = options.rank, .name = "hostile"});
}

// The data plane of one hostile member, on the calling thread.
class Hostile : private Receiver {
 public:
  // `beat` sends a heartbeat, to keep the membership.
  Hostile(const v1::WorkerWelcome& welcome, uint32_t rank, std::function<void()> beat)
      : welcome_(welcome), rank_(rank), beat_(std::move(beat)) {}

  absl::Status Connect() {
    v1::ShardAddresses shards;
    if (!shards.ParseFromString(welcome_.shard_addresses()) ||
        !placement_.ParseFromString(welcome_.placement())) {
      return absl::InternalError("the placement cannot be read");
    }
    addresses_ = {shards.addresses().begin(), shards.addresses().end()};
    SYNCLINE_ASSIGN_OR_RETURN(const DataPlaneMode mode, ModeOf(addresses_));
    SYNCLINE_ASSIGN_OR_RETURN(transport_,
                              CreateNetworkTransport({.plan = {.mode = mode}}, *this));
    for (size_t shard = 0; shard < addresses_.size(); ++shard) {
      SYNCLINE_ASSIGN_OR_RETURN(
          shards_.emplace_back(),
          transport_->Connect(addresses_[shard], {.key = KeyOf(shard, Identity())}));
      MessageHeader hello = Header(MessageKind::kHello, 0);
      const std::string& own = transport_->address();
      Send(shards_.size() - 1, hello,
           Buffer::CopyOf(std::as_bytes(std::span<const char>(own.data(), own.size()))));
    }
    // The shard is seeded once it answers a pull. From then on it refuses only bad
    // messages.
    const MessageHeader pull = Header(MessageKind::kPull, kBlock);
    for (int i = 0; i < 20; ++i) {
      beat_();
      Send(ShardOf(kBlock), pull, {});
      if (AwaitAnswer(absl::Seconds(1))) return absl::OkStatus();
    }
    return absl::DeadlineExceededError("no answer to a pull");
  }

  static constexpr uint32_t kBlock = 1;  // tensor1, 300 elements

  MessageHeader Header(MessageKind kind, uint32_t block) const {
    MessageHeader header;
    header.kind = static_cast<uint16_t>(kind);
    header.job = welcome_.job();
    header.rank = rank_;
    header.incarnation = welcome_.incarnation();
    header.block = block;
    header.epoch = welcome_.epoch();
    header.session_key = welcome_.session_key();
    header.samples = 1;
    return header;
  }

  // Returns a valid contribution to kBlock, which the caller damages.
  Buffer Contribution(uint64_t elements = 300) {
    std::vector<float> values(elements, 1e6f);
    const BlockLabel label{
        {kBlock, 0, static_cast<uint32_t>(elements)}, 0, welcome_.epoch()};
    return Gather(EncodeBlock(**codecs_.FindByName("bf16"), label, values,
                              Checksum::kHeaderAndPayload, pool_));
  }

  void Expect(const std::string& name, MessageHeader header, const Buffer& payload,
              std::optional<RefuseCode> code) {
    beat_();
    wanted_ = MessageKind::kRefuse;
    answer_.reset();
    Send(ShardOf(header.block), header, payload);
    const bool answered =
        AwaitAnswer(code.has_value() ? absl::Seconds(10) : absl::Milliseconds(500));
    const bool as_expected =
        code.has_value() ? answered && answer_->code == static_cast<uint16_t>(*code)
                         : !answered;
    if (answered)
      std::printf("refused %s %s\n", name.c_str(),
                  RefuseCodeName(static_cast<RefuseCode>(answer_->code)));
    if (!answered) std::printf("dropped %s\n", name.c_str());
    if (!as_expected) {
      failed_ = true;
      std::printf("UNEXPECTED answer to %s\n", name.c_str());
    }
    std::fflush(stdout);
  }

  // Keeps the membership for this time.
  void Beat(absl::Duration time) {
    beat_();
    for (const absl::Duration end = clock_.Now() + time; clock_.Now() < end;) Turn();
  }

  void SendRaw(ByteView header, const Buffer& payload) {
    shards_[0]->Send(header, {Slice::Of(payload)}, [](const absl::Status&) {});
    for (int i = 0; i < 20; ++i) Turn();
  }

  // Connects as `identity`, with this member's key of shard 0. Over the network, a server
  // must end the connection before it reads anything. In shared memory there is no check.
  void ExpectTurnedAway(const std::string& name, const MemberIdentity& identity) {
    beat_();
    bool is_over = false;
    const auto endpoint = transport_->Connect(
        addresses_[0], {.on_failure = [&](const absl::Status&) { is_over = true; },
                        .key = KeyOf(0, identity)});
    if (!endpoint.ok() || !(*endpoint)->IsTwoWay()) return;
    MessageHeader pull = Header(MessageKind::kPull, kBlock);
    (*endpoint)->Send(SealHeader(pull), {}, [](const absl::Status&) {});
    const absl::Duration deadline = clock_.Now() + absl::Seconds(10);
    while (!is_over && clock_.Now() < deadline) Turn();
    std::printf("%s %s\n", is_over ? "turned away" : "UNEXPECTED welcome for",
                name.c_str());
    failed_ |= !is_over;
  }

  MemberIdentity Identity() const {
    return {welcome_.job(), rank_, welcome_.incarnation()};
  }

  bool failed() const { return failed_; }

 private:
  PeerKey KeyOf(size_t shard, const MemberIdentity& identity) const {
    const auto keys = static_cast<size_t>(welcome_.shard_keys_size());
    if (shard >= keys) return {};
    const std::string& key = welcome_.shard_keys(static_cast<int>(shard));
    return {EncodeIdentity(identity),
            SecretKey::From(std::as_bytes(std::span(key))).value_or(SecretKey())};
  }

  size_t ShardOf(uint32_t block) const {
    return block < static_cast<uint32_t>(placement_.shard_of_block_size())
               ? placement_.shard_of_block(block)
               : 0;
  }

  void Send(size_t shard, MessageHeader header, const Buffer& payload) {
    header.shard = static_cast<uint32_t>(shard);
    Payload slices;
    if (!payload.empty()) slices.push_back(Slice::Of(payload));
    shards_[shard]->Send(SealHeader(header), std::move(slices),
                         [](const absl::Status&) {});
  }

  void Turn() {
    if (transport_->Progress() == 0) transport_->Wait(absl::Milliseconds(5));
  }

  bool AwaitAnswer(absl::Duration patience) {
    const absl::Duration deadline = clock_.Now() + patience;
    while (!answer_.has_value() && clock_.Now() < deadline) Turn();
    return answer_.has_value();
  }

  absl::StatusOr<Buffer> Allocate(ByteView, size_t bytes) override {
    return Buffer::Allocate(bytes);
  }
  void OnMessage(ByteView bytes, Buffer) override {
    const auto header = ParseHeader(bytes);
    if (header.ok() && header->kind == static_cast<uint16_t>(wanted_)) answer_ = *header;
  }

  const v1::WorkerWelcome& welcome_;
  v1::Placement placement_;
  const uint32_t rank_;
  const std::function<void()> beat_;
  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  const SteadyClock clock_;
  BufferPool pool_{1 << 20};
  std::vector<std::string> addresses_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<Endpoint>> shards_;
  MessageKind wanted_ = MessageKind::kPublish;
  std::optional<MessageHeader> answer_;
  bool failed_ = false;
};

void Misbehave(Hostile& hostile) {
  const auto push = [&] { return hostile.Header(MessageKind::kPush, Hostile::kBlock); };
  const auto spoiled = [&](size_t offset) {
    Buffer payload = hostile.Contribution();
    payload.data()[offset] ^= std::byte{0x5a};
    return payload;
  };
  MessageHeader header = push();
  header.block = 12345;
  hostile.Expect("unknown-tensor", header, hostile.Contribution(),
                 RefuseCode::kUnknownBlock);
  hostile.Expect("wrong-shape", push(), hostile.Contribution(299),
                 RefuseCode::kMalformed);
  hostile.Expect("wrong-codec", push(), spoiled(6), RefuseCode::kMalformed);
  hostile.Expect("bad-payload-crc", push(), spoiled(200), RefuseCode::kMalformed);
  hostile.Expect("bad-header-crc", push(), spoiled(12), RefuseCode::kMalformed);
  const Buffer whole = hostile.Contribution();
  hostile.Expect("truncated", push(), Buffer::CopyOf(whole.view().first(100)),
                 RefuseCode::kMalformed);
  hostile.Expect("empty", push(), {}, RefuseCode::kMalformed);
  header = push();
  header.samples = 0;
  hostile.Expect("no-samples", header, whole, RefuseCode::kMalformed);
  header = push();
  header.epoch = 0;
  hostile.Expect("stale-epoch", header, whole, RefuseCode::kStaleEpoch);
  header = push();
  header.step = 99;
  hostile.Expect("step-ahead", header, whole, RefuseCode::kWrongStep);
  header = push();
  header.session_key ^= 1;
  hostile.Expect("stolen-rank", header, whole, RefuseCode::kUnauthenticated);
  // A payload longer than any message of this block is refused by the header, before
  // memory is allocated.
  hostile.Expect("oversized", push(), Buffer::Allocate(size_t{64} << 20), std::nullopt);
  MemberIdentity other = hostile.Identity();
  ++other.incarnation;
  hostile.ExpectTurnedAway("wrong-incarnation", other);
  other = hostile.Identity();
  other.rank ^= 1;
  hostile.ExpectTurnedAway("wrong-rank", other);
  other = hostile.Identity();
  ++other.job;
  hostile.ExpectTurnedAway("wrong-job", other);
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    Buffer noise = Buffer::Allocate(1 + random() % 300);
    for (std::byte& b : noise.mutable_view()) b = static_cast<std::byte>(random());
    hostile.SendRaw(noise.view().first(std::min<size_t>(noise.size(), 64)), noise);
  }
}

// Connects with the keys that a thief still has after its certificate was revoked.
void DialByOldKeys(Hostile& hostile, const absl::Notification& ended) {
  std::printf("in\n");
  std::fflush(stdout);
  while (!ended.HasBeenNotified()) hostile.Beat(absl::Milliseconds(100));
  // The first attempt may still find its key, and is cut off when that is removed.
  for (int i = 0; i < 3; ++i) hostile.ExpectTurnedAway("old-key", hostile.Identity());
}

absl::Status Run(bool stays) {
  SYNCLINE_ASSIGN_OR_RETURN(const SessionOptions options, SessionOptions::FromEnv());
  absl::Notification welcomed;
  v1::WorkerWelcome welcome;
  AttachOptions attach;
  attach.address = options.coordinator;
  attach.tls = {options.tls_cert, options.tls_key, options.tls_ca};
  AttachCallbacks callbacks;
  absl::Notification heard;
  bool asked = false;
  callbacks.on_message = [&](const v1::CoordinatorMessage& message) {
    if (message.has_describe_job()) asked = true;
    const bool counts = message.has_describe_job() || message.has_worker_welcome();
    if (counts && !heard.HasBeenNotified()) heard.Notify();
    if (!message.has_worker_welcome()) return;
    welcome = message.worker_welcome();
    welcomed.Notify();
  };
  absl::Notification ended;
  callbacks.on_end = [&](const absl::Status& status) {
    std::fprintf(stderr, "stream ended: %s\n", status.ToString().c_str());
    ended.Notify();
  };
  SYNCLINE_ASSIGN_OR_RETURN(const auto stream,
                            AttachStream::Open(attach, std::move(callbacks)));
  const Announcement announcement = Hello(options);
  stream->Send(announcement.hello);
  if (heard.WaitForNotificationWithTimeout(absl::Seconds(20)) && asked) {
    stream->Send(announcement.declaration);
  }
  if (!welcomed.WaitForNotificationWithTimeout(absl::Seconds(20))) {
    return absl::DeadlineExceededError("never welcomed");
  }
  v1::MemberMessage beat;
  beat.mutable_heartbeat();
  Hostile hostile(welcome, options.rank, [&] { stream->Send(beat); });
  SYNCLINE_RETURN_IF_ERROR(hostile.Connect());
  stays ? DialByOldKeys(hostile, ended) : Misbehave(hostile);
  v1::MemberMessage leave;
  leave.mutable_leave();
  stream->Send(leave);
  stream->Close(absl::Seconds(1));
  return hostile.failed() ? absl::InternalError("an answer was not the expected one")
                          : absl::OkStatus();
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  const bool stays = argc == 2 && std::string_view(argv[1]) == "--stay";
  const absl::Status status = syncline::Run(stays);
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
  return 1;
}
