// Tests of gradients and weights in the memory of a GPU. The same bytes are sent as from
// the host, and the weights become the same.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "comm/base/crc32c.h"
#include "comm/base/tiling.h"
#include "comm/device/device_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/exchange.h"
#include "worker/client/push_encoder.h"
#include "worker/client/view_landing.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kElements = 2 * kTileElements + 100;
constexpr uint32_t kFirstBlock = kTileElements;
const std::vector<BlockRange> kBlocks = {{0, 0, kFirstBlock},
                                         {0, kFirstBlock, kElements - kFirstBlock}};

std::vector<float> Values(uint64_t step) {
  std::vector<float> values(kElements);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>((i * i + step * 977) % 7919));
  }
  return values;
}

// A gradient in the program's element type, and in FP32.
struct Narrowed {
  std::vector<std::byte> bytes;
  std::vector<float> values;
};
Narrowed NarrowedTo(DType dtype, std::vector<float> values) {
  Narrowed narrow = {.bytes = std::vector<std::byte>(kElements * DTypeBytes(dtype)),
                     .values = std::move(values)};
  Narrow(narrow.values, {.data = narrow.bytes.data(), .dtype = dtype});
  Widen({.data = narrow.bytes.data(), .dtype = dtype}, narrow.values);
  return narrow;
}

ExchangeOptions OptionsOf(const Transfer& transfer) {
  static const auto* const codecs = new CodecRegistry(CodecRegistry::Builtin());
  return {.job = 1,
          .seed = 11,
          .shards = 1,
          .shard_of_block = {0, 0},
          .transfers = {{transfer, transfer}},
          .seed_codec = *codecs->Find(CodecId::kFp32),
          .follow_learning_rate = true};
}

// Counts the calls of an emulated GPU of this test. Allocations of more than `most_bytes`
// fail.
struct Asked {
  int encodings = 0;
  int decodings = 0;
  size_t cleared_bytes = 0;
  size_t copied_bytes = 0;
  size_t most_bytes = std::numeric_limits<size_t>::max();
};
Asked& TheAsked() {
  static Asked asked;
  return asked;
}

const DeviceCalls& WatchedCalls() {
  static const DeviceCalls* const real = &EmulatedGpu().calls();
  static DeviceCalls calls = *real;
  calls.encode = [](const SynclineCudaCodec* codec, const SynclineCudaEncoding* encoding,
                    void* stream) {
    ++TheAsked().encodings;
    return real->encode(codec, encoding, stream);
  };
  calls.decode_add = [](const SynclineCudaCodec* codec,
                        const SynclineCudaDecoding* decoding, void* stream) {
    ++TheAsked().decodings;
    return real->decode_add(codec, decoding, stream);
  };
  calls.clear = [](int32_t device, void* memory, size_t bytes, void* stream) {
    TheAsked().cleared_bytes += bytes;
    return real->clear(device, memory, bytes, stream);
  };
  calls.copy = [](int32_t device, void* to, const void* from, size_t bytes,
                  void* stream) {
    TheAsked().copied_bytes += bytes;
    return real->copy(device, to, from, bytes, stream);
  };
  calls.allocate = [](int32_t device, size_t bytes, void** memory) {
    constexpr int kNoMemory = 2;
    if (bytes > TheAsked().most_bytes) return kNoMemory;
    return real->allocate(device, bytes, memory);
  };
  return calls;
}

class Pusher {
 public:
  explicit Pusher(const std::string& codec)
      : options_(OptionsOf(*ParseTransfer(codec))) {}

  // Encodes a step. Returns the bytes of all blocks.
  std::vector<std::byte> Push(const ConstMemoryView& gradient, uint64_t step) {
    std::vector<std::byte> pushed;
    for (uint32_t block = 0; block < kBlocks.size(); ++block) {
      const Buffer bytes = Gather(encoder_.Encode(BlockAt(gradient, step, block)));
      pushed.insert(pushed.end(), bytes.data(), bytes.data() + bytes.size());
      if (step % 3 == 2 && block == 1) encoder_.TakeBack(BlockAt(gradient, step, block));
      encoder_.Forget(block);
    }
    return pushed;
  }
  std::vector<float> Kept() {
    const std::span<const float> kept = encoder_.memory(0).residual();
    return {kept.begin(), kept.end()};
  }
  double residual_ratio() const { return encoder_.residual_ratio(); }

 private:
  static GradientBlock BlockAt(const ConstMemoryView& gradient, uint64_t step,
                               uint32_t block) {
    return {.block = block,
            .label = {.range = kBlocks[block], .step = step, .epoch = 1},
            .gradient = gradient,
            .units = {.loss_scale = step > 2 ? 4.0f : 1.0f,
                      .learning_rate = 0.1f / static_cast<float>(step % 60)}};
  }

  const ExchangeOptions options_;
  BufferPool pool_{0};
  const std::array<uint64_t, 1> elements_ = {kElements};
  PushEncoder encoder_{options_, elements_, pool_};
};

// The GPU encodes the first kEncodedOnDevice of these.
const char* const kCodecs[] = {"onebit:min_elements=0,vectors=1",
                               "int8:min_elements=0,vectors=1",
                               "int8-stochastic:min_elements=0,vectors=1",
                               "topk:ratio=0.01,min_elements=0,vectors=1",
                               "topk:ratio=0.02,values=bf16,min_elements=0,vectors=1",
                               "topk:ratio=0.3,values=fp32,min_elements=0,vectors=1",
                               "bf16",
                               "fp32",
                               "fp16",
                               "bf16-stochastic",
                               "topk:ratio=0.01,values=int8,min_elements=0,vectors=1",
                               "dgc:ratio=0.01,min_elements=0,vectors=1",
                               "auto:min_elements=0,vectors=1"};

constexpr size_t kEncodedOnDevice = 6;

class PushedFromAGpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { TheAsked() = {}; }

  Device gpu_{WatchedCalls(), 0};
};

INSTANTIATE_TEST_SUITE_P(Codecs, PushedFromAGpu, ::testing::ValuesIn(kCodecs));

TEST_P(PushedFromAGpu, TravelsAsTheSameBytesAndLeavesTheSame) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    Pusher host(GetParam());
    Pusher device(GetParam());
    for (const uint64_t step : {1, 2, 63, 64}) {  // steps 63 and 64 sample residuals
      std::vector<float> values = Values(step);
      if (step == 64) values[5] = std::numeric_limits<float>::infinity();
      const Narrowed gradient = NarrowedTo(dtype, values);
      const DeviceVector<std::byte> there(gpu_, gradient.bytes);
      const ConstMemoryView on_device({there.data(), dtype, &gpu_}, kElements);
      EXPECT_EQ(device.Push(on_device, step), host.Push(gradient.values, step))
          << step << " of type " << DTypeBytes(dtype);
    }
    EXPECT_EQ(device.Kept(), host.Kept());
    EXPECT_EQ(device.residual_ratio(), host.residual_ratio());
    EXPECT_EQ(host.residual_ratio() > 0, !host.Kept().empty());
  }
  const auto* const last = kCodecs + kEncodedOnDevice;
  if (std::find(kCodecs, last, GetParam()) != last) {
    EXPECT_EQ(TheAsked().encodings, 2 * 4 * 2);  // types, steps, blocks
  }
}

TEST_P(PushedFromAGpu, IsEncodedOnTheHostWhereTheGpuHasNoRoomForWhatIsKept) {
  TheAsked().most_bytes = kElements * sizeof(float) - 1;
  Pusher host(GetParam());
  Pusher device(GetParam());
  for (uint64_t step = 1; step <= 3; ++step) {
    const std::vector<float> values = Values(step);
    const DeviceVector<float> there(EmulatedGpu(), values);
    const ConstMemoryView gradient({there.data(), DType::kF32, &gpu_}, kElements);
    EXPECT_EQ(device.Push(gradient, step), host.Push(values, step)) << step;
  }
  EXPECT_EQ(device.Kept(), host.Kept());
  EXPECT_TRUE(gpu_.ok());
  if (!host.Kept().empty()) {
    EXPECT_EQ(TheAsked().encodings, 0);
  }
}

// Error feedback also moves to the host when a worker accumulates, or with a quorum.
TEST_P(PushedFromAGpu, MayComeFromTheHostInOtherSteps) {
  Pusher host(GetParam());
  Pusher mixed(GetParam());
  Device& other = EmulatedGpu(1);
  for (uint64_t step = 1; step <= 3; ++step) {
    const std::vector<float> values = Values(step);
    const DeviceVector<float> there(step == 3 ? other : gpu_, values);
    ConstMemoryView gradient({there.data(), DType::kF32, step == 3 ? &other : &gpu_},
                             kElements);
    if (step == 2) gradient = values;
    EXPECT_EQ(mixed.Push(gradient, step), host.Push(values, step)) << step;
  }
  EXPECT_EQ(mixed.Kept(), host.Kept());
}

TEST(GradientOfAGpu, ThatIsNotAlignedIsEncodedOnTheHost) {
  Device& gpu = EmulatedGpu();
  const std::vector<float> values = Values(1);
  std::vector<float> shifted(1);
  shifted.insert(shifted.end(), values.begin(), values.end());
  const DeviceVector<float> there(gpu, shifted);
  for (const char* codec : {kCodecs[0], kCodecs[6]}) {
    Pusher host(codec);
    Pusher device(codec);
    EXPECT_EQ(device.Push({{there.data() + 1, DType::kF32, &gpu}, kElements}, 1),
              host.Push(values, 1));
  }
}

class LandedOnAGpu : public ::testing::TestWithParam<const char*> {
 protected:
  using Result = ViewLanding::Result;
  struct View {
    bool is_delta = false;
    bool has_crc = false;
    bool has_wrong_crc = false;
  };

  // Returns a whole view, or a delta to `held`. Sets `held` to the weights that a
  // receiver then has.
  Buffer Make(const View& view, std::span<const float> values, std::span<float> held) {
    const Transfer& publish = options_.transfers[0].publish;
    const Codec& codec = view.is_delta          ? *publish.codec
                         : publish.compresses() ? *options_.seed_codec
                                                : *publish.codec;
    const BlockLabel label = {.range = kBlocks[0], .step = version_ + 1, .epoch = 1};
    BlockWriter writer(
        label, Checksum::kHeaderOnly,
        pool_.Allocate(MaxBlockBytes(landing_.Codecs(0), kFirstBlock)).owner());
    for (size_t first = 0; first < kFirstBlock; first += kTileElements) {
      const MutableByteView room = writer.NextTile(codec);
      const size_t bytes = codec.Encode(values.subspan(first, kTileElements), {},
                                        ContextAt(label, first), room);
      const std::span<float> tile = held.subspan(first, kTileElements);
      EXPECT_TRUE((view.is_delta ? codec.DecodeAdd(room.first(bytes), 1, tile)
                                 : codec.Decode(room.first(bytes), tile))
                      .ok());
      std::optional<uint32_t> crc;
      if (view.has_crc) crc = Crc32c(std::as_bytes(tile)) ^ (view.has_wrong_crc ? 1 : 0);
      writer.EndTile(bytes, view.is_delta ? crc : std::nullopt);
    }
    return Gather(writer.Finish());
  }

  Result Land(const Buffer& view, const MemoryView& weights) {
    const MessageHeader header = {.epoch = 1, .step = version_ + 1};
    return landing_.Land(header, view.view(),
                         {.range = kBlocks[0], .version = version_, .weights = weights},
                         workspace_);
  }

  void SetUp() override { TheAsked() = {}; }

  Device gpu_{WatchedCalls(), 0};
  const ExchangeOptions options_ = OptionsOf(*ParseTransfer(GetParam()));
  BufferPool pool_{0};
  ViewLanding landing_{options_, pool_};
  CodecWorkspace workspace_;
  uint64_t version_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Codecs, LandedOnAGpu,
                         ::testing::ValuesIn(kCodecs, kCodecs + 11));

TEST_P(LandedOnAGpu, HasTheSameBits) {
  const bool has_deltas = options_.transfers[0].publish.compresses();
  std::vector<float> held = Values(0);
  held.resize(kFirstBlock);
  DeviceVector<float> there(gpu_, held);
  const MemoryView weights({there.data(), DType::kF32, &gpu_}, kFirstBlock);
  for (version_ = 0; version_ < 4; ++version_) {
    const View view = {.is_delta = has_deltas && version_ > 0, .has_crc = version_ == 3};
    const Buffer bytes = Make(view, Values(version_ + 1), held);
    EXPECT_EQ(Land(bytes, weights), Result::kLanded) << version_;
    EXPECT_EQ(there.Get(), held) << version_;
  }
  if (!has_deltas) return;
  const auto* const last = kCodecs + kEncodedOnDevice;
  const bool is_added_there = std::find(kCodecs, last, GetParam()) != last;
  EXPECT_EQ(TheAsked().decodings, is_added_there ? 3 : 0);
  const Buffer other =
      Make({.is_delta = true, .has_crc = true, .has_wrong_crc = true}, Values(9), held);
  EXPECT_EQ(Land(other, weights), Result::kDiverged);
}

TEST_P(LandedOnAGpu, HasTheSameBitsInOtherTypes) {
  if (options_.transfers[0].publish.compresses()) return;  // deltas need FP32 weights
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    std::vector<float> held(kFirstBlock);
    const Buffer bytes = Make({}, Values(1), held);
    std::vector<std::byte> on_host(kFirstBlock * DTypeBytes(dtype));
    DeviceVector<std::byte> there(gpu_, on_host);
    EXPECT_EQ(Land(bytes, {{on_host.data(), dtype}, kFirstBlock}), Result::kLanded);
    EXPECT_EQ(Land(bytes, {{there.data(), dtype, &gpu_}, kFirstBlock}), Result::kLanded);
    EXPECT_EQ(there.Get(), on_host);
  }
}

TEST_P(LandedOnAGpu, NeedsNoAlignment) {
  const bool has_deltas = options_.transfers[0].publish.compresses();
  std::vector<float> held(kFirstBlock + 1);
  DeviceVector<float> there(gpu_, held);
  const MemoryView weights({there.data() + 1, DType::kF32, &gpu_}, kFirstBlock);
  const Buffer bytes =
      Make({.is_delta = has_deltas}, Values(1), std::span(held).subspan(1));
  EXPECT_EQ(Land(bytes, weights), Result::kLanded);
  EXPECT_EQ(there.Get(), held);
}

// An exchange whose GPU fails.
class FailingExchange : public ::testing::Test {
 protected:
  void Start(SeedRole role) {
    ExchangeOptions options = OptionsOf(*ParseTransfer("int8:min_elements=0,vectors=1"));
    options.role = role;
    options.encodings_at_once = 8;
    exchange_ = std::make_unique<Exchange>(
        options,
        std::vector<MemoryView>{{{there_.data(), DType::kF32, &gpu_}, kElements}}, pool_);
    exchange_->Start({});
  }
  // Returns the error with which the exchange ends. Empty: it does not end.
  static std::string ErrorOf(const ExchangeOutputs& outputs) {
    for (const ExchangeOutput& output : outputs) {
      const auto* const failed = std::get_if<ExchangeFailed>(&output);
      if (failed != nullptr) return failed->status.ToString();
    }
    return "";
  }
  template <typename Output>
  static std::vector<Output> All(const ExchangeOutputs& outputs) {
    std::vector<Output> all;
    for (const ExchangeOutput& output : outputs) {
      if (const auto* const one = std::get_if<Output>(&output)) all.push_back(*one);
    }
    return all;
  }

  // Answers a seed or a push like a server whose weights it does not change.
  ExchangeOutputs Answer(const MessageHeader& sent) {
    MessageHeader header = sent;
    const bool is_push = sent.kind == static_cast<uint16_t>(MessageKind::kPush);
    header.kind = static_cast<uint16_t>(MessageKind::kPublish);
    header.step = is_push ? sent.step + 1 : 0;
    header.samples = 0;
    header.shard = 0;
    header.flags = is_push ? kFlagUnchanged : kFlagHeld;
    return exchange_->OnMessage(header, {}, {});
  }

  Device gpu_{EmulatedGpu().calls(), 0};
  const DeviceVector<float> there_{EmulatedGpu(), Values(1)};
  BufferPool pool_{0};
  CodecWorkspace workspace_;
  std::unique_ptr<Exchange> exchange_;
};

TEST_F(FailingExchange, EndsBeforeAnythingIsSentThatItCouldNotRead) {
  Start(SeedRole::kSeeder);
  const auto asked = All<ExchangeEncode>(exchange_->Connected(0, {}));
  ASSERT_FALSE(asked.empty());
  const FailingGpu failing;
  for (size_t i = 0; i < asked.size(); ++i) {
    asked[i].work->Run(workspace_);
    const ExchangeOutputs outputs = exchange_->Encoded(*asked[i].work, {});
    EXPECT_EQ(ErrorOf(outputs).find("CUDA device 0: copying") != std::string::npos,
              i == 0);
    EXPECT_TRUE(All<ExchangeSend>(outputs).empty());
  }
}

// The first push of a large model does not copy zeros to the GPU.
TEST(KeptOnAGpu, BeginsWithZerosThatAreMadeThere) {
  TheAsked() = {};
  Device gpu(WatchedCalls(), 0);
  KeptGradient kept({.kind = MemoryKind::kErrorFeedback}, kElements);
  const auto place = kept.OnDevice(gpu);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(TheAsked().cleared_bytes, kElements * sizeof(float));
  EXPECT_EQ(TheAsked().copied_bytes, TilesOf(kElements) * sizeof(GradientUnits));
  const std::span<const float> left = kept.OnHost().residual();
  EXPECT_EQ(std::vector<float>(left.begin(), left.end()), std::vector<float>(kElements));
  for (const GradientUnits& units : kept.OnHost().units()) {
    EXPECT_EQ(units, GradientUnits());
  }
}

// If a GPU fails, its error feedback is lost, and nothing is sent in its place.
TEST(KeptOnAGpu, IsNotSettledOnceTheGpuHasFailed) {
  Device gpu(EmulatedGpu().calls(), 0);
  const std::vector<float> values = Values(1);
  const DeviceVector<float> there(EmulatedGpu(), values);
  KeptGradient kept({.kind = MemoryKind::kErrorFeedback}, kElements);
  const auto place = kept.OnDevice(gpu);
  ASSERT_TRUE(place.has_value());
  gpu.Write(std::as_bytes(std::span(values)), place->residual);
  EXPECT_EQ(kept.OnHost().residual()[1], values[1]);
  EXPECT_TRUE(kept.status().ok());
  ASSERT_TRUE(kept.OnDevice(gpu).has_value());
  const FailingGpu failing;
  const std::span<const float> left = kept.OnHost().Settle({.loss_scale = 2});
  EXPECT_TRUE(std::ranges::all_of(left, [](float value) { return value == 0; }));
  EXPECT_THAT(kept.status().ToString(), HasSubstr("CUDA device 0"));
}

TEST_F(FailingExchange, SendsNothingInPlaceOfWhatAFailedGpuHadKept) {
  Start(SeedRole::kSeeder);
  ExchangeOutputs outputs = exchange_->Connected(0, {});
  const std::vector<float> values = Values(2);
  const DeviceVector<float> gradient(EmulatedGpu(), values);
  const auto run = [&] {  // encodes and decodes until nothing is left
    while (!outputs.empty()) {
      ExchangeOutputs next;
      const auto add = [&next](ExchangeOutputs more) {
        std::ranges::move(more, std::back_inserter(next));
      };
      for (const auto& encode : All<ExchangeEncode>(outputs)) {
        encode.work->Run(workspace_);
        add(exchange_->Encoded(*encode.work, {}));
      }
      for (const auto& send : All<ExchangeSend>(outputs)) add(Answer(send.header));
      for (const auto& decode : All<ExchangeDecode>(outputs)) {
        decode.work->Run(workspace_);
        add(exchange_->Decoded(*decode.work, {}));
      }
      outputs = std::move(next);
    }
  };
  run();
  ASSERT_TRUE(exchange_->IsReady(0));
  outputs = exchange_->Push(0, {{gradient.data(), DType::kF32, &gpu_}, kElements}, 1, {});
  run();
  ASSERT_TRUE(exchange_->IsReady(0));
  const FailingGpu failing;
  outputs = exchange_->Part({});
  EXPECT_THAT(ErrorOf(outputs), HasSubstr("CUDA device 0"));
  EXPECT_TRUE(All<ExchangeEncode>(outputs).empty());
}

TEST_F(FailingExchange, EndsWhenAViewCannotLand) {
  Start(SeedRole::kReceiver);
  exchange_->Connected(0, {});
  const std::vector<float> values = Values(2);
  const std::array<uint64_t, 1> elements = {kElements};
  const BlockLabel label = {.range = CutIntoBlocks(elements)[0]};
  const CodecRegistry codecs = CodecRegistry::Builtin();
  const Buffer view = Gather(EncodeBlock(**codecs.Find(CodecId::kFp32), label,
                                         std::span(values).first(label.range.elements),
                                         Checksum::kHeaderOnly, pool_));
  const auto asked = All<ExchangeDecode>(exchange_->OnMessage(
      {.kind = static_cast<uint16_t>(MessageKind::kPublish), .job = 1, .block = 0},
      Slice::Of(view), {}));
  ASSERT_EQ(asked.size(), 1u);
  const FailingGpu failing;
  asked[0].work->Run(workspace_);
  EXPECT_THAT(ErrorOf(exchange_->Decoded(*asked[0].work, {})),
              HasSubstr("CUDA device 0: copying new weights"));
}

}  // namespace
}  // namespace syncline
