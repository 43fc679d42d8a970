#include "comm/transport/ucx/address.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(UcxAddress, SurvivesEncoding) {
  const std::string worker("\0\1\2three", 8);
  const absl::StatusOr<UcxAddress> parsed =
      ParseAddress(EncodeAddress({0x1122334455667788, 4711, worker}));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->place, 0x1122334455667788u);
  EXPECT_EQ(parsed->process_id, 4711u);
  EXPECT_EQ(parsed->worker, worker);
}

TEST(UcxAddress, EveryFlippedBitAndEveryCutIsInvalid) {
  const std::string good = EncodeAddress({1, 2, "worker address"});
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(ParseAddress(bad).status().code(), absl::StatusCode::kInvalidArgument)
        << bit;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ParseAddress(good.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(ParseAddress(good + "x").ok());
}

TEST(UcxAddress, OfMoreBytesThanMakeSenseIsInvalid) {
  const auto of = [](size_t bytes) {
    const size_t worker = bytes - EncodeAddress({1, 2, ""}).size();
    return EncodeAddress({1, 2, std::string(worker, 'w')});
  };
  EXPECT_TRUE(ParseAddress(of(kMaxUcxAddressBytes)).ok());
  EXPECT_EQ(ParseAddress(of(kMaxUcxAddressBytes + 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// All 64 bits must differ: the difference of one half must not follow from that of the
// other.
TEST(UcxAddress, PlacesDifferInBothHalvesIndependently) {
  std::set<uint64_t> differences;
  for (int i = 0; i < 100; ++i) {
    const uint64_t place = PlaceOf(absl::StrCat("boot ", 1000 + i));
    differences.insert((place >> 32) ^ (place & 0xffffffff));
  }
  EXPECT_EQ(differences.size(), 100u);
}

TEST(UcxAddress, OneProcessIsInOnePlace) {
  EXPECT_EQ(PlaceOfThisProcess(), PlaceOfThisProcess());
  EXPECT_NE(PlaceOfThisProcess(), 0u);
}

}  // namespace
}  // namespace syncline
