#include "comm/transport/message.h"

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "comm/base/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

MessageHeader PushHeader() {
  MessageHeader header;
  header.kind = static_cast<uint16_t>(MessageKind::kPush);
  header.job = 0x01020304;
  header.rank = 7;
  header.incarnation = 3;
  header.block = 12;
  header.epoch = 5;
  header.step = 0x1122334455667788;
  header.session_key = 0xfedcba9876543210;
  header.samples = 64;
  header.shard = 2;
  return header;
}

std::vector<std::byte> Sealed(MessageHeader header) {
  const ByteView bytes = SealHeader(header);
  return {bytes.begin(), bytes.end()};
}

TEST(Message, SealedHeaderParsesToTheSameFields) {
  MessageHeader header = PushHeader();
  const absl::StatusOr<MessageHeader> parsed = ParseHeader(SealHeader(header));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(std::memcmp(&*parsed, &header, sizeof(header)), 0);
  EXPECT_EQ(parsed->step, 0x1122334455667788u);
}

TEST(Message, FieldsLieWhereTheWireFormatSays) {
  const std::vector<std::byte> bytes = Sealed(PushHeader());
  const auto byte = [&](size_t i) { return std::to_integer<int>(bytes[i]); };
  EXPECT_EQ(std::memcmp(bytes.data(), "SYNC", 4), 0);
  EXPECT_EQ(byte(4), 2);      // version
  EXPECT_EQ(byte(6), 3);      // kind
  EXPECT_EQ(byte(8), 0x04);   // job, lowest byte first
  EXPECT_EQ(byte(12), 7);     // rank
  EXPECT_EQ(byte(16), 3);     // incarnation
  EXPECT_EQ(byte(20), 12);    // block
  EXPECT_EQ(byte(24), 5);     // epoch
  EXPECT_EQ(byte(32), 0x88);  // step
  EXPECT_EQ(byte(40), 0x10);  // session key
  EXPECT_EQ(byte(48), 64);    // samples
  EXPECT_EQ(byte(56), 2);     // shard
}

TEST(Message, EveryFlippedBitIsRefused) {
  const std::vector<std::byte> good = Sealed(PushHeader());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(ParseHeader(bad).status().code(), absl::StatusCode::kInvalidArgument)
        << "bit " << bit;
  }
}

TEST(Message, WrongLengthsAreRefused) {
  std::vector<std::byte> bytes = Sealed(PushHeader());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseHeader(ByteView(bytes).first(size)).ok()) << size;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(ParseHeader(bytes).ok());
}

TEST(Message, UnknownKindAndVersionAreRefusedThoughIntact) {
  MessageHeader header = PushHeader();
  for (const int kind : {0, 18, 0xffff}) {
    header.kind = static_cast<uint16_t>(kind);
    EXPECT_THAT(ParseHeader(Sealed(header)).status().ToString(),
                ::testing::HasSubstr("unknown message kind"));
  }
  header = PushHeader();
  header.version = 1;
  EXPECT_THAT(ParseHeader(Sealed(header)).status().ToString(),
              ::testing::HasSubstr("message version 1"));
}

TEST(Message, EveryRefuseCodeHasItsOwnName) {
  std::set<std::string> names;
  for (uint16_t code = 0; code <= 10; ++code) {
    names.insert(RefuseCodeName(static_cast<RefuseCode>(code)));
  }
  EXPECT_EQ(names.size(),
            11u);  // ten codes, and the name of an unknown one
}

}  // namespace
}  // namespace syncline
