// The probe over a link whose costs are stated, in simulated time: each rank has a time
// of its own, which a message carries to its receiver.
#include "comm/collective/group/cost_probe.h"

#include <algorithm>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "comm/collective/schedule/select.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::collective {
namespace {

struct TimedMessage {
  std::vector<std::byte> bytes;
  absl::Duration arrival;
};

// One direction of the link.
class StatedPipe {
 public:
  void Put(TimedMessage message) {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(std::move(message));
  }
  TimedMessage Take() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](std::deque<TimedMessage>* messages) { return !messages->empty(); },
        &messages_));
    TimedMessage message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

 private:
  absl::Mutex mutex_;
  std::deque<TimedMessage> messages_ ABSL_GUARDED_BY(mutex_);
};

class StatedPeer final : public ProbePeer {
 public:
  struct Ends {
    StatedPipe& out;
    StatedPipe& in;
  };
  // `offset`: what this rank's clock shows at the beginning.
  StatedPeer(const LinkCost& cost, const Ends& ends, absl::Duration offset)
      : cost_(cost), ends_(ends), offset_(offset) {}

  absl::Status Send(ByteView message) override {
    now_ += absl::Seconds(cost_.per_message);
    cable_free_ = std::max(now_, cable_free_) +
                  absl::Seconds(cost_.per_byte * static_cast<double>(message.size()));
    sent_ += message.size();
    ends_.out.Put(
        {{message.begin(), message.end()}, cable_free_ + absl::Seconds(cost_.latency)});
    return absl::OkStatus();
  }
  absl::Status Receive(MutableByteView message) override {
    const TimedMessage taken = ends_.in.Take();
    if (taken.bytes.size() != message.size()) return absl::InternalError("another size");
    std::copy(taken.bytes.begin(), taken.bytes.end(), message.begin());
    now_ = std::max(now_, taken.arrival);
    return absl::OkStatus();
  }
  absl::Duration Now() override { return offset_ + now_; }

  absl::Duration taken() const { return now_; }
  size_t sent() const { return sent_; }

 private:
  const LinkCost cost_;
  const Ends ends_;
  const absl::Duration offset_;
  absl::Duration now_ = absl::ZeroDuration();
  absl::Duration cable_free_ = absl::ZeroDuration();
  size_t sent_ = 0;
};

struct ProbeRun {
  LinkCost cost;
  absl::Duration taken;
  size_t sent = 0;
};

// Measures a link with these costs between two ranks whose clocks differ by an hour.
ProbeRun Measured(const LinkCost& stated) {
  StatedPipe there;
  StatedPipe back;
  StatedPeer one(stated, {there, back}, absl::Hours(7));
  StatedPeer other(stated, {back, there}, absl::Hours(8));
  std::thread answering([&] { EXPECT_TRUE(AnswerProbes(other).ok()); });
  const auto cost = MeasureLink(one);
  answering.join();
  EXPECT_TRUE(cost.ok()) << cost.status();
  return {cost.value_or(LinkCost{}), one.taken(), one.sent()};
}

constexpr LinkCost kRack = {.latency = 10e-6, .per_message = 2e-6, .per_byte = 0.08e-9};
constexpr LinkCost kOffice = {.latency = 200e-6, .per_message = 5e-6, .per_byte = 80e-9};
constexpr LinkCost kOcean = {.latency = 0.08, .per_message = 5e-6, .per_byte = 0.8e-9};

TEST(CostProbe, FindsTheCostsOfALink) {
  for (const LinkCost& stated : {kRack, kOffice, kOcean}) {
    const LinkCost cost = Measured(stated).cost;
    SCOPED_TRACE(stated.latency);
    EXPECT_NEAR(cost.latency / stated.latency, 1, 0.02);
    EXPECT_NEAR(cost.per_message / stated.per_message, 1, 0.3);
    EXPECT_NEAR(cost.per_byte / stated.per_byte, 1, 0.1);
  }
}

TEST(CostProbe, IsBounded) {
  EXPECT_LT(Measured(kRack).taken, absl::Milliseconds(10));
  EXPECT_LT(Measured(kOffice).taken, absl::Milliseconds(30));
  // A dozen answers from the other side of an ocean.
  EXPECT_LT(Measured(kOcean).taken, absl::Seconds(12.1 * 0.16));
  EXPECT_LT(Measured(kOffice).sent, size_t{200} << 10);
}

TEST(CostProbe, TheBestOfTheReductionsCounts) {
  // Each one seems to take a second less than the one before; the best one, no time.
  absl::Duration now = absl::ZeroDuration();
  int calls = 0;
  const auto clock = [&] {
    now += calls % 2 == 0 ? absl::Seconds(1) : absl::Seconds(std::max(0, 10 - calls / 2));
    ++calls;
    return now;
  };
  EXPECT_EQ(MeasureReduction(clock), 1e-12);
  int ticks = 0;
  EXPECT_EQ(MeasureReduction([&] { return absl::Microseconds(64 * ticks++); }),
            64e-6 / 65536);
}

TEST(CostProbe, SlowLinksChangeTheChoice) {
  const Problem problem = {
      .op = CollectiveOp::kAllReduce, .ranks = 16, .count = 16 << 10};
  const auto chosen = [&](const LinkCost& stated) {
    return Select(problem, 4, {.hosts = 16, .costs = {.network = Measured(stated).cost}});
  };
  const Choice few_bytes = chosen(kOffice);
  EXPECT_EQ(few_bytes.algorithm, Algorithm::kHalving) << few_bytes.reason;
  const Choice few_rounds = chosen(kOcean);
  EXPECT_EQ(few_rounds.algorithm, Algorithm::kDoubling) << few_rounds.reason;
}

TEST(CostProbe, RefusesAnOrderThatIsTooLarge) {
  StatedPipe there;
  StatedPipe back;
  StatedPeer one(kRack, {there, back}, absl::ZeroDuration());
  StatedPeer other(kRack, {back, there}, absl::ZeroDuration());
  const uint64_t order[] = {1, uint64_t{1} << 40};
  ASSERT_TRUE(one.Send(std::as_bytes(std::span(order))).ok());
  EXPECT_TRUE(absl::IsInternal(AnswerProbes(other)));
}

}  // namespace
}  // namespace syncline::collective
