#include "comm/collective/nccl/nccl_library.h"

#include <gmock/gmock.h>

#include "comm/collective/nccl/gpu.h"
#include "comm/collective/nccl/nccl_card.h"
#include "comm/collective/nccl/nccl_members_test_util.h"

namespace syncline::collective {
namespace {

using ::testing::HasSubstr;

std::string WhyNot(const std::string& library) {
  return std::string(NcclLibrary::Open(library).status().message());
}

TEST(NcclLibrary, SaysWhichIsMissing) {
  EXPECT_THAT(WhyNot("libnccl_that_is_not_there.so.2"),
              HasSubstr("libnccl_that_is_not_there.so.2"));
  EXPECT_TRUE(absl::IsNotFound(NcclLibrary::Open("libnccl_not_there.so").status()));
}

TEST(NcclLibrary, RefusesWhatIsNotNccl) {
  EXPECT_THAT(WhyNot("libc.so.6"), HasSubstr("is not an NCCL library"));
}

TEST(NcclLibrary, HasAVersion) {
  const auto nccl = NcclLibrary::Open(SYNCLINE_TEST_FAKE_GPU);
  ASSERT_TRUE(nccl.ok()) << nccl.status();
  EXPECT_EQ(nccl->version, 22703);
  EXPECT_EQ(nccl->VersionText(), "2.27.3");
}

TEST(NcclLibrary, RefusesAnOldOne) {
  const ScopedVariable old("FAKE_NCCL_VERSION", "21805");
  EXPECT_EQ(WhyNot(SYNCLINE_TEST_FAKE_GPU),
            "NCCL 2.18.5 is too old: 2.19.0 or later is needed");
}

TEST(NcclLibrary, IsWhereTheEnvironmentSays) {
  EXPECT_EQ(NcclLibrary::Default(), "libnccl.so.2");
  const ScopedVariable there("SYNCLINE_NCCL_LIBRARY", "/opt/libnccl.so.2");
  EXPECT_EQ(NcclLibrary::Default(), "/opt/libnccl.so.2");
}

TEST(Gpu, SaysWhatIsMissing) {
  const auto none = Gpu::Open("libcuda_that_is_not_there.so.1", 0);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("no NVIDIA driver"));
  const auto other = Gpu::Open("libc.so.6", 0);
  EXPECT_THAT(std::string(other.status().message()),
              HasSubstr("is not an NVIDIA driver"));
  const auto missing = Gpu::Open(SYNCLINE_TEST_FAKE_GPU, 99);
  EXPECT_TRUE(absl::IsFailedPrecondition(missing.status())) << missing.status();
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("no CUDA device 99"));
}

TEST(Gpu, IsCurrentForAsLongAsIsAsked) {
  const auto gpu = Gpu::Open(SYNCLINE_TEST_FAKE_GPU, 1);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  EXPECT_FALSE((*gpu)->MakeStream().ok());  // no device is current
  {
    const Gpu::Current current(**gpu);
    EXPECT_TRUE((*gpu)->MakeStream().ok());
  }
  EXPECT_FALSE((*gpu)->MakeStream().ok());
}

std::vector<NcclCard> Cards(int ranks) {
  std::vector<NcclCard> cards(static_cast<size_t>(ranks));
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    cards[rank].version = 22703;
    cards[rank].gpu[0] = static_cast<std::byte>(rank);
  }
  return cards;
}

TEST(NcclCards, AreGoodForAGroup) { EXPECT_EQ(WhyNoGroup(Cards(4)), ""); }

TEST(NcclCards, OfTwoRanksOnOneGpuAreNot) {
  auto cards = Cards(4);
  cards[3].gpu = cards[1].gpu;
  EXPECT_EQ(WhyNoGroup(cards),
            "ranks 1 and 3 are on the same GPU, which NCCL does not take");
}

TEST(NcclCards, OfTwoVersionsAreNot) {
  auto cards = Cards(2);
  cards[1].version = 22809;
  EXPECT_EQ(WhyNoGroup(cards), "rank 1 has NCCL version 22809, but rank 0 has 22703");
}

TEST(NcclCards, SayWhyARankCannot) {
  auto cards = Cards(3);
  SayWhyNot("SYNCLINE_NCCL=0", cards[1]);
  SayWhyNot(std::string(1000, 'x'), cards[2]);
  EXPECT_EQ(WhyNoGroup(cards), "rank 1: SYNCLINE_NCCL=0");
  cards[1].why_not = {};
  EXPECT_EQ(WhyNoGroup(cards), "rank 2: " + std::string(203, 'x'));
}

}  // namespace
}  // namespace syncline::collective
