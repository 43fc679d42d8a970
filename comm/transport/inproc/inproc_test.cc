#include "comm/transport/inproc/inproc.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport/transport_contract.h"

namespace syncline {
namespace {

ByteView Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

class InprocRig : public TransportRig {
 public:
  explicit InprocRig(int transports, InprocOptions options = {})
      : network_(events_, options) {
    for (int i = 0; i < transports; ++i) {
      receivers_.push_back(std::make_unique<RecordingReceiver>());
      transports_.push_back(network_.CreateTransport(*receivers_.back()));
    }
  }

  Transport& transport(int i) override { return *transports_[i]; }
  RecordingReceiver& receiver(int i) override { return *receivers_[i]; }
  void Pump() override { transports_[0]->Wait(absl::Milliseconds(1)); }

  std::string StartVictim() override {
    victim_ = network_.CreateTransport(victim_receiver_);
    return victim_->address();
  }
  void KillVictim() override { network_.Kill(victim_->address()); }

  EventQueue& events() { return events_; }
  InprocNetwork& network() { return network_; }
  void Drain() {
    while (events_.RunNext()) {
    }
  }

 private:
  EventQueue events_;
  InprocNetwork network_;
  std::vector<std::unique_ptr<RecordingReceiver>> receivers_;
  RecordingReceiver victim_receiver_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::unique_ptr<Transport> victim_;
};

InprocOptions LendsFrom(size_t bytes) {
  InprocOptions options;
  options.smallest_loan = bytes;
  return options;
}

INSTANTIATE_TEST_SUITE_P(
    Inproc, TransportContract,
    ::testing::Values(RigFactory{"inproc",
                                 [](int transports) {
                                   return std::make_unique<InprocRig>(transports);
                                 }},
                      RigFactory{"inproc_lending", [](int transports) {
                                   return std::make_unique<InprocRig>(transports,
                                                                      LendsFrom(1));
                                 }}));

// ---- Loans ----

// Keeps the slices that it borrows.
class Borrower : public RecordingReceiver {
 public:
  void OnBorrowed(ByteView /*header*/, Landed payload) override {
    borrowed.push_back(std::move(payload));
  }
  std::vector<Landed> borrowed;
};

class InprocLoans : public ::testing::Test {
 protected:
  InprocLoans()
      : network_(events_, LendsFrom(100)),
        lender_(network_.CreateTransport(nobody_)),
        transport_(network_.CreateTransport(borrower_)),
        endpoint_(*lender_->Connect(transport_->address(), {})) {}

  void Send(Payload payload) {
    endpoint_->Send(Bytes("header"), std::move(payload),
                    [this](const absl::Status& status) { done_ = status; });
  }
  void Drain() {
    while (events_.RunNext()) {
    }
  }

  EventQueue events_;
  InprocNetwork network_;
  RecordingReceiver nobody_;
  Borrower borrower_;
  std::unique_ptr<Transport> lender_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> endpoint_;
  std::optional<absl::Status> done_;
};

TEST_F(InprocLoans, AreReadInPlaceAndDoneWhenTheLastCopyIsGone) {
  const Buffer memory = Buffer::Allocate(100);
  Send({Slice::Of(memory)});
  Drain();
  ASSERT_EQ(borrower_.borrowed.size(), 1u);
  EXPECT_EQ(borrower_.borrowed[0].body.data, memory.data());
  EXPECT_FALSE(done_.has_value());
  borrower_.borrowed.clear();
  Drain();
  ASSERT_TRUE(done_.has_value());
  EXPECT_TRUE(done_->ok());
}

TEST_F(InprocLoans, KeepTheMemoryThoughTheEndpointIsGone) {
  std::weak_ptr<std::byte> memory;
  {
    const Buffer lent = Buffer::Allocate(100);
    memory = lent.owner();
    Send({Slice::Of(lent)});
  }
  Drain();
  endpoint_.reset();
  Drain();
  EXPECT_EQ(done_->code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(memory.expired());
  borrower_.borrowed.clear();
  Drain();
  EXPECT_TRUE(memory.expired());
}

TEST_F(InprocLoans, AreCopiesOfMemoryWithoutAnOwner) {
  const std::string text(100, 'x');
  Send({Slice::Borrowed(Bytes(text))});
  Drain();
  EXPECT_TRUE(done_->ok());
  ASSERT_EQ(borrower_.borrowed.size(), 1u);
  EXPECT_NE(borrower_.borrowed[0].body.data, Bytes(text).data());
}

TEST_F(InprocLoans, AreForWhatIsLongAndNear) {
  Send({Slice::Of(Buffer::Allocate(99))});
  network_.SetRate(lender_->address(), transport_->address(), 1e6);
  Send({Slice::Of(Buffer::Allocate(100))});
  Drain();
  EXPECT_TRUE(borrower_.borrowed.empty());
  EXPECT_EQ(borrower_.messages.size(), 2u);
}

TEST_F(InprocLoans, OfAMessageThatIsLostComeBack) {
  Send({Slice::Of(Buffer::Allocate(100))});
  network_.Cut(lender_->address(), transport_->address());
  Drain();
  EXPECT_TRUE(borrower_.borrowed.empty());
  EXPECT_TRUE(done_->ok());
}

constexpr int kMessages = 2000;

// Sends numbered messages over a faulty network and returns the headers in order of
// arrival.
std::vector<std::string> Arrivals(const InprocOptions& options) {
  InprocRig rig(2, options);
  const auto endpoint = *rig.transport(0).Connect(rig.transport(1).address(), {});
  for (int i = 0; i < kMessages; ++i) {
    rig.events().After(absl::Microseconds(i),
                       [&, i] { endpoint->Send(Bytes(std::to_string(i)), {}, nullptr); });
  }
  rig.Drain();
  std::vector<std::string> headers;
  for (const auto& message : rig.receiver(1).messages) headers.push_back(message.header);
  return headers;
}

InprocOptions Faulty(uint64_t seed) {
  InprocOptions options;
  options.seed = seed;
  options.faults = {.drop = 0.1,
                    .duplicate = 0.2,
                    .min_delay = absl::Microseconds(1),
                    .max_delay = absl::Microseconds(50),
                    .reorder = Reorder::kYes};
  return options;
}

TEST(Inproc, TheSameSeedGivesTheSameRun) {
  EXPECT_EQ(Arrivals(Faulty(5)), Arrivals(Faulty(5)));
  EXPECT_NE(Arrivals(Faulty(5)), Arrivals(Faulty(6)));
}

TEST(Inproc, FaultsHappenAsOftenAsAsked) {
  std::map<std::string, int> copies;
  for (const std::string& header : Arrivals(Faulty(9))) ++copies[header];
  const int dropped = kMessages - static_cast<int>(copies.size());
  int duplicated = 0;
  for (const auto& [header, count] : copies) duplicated += count == 2;
  EXPECT_NEAR(dropped, 0.1 * kMessages, 60);
  EXPECT_NEAR(duplicated, 0.2 * 0.9 * kMessages, 80);
}

TEST(Inproc, RandomDelaysReorderOnlyWhenAsked) {
  InprocOptions options = Faulty(3);
  options.faults.drop = options.faults.duplicate = 0;
  std::vector<std::string> sent;
  for (int i = 0; i < kMessages; ++i) sent.push_back(std::to_string(i));

  std::vector<std::string> arrived = Arrivals(options);
  EXPECT_NE(arrived, sent);
  std::ranges::sort(arrived);
  std::vector<std::string> sorted = sent;
  std::ranges::sort(sorted);
  EXPECT_EQ(arrived, sorted);

  options.faults.reorder = Reorder::kNo;
  EXPECT_EQ(Arrivals(options), sent);
}

TEST(Inproc, MessagesTakeTheirDelay) {
  InprocOptions options;
  options.faults.min_delay = options.faults.max_delay = absl::Milliseconds(3);
  InprocRig rig(2, options);
  const auto endpoint = *rig.transport(0).Connect(rig.transport(1).address(), {});
  absl::Duration arrival;
  rig.receiver(1).on_message = [&](const auto&) { arrival = rig.events().now(); };
  endpoint->Send(Bytes("m"), {}, nullptr);
  rig.Drain();
  EXPECT_EQ(arrival, absl::Milliseconds(3));
}

TEST(Inproc, ACutLosesBothDirectionsUntilItHeals) {
  InprocRig rig(3);
  const auto there = *rig.transport(0).Connect(rig.transport(1).address(), {});
  const auto back = *rig.transport(1).Connect(rig.transport(0).address(), {});
  const auto elsewhere = *rig.transport(0).Connect(rig.transport(2).address(), {});
  const auto send_all = [&](const std::string& header) {
    for (Endpoint* endpoint : {there.get(), back.get(), elsewhere.get()}) {
      endpoint->Send(Bytes(header), {}, nullptr);
    }
  };
  send_all("caught in flight");
  rig.network().Cut(rig.transport(1).address(), rig.transport(0).address());
  send_all("cut");
  rig.Drain();
  rig.network().Heal(rig.transport(0).address(), rig.transport(1).address());
  send_all("healed");
  rig.Drain();
  ASSERT_EQ(rig.receiver(0).messages.size(), 1u);
  ASSERT_EQ(rig.receiver(1).messages.size(), 1u);
  EXPECT_EQ(rig.receiver(1).messages[0].header, "healed");
  EXPECT_EQ(rig.receiver(2).messages.size(), 3u);
}

TEST(Inproc, AKilledProcessHearsAndSaysNothingMore) {
  InprocRig rig(2);
  const auto there = *rig.transport(0).Connect(rig.transport(1).address(), {});
  const auto back = *rig.transport(1).Connect(rig.transport(0).address(), {});
  int done = 0;
  there->Send(Bytes("in flight"), {}, nullptr);
  back->Send(Bytes("last words"), {}, [&](const absl::Status&) { ++done; });
  rig.network().Kill(rig.transport(1).address());
  back->Send(Bytes("from the grave"), {}, [&](const absl::Status&) { ++done; });
  rig.Drain();
  EXPECT_TRUE(rig.receiver(1).messages.empty());
  ASSERT_EQ(rig.receiver(0).messages.size(), 1u);  // it was on its way already
  EXPECT_EQ(rig.receiver(0).messages[0].header, "last words");
  EXPECT_EQ(done, 0);
}

TEST(Inproc, AKillNobodyHearsOfFailsNothing) {
  InprocRig rig(2, {.faults = {}, .failure_delay = absl::InfiniteDuration()});
  int failures = 0;
  const auto endpoint = *rig.transport(0).Connect(
      rig.transport(1).address(), {.on_failure = [&](const auto&) { ++failures; }});
  rig.network().Kill(rig.transport(1).address());
  endpoint->Send(Bytes("anyone?"), {}, nullptr);
  rig.Drain();
  EXPECT_EQ(failures, 0);
}

TEST(Inproc, ConnectingToTheDeadFails) {
  InprocRig rig(2);
  const std::string address = rig.transport(1).address();
  rig.network().Kill(address);
  int failures = 0;
  const auto endpoint = *rig.transport(0).Connect(
      address, {.on_failure = [&](const auto&) { ++failures; }});
  rig.Drain();
  EXPECT_EQ(failures, 1);
}

TEST(Inproc, AClosedEndpointCancelsItsPendingSends) {
  InprocRig rig(2);
  auto endpoint = *rig.transport(0).Connect(rig.transport(1).address(), {});
  absl::Status outcome;
  endpoint->Send(Bytes("m"), {}, [&](const absl::Status& status) { outcome = status; });
  endpoint.reset();
  rig.Drain();
  EXPECT_EQ(outcome.code(), absl::StatusCode::kCancelled);
}

TEST(Inproc, MessagesOfAPairFollowEachOtherAtTheirRate) {
  InprocRig rig(2);
  const auto endpoint = *rig.transport(0).Connect(rig.transport(1).address(), {});
  const auto back = *rig.transport(1).Connect(rig.transport(0).address(), {});
  rig.network().SetRate(rig.transport(0).address(), rig.transport(1).address(), 1000);
  std::vector<absl::Duration> arrivals;
  rig.receiver(1).on_message = [&](const auto&) {
    arrivals.push_back(rig.events().now());
  };
  const Buffer payload = Buffer::Allocate(499);
  int done = 0;
  for (int i = 0; i < 2; ++i) {
    endpoint->Send(Bytes("m"), {Slice::Of(payload)}, [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      ++done;
    });
  }
  rig.events().RunUntil(absl::Milliseconds(250));
  EXPECT_EQ(endpoint->send_state().accepted_bytes, 1000u);
  EXPECT_EQ(endpoint->send_state().gone_bytes, 250u) << "in the middle of a message";
  EXPECT_EQ(back->received_bytes(), 250u);
  EXPECT_EQ(endpoint->received_bytes(), 0u);
  EXPECT_EQ(done, 0);
  rig.Drain();
  EXPECT_EQ(done, 2);
  EXPECT_EQ(back->received_bytes(), 1000u);
  ASSERT_EQ(arrivals.size(), 2u);
  EXPECT_EQ(arrivals[0], absl::Milliseconds(500) + absl::Microseconds(10));
  EXPECT_EQ(arrivals[1], absl::Seconds(1) + absl::Microseconds(10));
}

// Returns the longest time that a message of a class takes at this rate while large
// messages of another class are on their way. Sends 40 messages at irregular times, from
// the third second on, when the bandwidth is known.
absl::Duration LongestWait(double bytes_per_second, TrafficClass traffic_class) {
  InprocRig rig(2);
  const auto endpoint = *rig.transport(0).Connect(rig.transport(1).address(), {});
  rig.network().SetRate(rig.transport(0).address(), rig.transport(1).address(),
                        bytes_per_second);
  std::map<std::string, absl::Duration> sent;
  absl::Duration longest;
  size_t arrived = 0;
  rig.receiver(1).on_message = [&](const RecordingReceiver::Message& message) {
    if (!sent.contains(message.header)) return;
    longest = std::max(longest, rig.events().now() - sent[message.header]);
    ++arrived;
  };
  const Buffer block = Buffer::Allocate(size_t{4} << 20), small = Buffer::Allocate(1000);
  const absl::Duration of_block = absl::Seconds(4194304 / bytes_per_second);
  for (uint32_t i = 0; i < 20; ++i) {
    endpoint->SendAs(Traffic::OfBlock(TrafficClass::kOther, i), Bytes("large"),
                     {Slice::Of(block)}, nullptr);
  }
  for (uint32_t i = 0; i < 40; ++i) {
    rig.events().RunUntil(absl::Seconds(3) + of_block * (0.37 * i));
    const std::string name = std::to_string(i);
    sent[name] = rig.events().now();
    endpoint->SendAs(Traffic::OfBlock(traffic_class, 100 + i), Bytes(name),
                     {Slice::Of(small)}, nullptr);
  }
  rig.Drain();
  EXPECT_EQ(arrived, 40u);
  return longest;
}

TEST(Inproc, WhatIsUrgentWaitsFor100MillisecondsOfOthersAtMost) {
  constexpr double kMegabit = 125e3;
  for (const double rate : {10 * kMegabit, 100 * kMegabit, 1000 * kMegabit}) {
    EXPECT_LT(LongestWait(rate, TrafficClass::kUrgent), absl::Milliseconds(110)) << rate;
    EXPECT_LT(LongestWait(rate, TrafficClass::kControl), absl::Milliseconds(110)) << rate;
  }
  // About a dozen packets.
  EXPECT_LT(LongestWait(kMegabit, TrafficClass::kUrgent), absl::Milliseconds(300));
  EXPECT_GT(LongestWait(10 * kMegabit, TrafficClass::kOther), absl::Seconds(3));
}

TEST(Inproc, ASlowCableIsBusyAllTheTimeThoughLittleIsOnItsWay) {
  for (const double rate : {125e3, 1.25e6, 12.5e6}) {
    InprocOptions options;
    options.faults.min_delay = options.faults.max_delay = absl::Milliseconds(50);
    InprocRig rig(2, options);
    const auto endpoint = *rig.transport(0).Connect(rig.transport(1).address(), {});
    rig.network().SetRate(rig.transport(0).address(), rig.transport(1).address(), rate);
    const Buffer block = Buffer::Allocate(size_t{1} << 20);
    for (int i = 0; i < 10; ++i) {
      endpoint->Send(Bytes("m"), {Slice::Of(block)}, nullptr);
    }
    rig.Drain();
    EXPECT_LT(absl::ToDoubleSeconds(rig.events().now()), 10.1 * 1048576 / rate + 0.1);
  }
}

TEST(Inproc, WhatAClosedEndpointHadNotSentNeverArrives) {
  InprocRig rig(2);
  rig.network().SetRate(rig.transport(0).address(), rig.transport(1).address(), 1000);
  auto endpoint = *rig.transport(0).Connect(rig.transport(1).address(), {});
  const Buffer payload = Buffer::Allocate(999);
  absl::Status outcome;
  const auto into = [&](const absl::Status& status) { outcome = status; };
  endpoint->Send(Bytes("m"), {Slice::Of(payload)}, into);
  rig.events().RunUntil(absl::Milliseconds(400));
  endpoint.reset();
  rig.events().RunUntil(absl::Milliseconds(401));
  EXPECT_EQ(outcome.code(), absl::StatusCode::kCancelled);
  // The next message must not wait for what was not sent.
  endpoint = *rig.transport(0).Connect(rig.transport(1).address(), {});
  endpoint->Send(Bytes("n"), {}, nullptr);
  rig.events().RunUntil(absl::Milliseconds(403));
  ASSERT_EQ(rig.receiver(1).messages.size(), 1u);
  EXPECT_EQ(rig.receiver(1).messages[0].header, "n");
}

TEST(Inproc, ABrokenConnectionLosesWhatIsOnItsWay) {
  InprocRig rig(2);
  int failures = 0;
  const auto there = *rig.transport(0).Connect(
      rig.transport(1).address(), {.on_failure = [&](const auto&) { ++failures; }});
  const auto back = *rig.transport(1).Connect(rig.transport(0).address(), {});
  there->Send(Bytes("lost"), {}, nullptr);
  rig.network().Break(rig.transport(0).address(), rig.transport(1).address());
  there->Send(Bytes("lost, too"), {}, nullptr);
  back->Send(Bytes("the other way"), {}, nullptr);
  rig.Drain();
  EXPECT_EQ(failures, 1);
  EXPECT_TRUE(rig.receiver(1).messages.empty());
  EXPECT_EQ(rig.receiver(0).messages.size(), 1u);
  EXPECT_EQ(there->send_state().waiting_bytes(), 0u);
  const auto again = *rig.transport(0).Connect(rig.transport(1).address(), {});
  again->Send(Bytes("anew"), {}, nullptr);
  rig.Drain();
  EXPECT_EQ(rig.receiver(1).messages.size(), 1u);
}

TEST(Inproc, WaitMovesTimeOnToTheNextEventOrTheTimeout) {
  InprocRig rig(1);
  rig.transport(0).Wait(absl::Seconds(2));
  EXPECT_EQ(rig.events().now(), absl::Seconds(2));
  int ran = 0;
  rig.events().After(absl::Seconds(1), [&] { ++ran; });
  rig.transport(0).Wait(absl::Seconds(5));
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(rig.events().now(), absl::Seconds(3));
}

}  // namespace
}  // namespace syncline
