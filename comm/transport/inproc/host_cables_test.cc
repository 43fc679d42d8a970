#include "comm/transport/inproc/host_cables.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr double kMegabit = 125e3;

// Returns how long these bytes of data take at this rate.
double SecondsOf(double data_bytes, double rate) {
  return data_bytes * HostCables::kFrameBytes / HostCables::kFrameData / rate;
}

class HostCablesTest : public ::testing::Test {
 protected:
  // A flow that counts what has arrived, and when the last of it did.
  struct Counted {
    std::shared_ptr<HostCables::Flow> flow;
    uint64_t arrived = 0;
    absl::Duration last = {};
  };

  Counted& Open(const std::string& from, const std::string& to) {
    flows_.push_back(std::make_unique<Counted>());
    Counted& counted = *flows_.back();
    counted.flow = cables_.Open(from, to, [this, &counted](size_t bytes) {
      counted.arrived += bytes;
      counted.last = events_.now();
    });
    return counted;
  }

  void Drain() {
    while (events_.RunNext()) {
    }
  }

  EventQueue events_;
  HostCables cables_{events_};
  std::vector<std::unique_ptr<Counted>> flows_;
};

TEST_F(HostCablesTest, AFlowTakesTheTimeOfTheSlowerCable) {
  cables_.Lay("worker", {.up = kMegabit, .down = 100 * kMegabit});
  cables_.Lay("server", {.up = 100 * kMegabit, .down = 10 * kMegabit});
  Counted& there = Open("worker", "server");
  Counted& back = Open("server", "worker");
  there.flow->Write(1'000'000);
  back.flow->Write(1'000'000);
  Drain();
  EXPECT_EQ(there.arrived, 1'000'000u);
  EXPECT_EQ(back.arrived, 1'000'000u);
  const double slow = SecondsOf(1e6, kMegabit), fast = SecondsOf(1e6, 100 * kMegabit);
  EXPECT_NEAR(absl::ToDoubleSeconds(there.last), slow, 0.05 * slow);
  EXPECT_NEAR(absl::ToDoubleSeconds(back.last), fast, 0.1 * fast) << "the other way";
  EXPECT_EQ(cables_.sent_bytes(), 2'000'000u);
  EXPECT_NEAR(absl::ToDoubleSeconds(cables_.BusyTime("worker")), slow, 0.001 * slow);
}

// Three workers push to one server: its cable is full all the time, and each gets a part.
TEST_F(HostCablesTest, FlowsOfSeveralHostsShareACable) {
  constexpr double kRate = 10 * kMegabit;
  cables_.Lay("server", {.up = kRate, .down = kRate});
  for (int i = 0; i < 3; ++i) {
    cables_.Lay(absl::StrCat("worker", i), {.up = kRate, .down = kRate});
    Open(absl::StrCat("worker", i), "server").flow->Write(2'000'000);
  }
  const double all = SecondsOf(6e6, kRate);
  events_.RunUntil(absl::Seconds(all / 2));
  for (const auto& flow : flows_) {
    EXPECT_GT(flow->arrived, 300'000u) << "a share of the cable";
    EXPECT_LT(flow->arrived, 1'900'000u) << "no more than a share";
  }
  Drain();
  double last = 0;
  for (const auto& flow : flows_) {
    EXPECT_EQ(flow->arrived, 2'000'000u);
    last = std::max(last, absl::ToDoubleSeconds(flow->last));
  }
  EXPECT_NEAR(last, all, 0.05 * all);
}

TEST_F(HostCablesTest, ShortOnesWaitAtACableForAboutItsQueue) {
  constexpr double kRate = 10 * kMegabit;
  cables_.Lay("worker", {.up = kRate, .down = kRate});
  Open("worker", "server").flow->Write(10'000'000);
  Counted& beat = Open("worker", "coordinator");
  absl::Duration longest;
  for (int i = 1; i <= 50; ++i) {
    events_.RunUntil(absl::Milliseconds(137 * i));
    const absl::Duration sent = events_.now();
    const uint64_t before = beat.arrived;
    beat.flow->Write(200);
    while (beat.arrived == before) ASSERT_TRUE(events_.RunNext());
    longest = std::max(longest, events_.now() - sent);
  }
  EXPECT_GT(longest, absl::Milliseconds(10)) << "others were never under way";
  EXPECT_LT(longest, 3 * HostCables::kMarkedAfter);
}

TEST_F(HostCablesTest, AHostHasNoCableToItselfNorWithoutRates) {
  cables_.Lay("a", {.up = kMegabit});
  cables_.Lay("b", {});
  EXPECT_TRUE(cables_.AreLimited("a", "b"));
  EXPECT_TRUE(cables_.AreLimited("a", "unknown"));
  EXPECT_FALSE(cables_.AreLimited("b", "a")) << "only the way up is limited";
  EXPECT_FALSE(cables_.AreLimited("a", "a"));
  EXPECT_EQ(cables_.BusyTime("unknown"), absl::ZeroDuration());
}

TEST_F(HostCablesTest, AClosedFlowArrivesNoMoreAndOthersGoOn) {
  cables_.Lay("a", {.up = kMegabit});
  Counted& closed = Open("a", "b");
  Counted& other = Open("a", "b");
  closed.flow->Write(100'000);
  other.flow->Write(100'000);
  events_.RunUntil(absl::Milliseconds(200));
  closed.flow->Close();
  const uint64_t arrived = closed.arrived;
  EXPECT_GT(arrived, 0u);
  closed.flow->Write(1000);
  Drain();
  EXPECT_EQ(closed.arrived, arrived);
  EXPECT_EQ(other.arrived, 100'000u);
  EXPECT_LT(cables_.sent_bytes(), 200'000u) << "what had not left is dropped";
  EXPECT_LT(absl::ToDoubleSeconds(other.last), SecondsOf(2e5, kMegabit));
}

}  // namespace
}  // namespace syncline
