#include "comm/base/trace_recorder.h"

#include <thread>

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr uint32_t kJob = 3;

TraceSpan SpanOf(uint64_t step) {
  return {.begin_ns = static_cast<int64_t>(step),
          .end_ns = static_cast<int64_t>(step) + 1,
          .step = step};
}

size_t TakeAll(TraceRecorder& recorder) {
  size_t spans = 0;
  while (const auto taken = recorder.Take(1000)) spans += taken->spans.size();
  return spans;
}

TEST(TraceRecorder, IsOpenForItsJobOnly) {
  const FakeClock clock;
  TraceRecorder recorder(clock);
  const TraceTrack* track = recorder.AddTrack("loop");
  EXPECT_FALSE(track->IsOpen(0));
  EXPECT_FALSE(track->IsOpen(kJob));
  recorder.Open(kJob);
  EXPECT_TRUE(track->IsOpen(kJob));
  EXPECT_FALSE(track->IsOpen(kJob + 1));
  recorder.Close();
  EXPECT_FALSE(track->IsOpen(kJob));
}

TEST(TraceRecorder, GivesBackWhatWasAddedInOrderAndByTrack) {
  const FakeClock clock;
  TraceRecorder recorder(clock);
  TraceTrack* first = recorder.AddTrack("first");
  TraceTrack* second = recorder.AddTrack("second");
  recorder.Open(kJob);
  for (uint64_t step = 0; step < 5; ++step) first->Add(SpanOf(step));
  second->Add(SpanOf(9));
  auto taken = recorder.Take(3);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->track, "first");
  EXPECT_EQ(taken->spans, (std::vector{SpanOf(0), SpanOf(1), SpanOf(2)}));
  taken = recorder.Take(3);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->spans, (std::vector{SpanOf(3), SpanOf(4)}));
  taken = recorder.Take(3);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->track, "second");
  EXPECT_FALSE(recorder.Take(3));
}

TEST(TraceRecorder, WhatFindsNoRoomIsLostAndCounted) {
  const FakeClock clock;
  TraceRecorder recorder(clock);
  TraceTrack* track = recorder.AddTrack("loop");
  recorder.Open(kJob);
  for (uint64_t i = 0; i < TraceRecorder::kSpansPerTrack + 7; ++i) track->Add(SpanOf(i));
  EXPECT_EQ(recorder.lost(), 7u);
  EXPECT_EQ(TakeAll(recorder), TraceRecorder::kSpansPerTrack);
  track->Add(SpanOf(1));  // there is room again
  EXPECT_EQ(TakeAll(recorder), 1u);
  recorder.Open(kJob);
  EXPECT_EQ(recorder.lost(), 0u);
}

TEST(TraceRecorder, OpeningForgetsWhatWasLeftAndStepsBehindTheWindowAreDropped) {
  const FakeClock clock;
  TraceRecorder recorder(clock);
  TraceTrack* track = recorder.AddTrack("loop");
  recorder.Open(kJob);
  track->Add(SpanOf(1));
  recorder.Open(kJob);
  EXPECT_EQ(TakeAll(recorder), 0u);
  recorder.Limit(10);
  track->Add(SpanOf(9));
  track->Add(SpanOf(10));
  EXPECT_EQ(TakeAll(recorder), 1u);
  EXPECT_EQ(recorder.lost(), 0u);
}

TEST(TraceRecorder, SpansOutliveTheirWindow) {
  const FakeClock clock;
  TraceRecorder recorder(clock);
  TraceTrack* track = recorder.AddTrack("loop");
  recorder.Open(kJob);
  track->Add(SpanOf(1));
  recorder.Close();
  EXPECT_EQ(TakeAll(recorder), 1u);
}

TEST(TraceRecorder, NothingIsLostOrTornBetweenAThreadThatAddsAndOneThatTakes) {
  const FakeClock clock;
  TraceRecorder recorder(clock);
  TraceTrack* track = recorder.AddTrack("loop");
  recorder.Open(kJob);
  constexpr uint64_t kSpans = 300000;
  std::thread owner([&] {
    for (uint64_t i = 0; i < kSpans; ++i) track->Add(SpanOf(i));
  });
  uint64_t next = 0, taken_spans = 0;
  while (taken_spans + recorder.lost() < kSpans) {
    const auto taken = recorder.Take(4096);
    if (!taken) continue;
    for (const TraceSpan& span : taken->spans) {
      ASSERT_GE(span.step, next);  // in order, without repetition
      ASSERT_EQ(span, SpanOf(span.step));
      next = span.step + 1;
    }
    taken_spans += taken->spans.size();
  }
  owner.join();
  EXPECT_EQ(taken_spans + recorder.lost(), kSpans);
}

}  // namespace
}  // namespace syncline
