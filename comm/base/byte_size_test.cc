#include "comm/base/byte_size.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(ByteSize, ReadsWhatPeopleAndKubernetesWrite) {
  EXPECT_EQ(*ParseByteSize("8GiB"), 8 * kGiB);
  EXPECT_EQ(*ParseByteSize("8Gi"), 8 * kGiB);
  EXPECT_EQ(*ParseByteSize("8 GiB"), 8 * kGiB);
  EXPECT_EQ(*ParseByteSize("16G"), 16'000'000'000u);
  EXPECT_EQ(*ParseByteSize("1.5GB"), 1'500'000'000u);
  EXPECT_EQ(*ParseByteSize("512Mi"), kGiB / 2);
  EXPECT_EQ(*ParseByteSize("4096"), 4096u);
  EXPECT_EQ(*ParseByteSize("64kB"), 64'000u);
}

TEST(ByteSize, RefusesAllElseAndSaysWhatIsMeant) {
  for (const char* wrong : {"", "GiB", "8X", "-1", "1e3", "8GiBs", "1.2.3G", "nan", "inf",
                            "99999999TiB", "8G iB"}) {
    const auto parsed = ParseByteSize(wrong);
    ASSERT_FALSE(parsed.ok()) << wrong;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find("8GiB"), absl::string_view::npos);
  }
}

TEST(ByteSize, IsWrittenWithOneDigit) {
  EXPECT_EQ(FormatByteSize(0), "0 B");
  EXPECT_EQ(FormatByteSize(1023), "1023 B");
  EXPECT_EQ(FormatByteSize(1024), "1.0 KiB");
  EXPECT_EQ(FormatByteSize(12 * kGiB + kGiB * 3 / 10), "12.3 GiB");
  EXPECT_EQ(FormatByteSize(kGiB - 1), "1.0 GiB");
}

}  // namespace
}  // namespace syncline
