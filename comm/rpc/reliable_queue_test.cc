#include "comm/rpc/reliable_queue.h"

#include <algorithm>
#include <deque>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Queue = ReliableQueue<std::string>;

uint64_t Push(Queue& queue, const std::string& text) {
  return *queue.Push(std::make_shared<const std::string>(text), text.size());
}

std::vector<std::string> TextsAfter(const Queue& queue, uint64_t number) {
  std::vector<std::string> texts;
  for (const auto& [n, message] : queue.After(number)) texts.push_back(*message);
  return texts;
}

TEST(ReliableQueueTest, KeepsWhatIsNotAcknowledged) {
  Queue queue({});
  EXPECT_EQ(Push(queue, "a"), 1u);
  EXPECT_EQ(Push(queue, "bb"), 2u);
  EXPECT_EQ(Push(queue, "ccc"), 3u);
  EXPECT_EQ(queue.bytes(), 6u);
  EXPECT_THAT(TextsAfter(queue, 0), ElementsAre("a", "bb", "ccc"));
  queue.Acknowledge(2);
  EXPECT_EQ(queue.bytes(), 3u);
  EXPECT_THAT(TextsAfter(queue, 2), ElementsAre("ccc"));
  EXPECT_EQ(queue.Find(2), nullptr);
  EXPECT_EQ(*queue.Find(3), "ccc");
  EXPECT_EQ(queue.Find(4), nullptr);
  queue.Acknowledge(1);  // late
  EXPECT_EQ(queue.size(), 1u);
  queue.Acknowledge(3);
  EXPECT_THAT(TextsAfter(queue, 3), IsEmpty());
  EXPECT_EQ(queue.next(), 4u);
}

TEST(ReliableQueueTest, ReplaysOnlyWhereNothingIsMissing) {
  Queue queue({});
  EXPECT_TRUE(queue.CanReplayAfter(0));
  EXPECT_FALSE(queue.CanReplayAfter(1)) << "never said";
  for (int i = 0; i < 4; ++i) Push(queue, "x");
  queue.Acknowledge(2);
  EXPECT_FALSE(queue.CanReplayAfter(1)) << "forgotten";
  EXPECT_TRUE(queue.CanReplayAfter(2));
  EXPECT_TRUE(queue.CanReplayAfter(4));
  EXPECT_FALSE(queue.CanReplayAfter(5));
  queue.Acknowledge(9);  // a false acknowledgement
  EXPECT_TRUE(queue.CanReplayAfter(2));
}

TEST(ReliableQueueTest, RefusesMoreThanItsLimits) {
  Queue queue({.messages = 2, .bytes = 10});
  Push(queue, "12345678");
  EXPECT_EQ(queue.Push(std::make_shared<const std::string>("abc"), 3).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Push(queue, "ab"), 2u) << "the refused one has no number";
  EXPECT_FALSE(queue.Push(std::make_shared<const std::string>(""), 0).ok());
  queue.Acknowledge(1);
  EXPECT_EQ(Push(queue, "again"), 3u);
}

TEST(ReceivedNumbersTest, TakesEachNumberOnceAndInOrder) {
  ReceivedNumbers received;
  using Verdict = ReceivedNumbers::Verdict;
  EXPECT_EQ(received.Take(1), Verdict::kNew);
  EXPECT_EQ(received.Take(1), Verdict::kRepeated);
  EXPECT_EQ(received.Take(3), Verdict::kGap);
  EXPECT_EQ(received.Take(2), Verdict::kNew);
  EXPECT_EQ(received.last(), 2u);
}

// Streams deliver in order and may break anywhere, with the messages under way lost.
// Acknowledgements may be late, and a replaced stream may still deliver. Everything must
// arrive once and in order.
TEST(ReliableQueueTest, CarriesEverythingOnceOverStreamsThatBreak) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto chance = [&](uint64_t percent) { return random() % 100 < percent; };
    Queue queue({});
    ReceivedNumbers received;
    std::vector<std::string> delivered;
    std::deque<Queue::Entry> wire;  // of the present stream
    std::deque<Queue::Entry> left;  // of the replaced stream
    uint64_t said = 0;
    uint64_t written = 0;
    const auto deliver = [&](std::deque<Queue::Entry>& from) {
      if (from.empty()) return;
      const Queue::Entry entry = from.front();
      from.pop_front();
      const ReceivedNumbers::Verdict verdict = received.Take(entry.first);
      ASSERT_NE(verdict, ReceivedNumbers::Verdict::kGap);
      if (verdict == ReceivedNumbers::Verdict::kNew) delivered.push_back(*entry.second);
    };
    while (delivered.size() < 100) {
      if (said < 100 && chance(30)) {
        Push(queue, std::to_string(said++));
      }
      // It arrived on the other stream.
      written = std::max(written, queue.acknowledged());
      for (; written < queue.last() && chance(80); ++written) {
        wire.emplace_back(written + 1, queue.Find(written + 1));
        ASSERT_NE(wire.back().second, nullptr);
      }
      if (chance(40)) deliver(wire);
      if (chance(20)) deliver(left);
      if (chance(10)) queue.Acknowledge(received.last());
      if (chance(5)) {  // breaks; the next one resumes
        left = wire;
        while (!left.empty() && chance(50)) left.pop_back();
        wire.clear();
        ASSERT_TRUE(queue.CanReplayAfter(received.last()));
        written = received.last();
        queue.Acknowledge(written);
      }
    }
    for (size_t i = 0; i < delivered.size(); ++i) {
      ASSERT_EQ(delivered[i], std::to_string(i));
    }
  }
}

}  // namespace
}  // namespace syncline
