#include "cli/trace_arrows.h"

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace syncline {
namespace {

TraceFileMember WithClock(int64_t offset_ns, uint64_t error_ns) {
  TraceFileMember member;
  member.clock = TraceFileMember::Clock{.offset_ns = offset_ns, .error_ns = error_ns};
  return member;
}

// Returns an arrow from worker `from` by the server `by`, at these times of their clocks.
TraceArrow Arrow(size_t from, size_t by, int64_t encoded, int64_t received, int64_t made,
                 int64_t decoded) {
  return {.encoded = {.member = from, .time_ns = encoded},
          .received = {.member = by, .time_ns = received},
          .made = TracePlace{.member = by, .time_ns = made},
          .decoded = {.member = from, .time_ns = decoded}};
}

TraceSpan Span(TraceKind kind, uint16_t rank, int64_t at) {
  return {
      .begin_ns = at, .end_ns = at, .step = 5, .block = 0, .rank = rank, .kind = kind};
}

// In mode asp each contribution makes a step; another worker's step 5 is another one.
TEST(TraceArrows, AContributionThatMakesAStepLeadsToNoOther) {
  TraceData data{.first_step = 5, .until = 6, .members = {{}, {}, {}}};
  data.members[0].tracks["engine 0"] = {Span(TraceKind::kStep, 0, 20),
                                        Span(TraceKind::kStep, 1, 90)};
  for (const uint16_t rank : {0, 1}) {
    const int64_t at = rank == 0 ? 10 : 80;
    data.members[rank + 1].tracks["exchange"] = {
        Span(TraceKind::kEncodeBlock, rank, at),
        Span(TraceKind::kDecodeBlock, rank, at + 20)};
  }
  const std::vector<TraceArrow> arrows = FindArrows(data);
  ASSERT_EQ(arrows.size(), 2u);
  EXPECT_EQ(arrows[0].received.time_ns, 20);
  EXPECT_FALSE(arrows[0].made);
  EXPECT_EQ(arrows[1].received.time_ns, 90);
}

struct Moved {
  int64_t offset_ns;
  uint64_t error_ns;
  bool operator==(const Moved&) const = default;
};

std::vector<Moved> Solved(const std::vector<TraceArrow>& arrows,
                          const std::vector<TraceFileMember>& members) {
  std::vector<Moved> moved;
  for (const auto& clock : ClocksOf(arrows, members)) {
    moved.push_back(clock ? Moved{clock->offset_ns, clock->error_ns} : Moved{-1, 0});
  }
  return moved;
}

TEST(TraceArrows, ClocksThatFitStayAndTheirBoundsShrink) {
  const std::vector<TraceFileMember> members = {WithClock(0, 1000), WithClock(0, 1000)};
  // The worker's clock may be moved by 501 against the server's, to either side.
  EXPECT_EQ(Solved({Arrow(1, 0, 0, 502, 1000, 1502)}, members),
            (std::vector<Moved>{{0, 1000}, {0, 1000}}));
  const std::vector<TraceFileMember> exact = {WithClock(0, 0), WithClock(0, 1000)};
  EXPECT_EQ(Solved({Arrow(1, 0, 0, 502, 1000, 1502)}, exact),
            (std::vector<Moved>{{0, 0}, {0, 501}}));
}

TEST(TraceArrows, ClocksMoveUntilNothingArrivesBeforeItWasSent) {
  // It seems to be received 300 before it was encoded, and decoded 900 after the step.
  const std::vector<TraceFileMember> exact = {WithClock(5000, 0), WithClock(7, 1000)};
  EXPECT_EQ(Solved({Arrow(1, 0, 5293, 0, 100, 5993)}, exact),
            (std::vector<Moved>{{5000, 0}, {7 - 600, 299}}));
}

TEST(TraceArrows, ARowOfMembersMovesTogether) {
  // Worker 1 is sure of its clock and behind server 0, which is ahead of worker 2.
  const std::vector<TraceFileMember> members = {WithClock(0, 1000), WithClock(0, 0),
                                                WithClock(0, 1000)};
  const std::vector<TraceArrow> arrows = {Arrow(1, 0, 400, 0, 10, 9000),
                                          Arrow(2, 0, -9000, 0, 500, 400)};
  const auto moved = Solved(arrows, members);
  const auto at = [&](size_t member, int64_t time) {
    return time + moved[member].offset_ns;
  };
  EXPECT_EQ(at(1, 0), 0);
  EXPECT_LT(at(1, 400), at(0, 0));
  EXPECT_LT(at(0, 500), at(2, 400));
  EXPECT_LT(at(2, -9000), at(0, 0));
  for (const Moved& clock : moved) EXPECT_LE(std::abs(clock.offset_ns), 1000);
}

TEST(TraceArrows, ClocksThatContradictEachOtherStay) {
  // It arrives 300 early both ways, or earlier than the bounds allow.
  const std::vector<TraceFileMember> members = {WithClock(1, 1000), WithClock(2, 1000)};
  const std::vector<Moved> same = {{1, 1000}, {2, 1000}};
  EXPECT_EQ(Solved({Arrow(1, 0, 300, 0, 0, -300)}, members), same);
  EXPECT_EQ(Solved({Arrow(1, 0, 3000, 0, 0, 9000)}, members), same);
}

TEST(TraceArrows, AMemberWithoutAClockMovesNobody) {
  const std::vector<TraceFileMember> members = {WithClock(1, 1000), {}};
  EXPECT_EQ(Solved({Arrow(1, 0, 300, 0, 10, 9000)}, members),
            (std::vector<Moved>{{1, 1000}, {-1, 0}}));
}

}  // namespace
}  // namespace syncline
