#include "server/service/journal_times.h"

#include <memory>

#include "comm/base/env.h"
#include "gtest/gtest.h"
#include "server/shard/record.h"

namespace syncline {
namespace {

ShardOutputs Records(std::initializer_list<uint32_t> blocks) {
  ShardOutputs outputs;
  for (const uint32_t block : blocks) {
    StepRecord step;
    step.block = block;
    step.step = 9;
    outputs.emplace_back(ShardRecorded{
        std::make_shared<const ShardRecord>(ShardRecord{.epoch = 1, .what = step})});
  }
  return outputs;
}

class JournalTimesTest : public testing::Test {
 protected:
  void Give(const ShardOutputs& outputs, bool is_open) {
    times_.Count(outputs);
    if (is_open) times_.Began(outputs, track_->Now());
  }
  std::vector<TraceSpan> Durable(uint64_t records) {
    times_.Durable(records, *track_);
    const auto taken = recorder_.Take(100);
    return taken ? taken->spans : std::vector<TraceSpan>();
  }
  static TraceSpan SpanOf(uint32_t block, int64_t begin, int64_t end) {
    return {.begin_ns = begin,
            .end_ns = end,
            .step = 9,
            .block = block,
            .kind = TraceKind::kJournal};
  }

  FakeClock clock_;
  TraceRecorder recorder_{clock_};
  TraceTrack* track_ = recorder_.AddTrack("engine");
  JournalTimes times_;
};

TEST_F(JournalTimesTest, AnAnswerIsAboutTheRecordsThatItCounts) {
  Give(Records({0, 1, 2}), /*is_open=*/false);
  recorder_.Open(1);
  Give(Records({3, 4}), true);
  clock_.Advance(absl::Nanoseconds(5));
  Give(Records({5}), true);
  EXPECT_TRUE(Durable(3).empty()) << "those before the trace";
  clock_.Advance(absl::Nanoseconds(2));
  EXPECT_EQ(Durable(4), (std::vector{SpanOf(3, 0, 7)}));
  EXPECT_EQ(Durable(6), (std::vector{SpanOf(4, 0, 7), SpanOf(5, 5, 7)}));
  EXPECT_TRUE(Durable(6).empty());
}

TEST_F(JournalTimesTest, WhatIsAwaitedIsBounded) {
  recorder_.Open(1);
  for (int i = 0; i < 10000; ++i) Give(Records({7}), true);
  times_.Durable(10000, *track_);
  const auto taken = recorder_.Take(100000);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->spans.size(), 4096u);
}

}  // namespace
}  // namespace syncline
