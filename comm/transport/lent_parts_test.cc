#include "comm/transport/lent_parts.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

Slice Part(const Buffer& buffer, size_t offset, size_t bytes) {
  return Slice::Of(buffer, offset, bytes);
}

TEST(LentParts, AreTheRunAtTheEndAndWhatPrecedesIt) {
  const Buffer headers = Buffer::Allocate(1024);
  const Buffer values = Buffer::Allocate(8192);
  const auto parts =
      PartsToLend({Slice::Of(headers), Part(values, 0, 4096), Part(values, 4096, 4096)});
  ASSERT_TRUE(parts.has_value());
  ASSERT_EQ(parts->head.size(), 1u);
  EXPECT_EQ(parts->head[0].data, headers.data());
  EXPECT_EQ(parts->body.data(), values.data());
  EXPECT_EQ(parts->body.size(), 8192u);
}

TEST(LentParts, AreNoneWithoutAnOwnerOrWithTooMuchBefore) {
  const Buffer headers = Buffer::Allocate(1025);
  const Buffer values = Buffer::Allocate(8192);
  EXPECT_FALSE(PartsToLend({}).has_value());
  EXPECT_FALSE(PartsToLend({Slice::Borrowed(values.view())}).has_value());
  EXPECT_FALSE(PartsToLend({Slice::Of(headers), Slice::Of(values)}).has_value());
  EXPECT_FALSE(
      PartsToLend({Part(headers, 0, 1024), Slice::Borrowed(values.view())}).has_value());
  EXPECT_TRUE(PartsToLend({Part(headers, 0, 1024), Slice::Of(values)}).has_value());
}

TEST(LentParts, MayHaveAHeadThatIsNobodys) {
  const Buffer values = Buffer::Allocate(8192);
  const std::byte head[64] = {};
  const auto parts = PartsToLend({Slice::Borrowed(head), Slice::Of(values)});
  ASSERT_TRUE(parts.has_value());
  EXPECT_EQ(PayloadBytes(parts->head), 64u);
}

}  // namespace
}  // namespace syncline
