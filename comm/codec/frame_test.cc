#include "comm/codec/frame.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/base/crc32c.h"
#include "comm/codec/view_digest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

// The offset of each field on the wire (docs/wire_format.md), written down a second time.
struct Field {
  const char* name;
  size_t offset;
  size_t bytes;
};
constexpr Field kFields[] = {
    {"magic", 0, 4},          {"version", 4, 2},      {"codec", 6, 2},
    {"tensor", 8, 4},         {"tile", 12, 4},        {"elements", 16, 4},
    {"nonzeros", 20, 4},      {"step", 24, 8},        {"epoch", 32, 8},
    {"payload_bytes", 40, 4}, {"payload_crc", 44, 4}, {"flags", 48, 4},
    {"view_crc", 52, 4},      {"reserved", 56, 4},    {"header_crc", 60, 4}};

struct FrameCase {
  const char* codec;
  Checksum checksum;
};

std::vector<float> SomeValues(uint32_t n) {
  std::vector<float> values(n);
  for (uint32_t i = 0; i < n; ++i) values[i] = 0.5f * static_cast<float>(i) - 7.0f;
  return values;
}

class Frame : public ::testing::TestWithParam<FrameCase> {
 protected:
  static BlockLabel Label(uint32_t elements) {
    return {.range = {.tensor = 5,
                      .first_element = 3 * uint64_t{kTileElements},
                      .elements = elements},
            .step = 41,
            .epoch = 7};
  }

  Buffer Encode(const BlockLabel& label, std::span<float> values) {
    return Gather(EncodeBlock(codec_, label, values, GetParam().checksum, pool_));
  }

  // Corrects the header CRC of tile `tile` after a change.
  static void Reseal(const Buffer& payload, size_t tile) {
    std::byte* header = payload.data() + 64 * tile;
    const uint32_t crc = Crc32c({header, 60});
    std::memcpy(header + 60, &crc, 4);
  }

  const CodecRegistry registry_ = CodecRegistry::Builtin();
  const Codec& codec_ = **registry_.FindByName(GetParam().codec);
  BufferPool pool_{64 << 20};
};

INSTANTIATE_TEST_SUITE_P(AllCodecs, Frame,
                         ::testing::Values(FrameCase{"fp32", Checksum::kHeaderOnly},
                                           FrameCase{"fp32", Checksum::kHeaderAndPayload},
                                           FrameCase{"bf16", Checksum::kHeaderOnly},
                                           FrameCase{"bf16",
                                                     Checksum::kHeaderAndPayload}),
                         [](const auto& info) {
                           return std::string(info.param.codec) +
                                  (info.param.checksum == Checksum::kHeaderOnly
                                       ? "HeaderOnly"
                                       : "WithPayload");
                         });

TEST_P(Frame, RoundTripsBlocksOfAllShapes) {
  for (const uint32_t n : {1u, 15u, 16u, 17u, 65535u, 65536u, 65537u, 131072u, 200'001u,
                           kBlockElements - 1, kBlockElements}) {
    std::vector<float> values = SomeValues(n);
    const Buffer payload = Encode(Label(n), values);
    EXPECT_EQ(payload.size(), MaxBlockBytes(codec_, n));
    EXPECT_LE(payload.size(), kMaxMessagePayloadBytes);
    EXPECT_EQ(payload.size() % kTileAlignment, 0u);
    const auto block = ParseBlock(payload.view(), Label(n), {&codec_});
    ASSERT_TRUE(block.ok()) << n << " " << block.status();
    ASSERT_EQ(block->tiles.size(), TilesOf(n));
    uint32_t next = 0;
    for (const TileView& tile : block->tiles) {
      EXPECT_EQ(tile.codec, &codec_);
      EXPECT_EQ(tile.first_element, next);
      EXPECT_EQ((tile.bytes.data() - payload.data()) % 64, 0);
      std::vector<float> decoded(tile.elements);
      ASSERT_TRUE(codec_.Decode(tile.bytes, decoded).ok());
      std::vector<std::byte> again(codec_.MaxEncodedBytes(tile.elements));
      codec_.Encode(std::span(values).subspan(next, tile.elements), {}, {}, again);
      EXPECT_TRUE(std::ranges::equal(tile.bytes, again));
      next += tile.elements;
    }
    EXPECT_EQ(next, n);
  }
}

TEST_P(Frame, RefusesEveryChangedHeaderByteEvenWithARightCrc) {
  std::vector<float> values = SomeValues(70'001);
  const Buffer original = Encode(Label(70'001), values);
  for (size_t tile = 0; tile < 2; ++tile) {
    for (const Field& field : kFields) {
      for (size_t byte = 0; byte < field.bytes; ++byte) {
        const Buffer changed = Buffer::CopyOf(original.view());
        changed.data()[64 * tile + field.offset + byte] ^= std::byte{0x11};
        EXPECT_FALSE(ParseBlock(changed.view(), Label(70'001), {&codec_}).ok())
            << field.name << " byte " << byte;
        if (field.offset == 60) continue;
        Reseal(changed, tile);
        EXPECT_FALSE(ParseBlock(changed.view(), Label(70'001), {&codec_}).ok())
            << field.name << " byte " << byte << " resealed";
      }
    }
  }
}

TEST_P(Frame, RefusesEveryTruncationAndExtension) {
  std::vector<float> values = SomeValues(333);
  const Buffer payload = Encode(Label(333), values);
  for (size_t size = 0; size < payload.size(); ++size) {
    ASSERT_FALSE(ParseBlock(payload.view().first(size), Label(333), {&codec_}).ok())
        << size;
  }
  for (const size_t more : {1u, 63u, 64u, 4096u}) {
    const Buffer longer = Buffer::Allocate(payload.size() + more);
    std::memset(longer.data(), 0, longer.size());
    std::memcpy(longer.data(), payload.data(), payload.size());
    EXPECT_FALSE(ParseBlock(longer.view(), Label(333), {&codec_}).ok()) << more;
  }
}

TEST_P(Frame, RefusesAHugePayloadLengthWithARightCrc) {
  std::vector<float> values = SomeValues(100);
  for (const uint32_t claimed :
       {0u, 1u, 199u, 401u, 0x7fffffffu, 0xffffffffu, 0xffffffc1u}) {
    const Buffer payload = Encode(Label(100), values);
    std::memcpy(payload.data() + 40, &claimed, 4);
    Reseal(payload, 0);
    EXPECT_FALSE(ParseBlock(payload.view(), Label(100), {&codec_}).ok()) << claimed;
  }
}

TEST_P(Frame, RefusesPaddingThatIsNotZero) {
  std::vector<float> values = SomeValues(1);
  const Buffer payload = Encode(Label(1), values);
  payload.data()[payload.size() - 1] = std::byte{1};
  EXPECT_THAT(
      std::string(ParseBlock(payload.view(), Label(1), {&codec_}).status().message()),
      HasSubstr("padding"));
}

TEST_P(Frame, RefusesAnotherBlockStepEpochOrCodec) {
  std::vector<float> values = SomeValues(100);
  const Buffer payload = Encode(Label(100), values);
  const auto refused = [&](BlockLabel expected, const char* field) {
    const absl::Status status = ParseBlock(payload.view(), expected, {&codec_}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  };
  BlockLabel expected = Label(100);
  expected.step = 42;
  refused(expected, "step is 41, expected 42");
  expected = Label(100);
  expected.epoch = 8;
  refused(expected, "epoch is 7, expected 8");
  expected = Label(100);
  expected.range.tensor = 6;
  refused(expected, "tensor");
  expected = Label(100);
  expected.range.first_element = 0;
  refused(expected, "tile");
  expected = Label(100);
  expected.range.elements = 99;
  refused(expected, "elements");
  const Codec& other = **registry_.FindByName(codec_.name() == "fp32" ? "bf16" : "fp32");
  EXPECT_THAT(
      std::string(ParseBlock(payload.view(), Label(100), {&other}).status().message()),
      HasSubstr("codec"));
}

// Parses random bytes, and valid frames with random damage and corrected CRCs. Nothing
// outside the payload may be read (AddressSanitizer checks that), and what is accepted
// must have exactly the expected shape.
TEST_P(Frame, SurvivesRandomBytes) {
  std::mt19937 random(12345);
  std::vector<float> values = SomeValues(65536 + 40);
  const BlockLabel label = Label(static_cast<uint32_t>(values.size()));
  const Buffer right = Encode(label, values);
  for (int round = 0; round < 3000; ++round) {
    Buffer payload;
    if (round % 3 == 0) {
      payload = Buffer::Allocate(1 + random() % 2000);
      for (std::byte& byte : payload.mutable_view())
        byte = static_cast<std::byte>(random());
    } else {
      payload = Buffer::CopyOf(
          right.view().first(right.size() - (round % 2) * (random() % 400)));
      for (int damage = 0; damage < 3; ++damage) {
        payload.data()[random() % 128] ^= static_cast<std::byte>(1u << (random() % 8));
      }
      Reseal(payload, 0);
      Reseal(payload, 1);
    }
    const auto block = ParseBlock(payload.view(), label, {&codec_});
    if (!block.ok()) continue;
    ASSERT_EQ(block->tiles.size(), 2u);
    ASSERT_EQ(block->tiles[0].bytes.size(), codec_.MaxEncodedBytes(65536));
    ASSERT_EQ(block->tiles[1].bytes.size(), codec_.MaxEncodedBytes(40));
  }
}

TEST(FrameChecksum, PayloadCrcNoticesEveryChangedByte) {
  const CodecRegistry registry = CodecRegistry::Builtin();
  BufferPool pool(1 << 20);
  for (const CodecId id : {CodecId::kFp32, CodecId::kBf16}) {
    const Codec& codec = **registry.Find(id);
    std::vector<float> values = SomeValues(150);
    const BlockLabel label = {.range = {.elements = 150}, .step = 1};
    const Buffer payload =
        Gather(EncodeBlock(codec, label, values, Checksum::kHeaderAndPayload, pool));
    for (size_t i = 64; i < 64 + codec.MaxEncodedBytes(150); ++i) {
      payload.data()[i] ^= std::byte{0x40};
      ASSERT_EQ(ParseBlock(payload.view(), label, {&codec}).status().code(),
                absl::StatusCode::kDataLoss)
          << i;
      payload.data()[i] ^= std::byte{0x40};
    }
    EXPECT_TRUE(ParseBlock(payload.view(), label, {&codec}).ok());
  }
}

TEST(FrameFp32, BorrowsTheValuesInsteadOfCopyingThem) {
  const CodecRegistry registry = CodecRegistry::Builtin();
  BufferPool pool(1 << 20);
  std::vector<float> values = SomeValues(65536 + 17);
  const BlockLabel label = {.range = {.tensor = 0, .elements = 65536 + 17}};
  const Payload payload = EncodeBlock(**registry.Find(CodecId::kFp32), label, values,
                                      Checksum::kHeaderOnly, pool);
  ASSERT_EQ(payload.size(), 3u);
  EXPECT_EQ(payload[0].size, 128u);
  EXPECT_EQ(static_cast<const void*>(payload[1].data), values.data());
  EXPECT_EQ(payload[1].size, values.size() * 4);
  EXPECT_EQ(payload[2].size, 128u - 17 * 4);
}

// Values that are followed by zeros up to a multiple of 64 bytes.
std::vector<float> PaddedValues(uint32_t n) {
  std::vector<float> values = SomeValues(n);
  values.resize((n + 15) / 16 * 16);
  return values;
}

TEST(FrameLent, HasTheFramesOfACopyAndTheValuesWhereTheyLie) {
  const CodecRegistry registry = CodecRegistry::Builtin();
  const Codec& fp32 = **registry.FindByName("fp32");
  BufferPool pool(1 << 20);
  const auto keeper = std::make_shared<int>();
  for (const uint32_t n : {1u, 16u, 1000u, kTileElements + 1}) {
    const BlockLabel label = {.range = {.tensor = 1, .elements = n}, .step = 2};
    const std::vector<float> values = PaddedValues(n);
    const auto bytes = std::as_bytes(std::span(values).first(n));
    const Payload lent = LendBlock(fp32, label, {bytes.data(), bytes.size(), keeper},
                                   Checksum::kHeaderAndPayload, pool);
    ASSERT_EQ(lent.size(), 2u);
    EXPECT_EQ(lent[1].data, bytes.data());
    EXPECT_EQ(lent[1].owner, keeper);
    const Buffer copied = Gather(EncodeBlock(fp32, label, std::span(values).first(n),
                                             Checksum::kHeaderAndPayload, pool));
    EXPECT_TRUE(std::ranges::equal(Gather(lent).view(), copied.view()));
  }
}

TEST(FrameLent, IsParsedFromTwoPlaces) {
  const CodecRegistry registry = CodecRegistry::Builtin();
  const Codec& fp32 = **registry.FindByName("fp32");
  BufferPool pool(1 << 20);
  const uint32_t n = kTileElements + 1000;
  const BlockLabel label = {.range = {.tensor = 1, .elements = n}, .step = 2};
  const std::vector<float> values = PaddedValues(n);
  const Payload payload = EncodeBlock(fp32, label, std::span(values).first(n),
                                      Checksum::kHeaderAndPayload, pool);
  const Buffer tiles = Gather({payload.begin() + 1, payload.end()});
  const Landed landed = {payload[0], Slice::Of(tiles)};
  const auto view = ParseBlock(landed, label, {&fp32});
  ASSERT_TRUE(view.ok()) << view.status();
  ASSERT_EQ(view->tiles.size(), 2u);
  EXPECT_EQ(view->tiles[0].bytes.data(), tiles.data());
  EXPECT_EQ(view->tiles[1].bytes.data(), tiles.data() + 4 * kTileElements);

  Landed short_head = landed;
  short_head.head.size -= 64;
  EXPECT_FALSE(ParseBlock(short_head, label, {&fp32}).ok());
  Landed short_body = landed;
  short_body.body.size -= 64;
  EXPECT_FALSE(ParseBlock(short_body, label, {&fp32}).ok());
  tiles.data()[5] ^= std::byte{1};
  EXPECT_EQ(ParseBlock(landed, label, {&fp32}).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(FrameHeader, LiesOnTheWireAsWrittenDown) {
  const CodecRegistry registry = CodecRegistry::Builtin();
  BufferPool pool(1 << 20);
  float values[] = {1.0f};
  const BlockLabel label = {
      .range = {.tensor = 0x01020304, .first_element = 65536, .elements = 1},
      .step = 0x1122334455667788,
      .epoch = 9};
  const Buffer payload = Gather(EncodeBlock(**registry.Find(CodecId::kBf16), label,
                                            values, Checksum::kHeaderOnly, pool));
  const unsigned char want[60] = {
      'S',  'T',  'L', '1', 1, 0, 2, 0, 4, 3,    2,    1,    1,    0,    0,
      0,    1,    0,   0,   0, 1, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33,
      0x22, 0x11, 9,   0,   0, 0, 0, 0, 0, 0,    2,    0,    0,    0};
  ASSERT_EQ(payload.size(), 128u);
  EXPECT_EQ(std::memcmp(payload.data(), want, sizeof(want)), 0);
  EXPECT_EQ(payload.data()[64], std::byte{0x80});
  EXPECT_EQ(payload.data()[65], std::byte{0x3f});
}

// A codec of fixed sizes.
class SizedCodec final : public Codec {
 public:
  SizedCodec(size_t of_whole_tile, size_t of_short_tile)
      : of_whole_tile_(of_whole_tile), of_short_tile_(of_short_tile) {}
  CodecId id() const override { return CodecId::kFp32; }
  std::string_view name() const override { return "sized"; }
  CodecTraits traits() const override { return {}; }
  size_t MaxEncodedBytes(uint32_t elements) const override {
    return elements == kTileElements ? of_whole_tile_ : of_short_tile_;
  }
  size_t Encode(std::span<const float>, std::span<float>, const EncodeContext&,
                MutableByteView) const override {
    return 0;
  }
  absl::Status DecodeAdd(ByteView, float, std::span<float>) const override {
    return absl::OkStatus();
  }
  absl::Status Decode(ByteView, std::span<float>) const override {
    return absl::OkStatus();
  }
  absl::Status Validate(ByteView, uint32_t) const override { return absl::OkStatus(); }

 private:
  const size_t of_whole_tile_;
  const size_t of_short_tile_;
};

TEST(MaxBlockBytes, HasRoomForTheLongestEncodingOfEachTile) {
  const SizedCodec long_tiles(640, 64);
  const SizedCodec long_tails(320, 256);
  EXPECT_EQ(MaxBlockBytes(CodecSet{&long_tiles, &long_tails}, kTileElements + 1),
            2 * sizeof(TileHeader) + 640 + 256);
}

TEST_P(Frame, DigestIsOfTheValuesAndNotOfTheMessage) {
  std::vector<float> values = SomeValues(kTileElements + 13);
  const BlockLabel label = Label(kTileElements + 13);
  BlockLabel later = label;
  later.step = 99;
  later.epoch = 8;
  const auto digest = [&](const BlockLabel& one, std::span<const float> of) {
    return ViewDigest(EncodeBlock(codec_, one, of, GetParam().checksum, pool_),
                      one.range.elements);
  };
  const uint64_t first = digest(label, values);
  EXPECT_EQ(digest(later, values), first);
  const Buffer gathered = Encode(label, values);
  EXPECT_EQ(ViewDigest({Slice::Of(gathered)}, label.range.elements), first);
  std::set<uint64_t> digests = {first};
  for (const size_t i : {size_t{0}, size_t{1}, values.size() - 1}) {
    std::vector<float> changed = values;
    changed[i] = -values[i] - 1;
    EXPECT_TRUE(digests.insert(digest(label, changed)).second) << i;
  }
  std::vector<float> swapped = values;
  std::swap(swapped[0], swapped[16]);  // in one lane
  std::swap(swapped[1], swapped[17]);
  EXPECT_TRUE(digests.insert(digest(label, swapped)).second);
  EXPECT_TRUE(digests.insert(digest(Label(99), std::span(values).first(99))).second);
}

}  // namespace
}  // namespace syncline
