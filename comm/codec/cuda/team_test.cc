// Tests the tickets of parts on the emulated GPU.
#include "comm/codec/cuda/team.cuh"

#include <gtest/gtest.h>

#include <vector>

#include "comm/base/limits.h"

namespace syncline::emulated {
namespace {

constexpr uint64_t kElements = kTileElements + 3 * kPartElements + 1;

struct TakesAPart {
  struct Arguments {
    uint32_t* tickets = nullptr;
    uint32_t* elements = nullptr;  // elements of each part
  };
  struct Shared {
    uint32_t ticket;
  };
  static void Run(Shared& shared, const Arguments& arguments) {
    const Part part = TakePart(arguments.tickets, kElements, shared.ticket);
    if (ThreadIndex() == 0) arguments.elements[shared.ticket] = part.elements;
  }
};

TEST(CudaTeam, GivesEachBlockAPartOfItsOwn) {
  uint32_t tickets = 0;
  std::vector<uint32_t> elements(PartsOf(kElements));
  EmulatedStream stream;
  ASSERT_EQ(
      Launch<TakesAPart>(PartsOf(kElements),
                         {.tickets = &tickets, .elements = elements.data()}, &stream),
      0);
  std::vector<uint32_t> expected(kParts + 3, kPartElements);
  expected.push_back(1);
  EXPECT_EQ(elements, expected);
}

// The state as if another grid took tickets from the same workspace.
TEST(CudaTeamDeathTest, TrapsOnATicketThatNoPartHas) {
  uint32_t tickets = 1;
  std::vector<uint32_t> elements(PartsOf(kElements) + 1);
  EmulatedStream stream;
  EXPECT_DEATH(
      Launch<TakesAPart>(PartsOf(kElements),
                         {.tickets = &tickets, .elements = elements.data()}, &stream),
      "CHECK failed");
}

}  // namespace
}  // namespace syncline::emulated
