#include "comm/job/durability.h"

#include <gtest/gtest.h>

namespace syncline {
namespace {

TEST(Durability, EachWordNamesItsValue) {
  EXPECT_EQ(ParseDurability("none"), Durability::kNone);
  EXPECT_EQ(ParseDurability("disk"), Durability::kDisk);
  EXPECT_EQ(ParseDurability("peer"), Durability::kPeer);
  EXPECT_EQ(ParseDurability("disk+peer"), Durability::kDiskAndPeer);
  for (const std::string_view word : kDurabilities) {
    EXPECT_EQ(DurabilityName(ParseDurability(word).value()), word);
  }
  EXPECT_FALSE(ParseDurability("paper"));
  EXPECT_FALSE(ParseDurability(""));
}

TEST(Durability, JournalsAreOnDiskAndBackupsWithPeers) {
  EXPECT_FALSE(HasJournals(Durability::kNone) || HasBackups(Durability::kNone));
  EXPECT_TRUE(HasJournals(Durability::kDisk) && !HasBackups(Durability::kDisk));
  EXPECT_TRUE(!HasJournals(Durability::kPeer) && HasBackups(Durability::kPeer));
  EXPECT_TRUE(HasJournals(Durability::kDiskAndPeer) &&
              HasBackups(Durability::kDiskAndPeer));
}

}  // namespace
}  // namespace syncline
