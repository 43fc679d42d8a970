#include "comm/rpc/trace_sender.h"

#include <vector>

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr uint32_t kJob = 5;

class TraceSenderTest : public testing::Test {
 protected:
  TraceSenderTest() : track_(recorder_.AddTrack("loop")), sender_(recorder_) {}

  static v1::TraceOrder Order(uint64_t trace, uint64_t until = 0) {
    v1::TraceOrder order;
    order.set_trace(trace);
    order.set_job(kJob);
    order.set_until(until);
    order.set_limit_ms(10000);
    return order;
  }
  void Add(uint64_t step, size_t spans = 1) {
    for (size_t i = 0; i < spans; ++i)
      track_->Add({.begin_ns = 1, .end_ns = 2, .step = step});
  }
  std::vector<v1::MemberMessage> Parts(uint64_t reached) {
    return sender_.Parts(reached, nullptr);
  }
  static size_t SpansOf(const std::vector<v1::MemberMessage>& parts) {
    size_t spans = 0;
    for (const auto& part : parts) spans += part.trace_part().spans();
    return spans;
  }

  FakeClock clock_;
  TraceRecorder recorder_{clock_};
  TraceTrack* track_;
  TraceSender sender_;
};

TEST_F(TraceSenderTest, AnswersTheFirstOrderOfATraceOnly) {
  EXPECT_TRUE(Parts(0).empty());
  const auto answer = sender_.Take(Order(9), 17);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->trace_part().trace(), 9u);
  EXPECT_EQ(answer->trace_part().first_step(), 17u);
  EXPECT_FALSE(answer->trace_part().last());
  EXPECT_TRUE(track_->IsOpen(kJob));
  EXPECT_FALSE(sender_.Take(Order(9), 18));
  EXPECT_FALSE(sender_.Take(Order(9, 20), 18));
  EXPECT_TRUE(sender_.Take(Order(3), 18)) << "another trace takes its place";
}

TEST_F(TraceSenderTest, SaysTheLastPartOneCallAfterTheWindow) {
  sender_.Take(Order(9), 10);
  Add(10);
  EXPECT_EQ(SpansOf(Parts(11)), 1u);
  sender_.Take(Order(9, 12), 0);
  Add(11);
  const auto parts = Parts(12);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_FALSE(parts[0].trace_part().last());
  EXPECT_TRUE(track_->IsOpen(kJob));
  Add(11);  // a late one of the last step
  Add(12);  // beyond the window
  const auto rest = Parts(13);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].trace_part().spans(), 1u);
  EXPECT_TRUE(rest[0].trace_part().last());
  EXPECT_FALSE(track_->IsOpen(kJob));
  EXPECT_TRUE(Parts(14).empty());
  EXPECT_FALSE(sender_.job());
}

TEST_F(TraceSenderTest, EndsAtItsLimitThoughNobodySaysWhen) {
  sender_.Take(Order(9), 10);
  clock_.Advance(absl::Seconds(9));
  EXPECT_TRUE(Parts(11).empty());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(Parts(11).empty());
  const auto parts = Parts(11);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_TRUE(parts[0].trace_part().last());
}

TEST_F(TraceSenderTest, AMemberThatLeavesSendsAllAtOnce) {
  sender_.Take(Order(9), 10);
  Add(11, 60000);
  size_t spans = 0;
  bool is_last = false;
  int calls = 0;
  for (auto parts = Parts(TraceSender::kNoStepComes); !parts.empty();
       parts = Parts(TraceSender::kNoStepComes)) {
    spans += SpansOf(parts);
    is_last = parts.back().trace_part().last();
    ASSERT_LT(++calls, 10);
  }
  EXPECT_EQ(spans, 60000u);
  EXPECT_TRUE(is_last);
}

TEST_F(TraceSenderTest, SaysWhatFoundNoRoom) {
  sender_.Take(Order(9), 10);
  Add(10, TraceRecorder::kSpansPerTrack + 3);
  const auto parts = Parts(11);
  ASSERT_FALSE(parts.empty());
  EXPECT_EQ(parts[0].trace_part().lost(), 3u);
}

TEST(PackedSpans, ComeBackAsTheyWere) {
  const std::vector<TraceSpan> spans = {{.begin_ns = 100, .end_ns = 100, .step = 7},
                                        {.begin_ns = int64_t{1} << 61,
                                         .end_ns = (int64_t{1} << 61) + 5,
                                         .step = ~uint64_t{0},
                                         .block = 0,
                                         .rank = 0,
                                         .kind = TraceKind::kJournal},
                                        {.begin_ns = 3,
                                         .end_ns = 9,
                                         .step = 0,
                                         .block = 12,
                                         .rank = 16383,
                                         .kind = TraceKind::kHold}};
  const auto read = UnpackSpans(PackSpans(spans));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, spans);
  EXPECT_TRUE(UnpackSpans("")->empty());
}

TEST(PackedSpans, WhatMakesNoSenseIsRefused) {
  const auto packed = [](auto change) {
    v1::TraceSpans columns;
    columns.add_begin_ns(1);
    columns.add_took_ns(1);
    columns.add_step(1);
    columns.add_block(1);
    columns.add_rank(1);
    columns.add_kind(1);
    change(columns);
    return UnpackSpans(columns.SerializeAsString()).status();
  };
  EXPECT_TRUE(packed([](v1::TraceSpans&) {}).ok());
  EXPECT_FALSE(packed([](v1::TraceSpans& c) { c.add_kind(1); }).ok());
  EXPECT_FALSE(packed([](v1::TraceSpans& c) { c.clear_rank(); }).ok());
  EXPECT_FALSE(
      packed([](v1::TraceSpans& c) { c.set_kind(0, kTraceKindNames.size()); }).ok());
  EXPECT_FALSE(packed([](v1::TraceSpans& c) { c.set_begin_ns(0, -1); }).ok());
  EXPECT_FALSE(packed([](v1::TraceSpans& c) { c.set_took_ns(0, ~uint64_t{0}); }).ok());
  EXPECT_FALSE(packed([](v1::TraceSpans& c) { c.set_rank(0, 1 << 16); }).ok());
  EXPECT_FALSE(UnpackSpans("\xff\xff").ok());
}

}  // namespace
}  // namespace syncline
