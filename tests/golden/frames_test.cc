// The data plane: message headers, and the frames of each codec.
#include <cstring>
#include <string>
#include <vector>

#include "comm/base/crc32c.h"
#include "comm/codec/frame.h"
#include "comm/transport/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fuzz/fuzz.h"
#include "tests/golden/golden_file.h"

namespace syncline {
namespace {

constexpr uint32_t kElements = 100;

std::string Text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

BlockLabel SomeBlock() {
  return {.range = {.tensor = 5, .first_element = kTileElements, .elements = kElements},
          .step = 41,
          .epoch = 7,
          .seed = 3};
}

std::string FramesOf(const Codec& codec) {
  BufferPool pool(0);
  return Text(Gather(EncodeBlock(codec, SomeBlock(), fuzz::SomeValues(kElements, 1),
                                 Checksum::kHeaderAndPayload, pool))
                  .view());
}

// Returns the CRC of the decoded values.
std::string Decoded(const Transfer& transfer, const std::string& frames) {
  // Frames are aligned.
  const Buffer aligned = Buffer::CopyOf(std::as_bytes(std::span(frames)));
  const auto block = ParseBlock(aligned.view(), SomeBlock(), transfer.Accepted());
  if (!block.ok()) return block.status().ToString();
  std::vector<float> values(kElements);
  const TileView& tile = block->tiles.at(0);
  EXPECT_TRUE(tile.codec->Decode(tile.bytes, values).ok());
  const uint32_t crc = Crc32c(std::as_bytes(std::span(values)));
  return Text(std::as_bytes(std::span(&crc, 1)));
}

// A gradient that is pushed by one version may be added by another one.
TEST(Goldens, EachCodecWritesAndReadsTheSameFrames) {
  GoldenFile frames(GOLDEN_DATA "/frames.golden");
  GoldenFile values(GOLDEN_DATA "/frame_value_crcs.golden");
  const std::vector<std::string> texts = fuzz::TransferTexts();
  for (size_t i = 0; i < texts.size(); ++i) {
    const Transfer& transfer = fuzz::Transfers()[i];
    const std::string golden = frames.Same(texts[i], FramesOf(*transfer.codec));
    values.Same(texts[i], Decoded(transfer, golden));
  }
  for (const auto& [name, bytes] : frames.all()) {
    EXPECT_THAT(texts, ::testing::Contains(name)) << "users can no longer name it";
  }
}

TEST(Goldens, AMessageHeaderIsTheSame) {
  GoldenFile goldens(GOLDEN_DATA "/headers.golden");
  MessageHeader header = {.kind = static_cast<uint16_t>(MessageKind::kPush),
                          .job = 1,
                          .rank = 2,
                          .incarnation = 3,
                          .block = 4,
                          .epoch = 5,
                          .step = 6,
                          .session_key = 0x0123456789abcdef,
                          .samples = 8,
                          .code = 9,
                          .flags = 1,
                          .shard = 11};
  const std::string golden = goldens.Same("push", Text(SealHeader(header)));
  auto read = ParseHeader(std::as_bytes(std::span(golden)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->session_key, header.session_key);
  EXPECT_EQ(read->shard, header.shard);
}

}  // namespace
}  // namespace syncline
