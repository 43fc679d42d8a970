// The contract of every Transport, as a value-parameterised gtest suite. An
// implementation's test gives a factory of rigs:
//
//   INSTANTIATE_TEST_SUITE_P(Inproc, TransportContract,
//                            ::testing::Values(RigFactory{"inproc", MakeInprocRig}));
//
// For tests only.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/limits.h"
#include "comm/transport/recording_receiver.h"
#include "comm/transport/transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {

// A set of transports that can reach each other, and the means to run them.
class TransportRig {
 public:
  virtual ~TransportRig() = default;

  virtual Transport& transport(int i) = 0;
  virtual RecordingReceiver& receiver(int i) = 0;

  // Runs all transports once.
  virtual void Pump() = 0;

  // Returns the key for Connect, for transports on which peers prove their identity.
  virtual PeerKey key() const { return {}; }

  // Starts one more peer, which answers nothing and can be killed like a process. Returns
  // its address.
  virtual std::string StartVictim() = 0;
  virtual void KillVictim() = 0;
};

struct RigFactory {
  std::string name;
  std::function<std::unique_ptr<TransportRig>(int transports)> make;

  friend void PrintTo(const RigFactory& factory, std::ostream* out) {
    *out << factory.name;
  }
};

class TransportContract : public ::testing::TestWithParam<RigFactory> {
 protected:
  static ByteView Bytes(const std::string& text) {
    return std::as_bytes(std::span(text));
  }

  static Buffer RandomBuffer(size_t bytes, uint64_t seed) {
    Buffer buffer = Buffer::Allocate(bytes);
    std::mt19937_64 random(seed);
    for (std::byte& byte : buffer.mutable_view()) byte = static_cast<std::byte>(random());
    return buffer;
  }

  static std::string Text(const Buffer& buffer) {
    return std::string(reinterpret_cast<const char*>(buffer.data()), buffer.size());
  }

  // Calls Pump until `done`, for at most 20 s. Returns false if the time ran out.
  bool PumpUntil(const std::function<bool()>& done) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!done()) {
      if (absl::Now() > deadline) return false;
      rig_->Pump();
    }
    return true;
  }

  void PumpFor(absl::Duration time) {
    const absl::Time deadline = absl::Now() + time;
    while (absl::Now() < deadline) rig_->Pump();
  }

  std::unique_ptr<Endpoint> Connect(int from, int to, ConnectOptions options = {}) {
    options.key = rig_->key();
    auto endpoint =
        rig_->transport(from).Connect(rig_->transport(to).address(), std::move(options));
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    return *std::move(endpoint);
  }

  // Counts the calls of a SendDone, and keeps the last status.
  struct Outcome {
    int calls = 0;
    absl::Status status;
  };
  static SendDone Into(Outcome& outcome) {
    return [&outcome](const absl::Status& status) {
      ++outcome.calls;
      outcome.status = status;
    };
  }

  std::unique_ptr<TransportRig> rig_ = GetParam().make(2);
};

TEST_P(TransportContract, DeliversHeaderAndPayloadOfEverySizeIntact) {
  const auto endpoint = Connect(0, 1);
  const std::vector<size_t> sizes = {0,
                                     1,
                                     63,
                                     64,
                                     65,
                                     4096,
                                     8192,
                                     65536,
                                     size_t{1} << 20,
                                     size_t{4} << 20,
                                     kMaxMessagePayloadBytes};
  for (const size_t size : sizes) {
    SCOPED_TRACE(size);
    auto& messages = rig_->receiver(1).messages;
    messages.clear();
    const Buffer payload = RandomBuffer(size, size + 1);
    const std::string header(kMessageHeaderBytes, static_cast<char>('a' + size % 20));
    Outcome outcome;
    endpoint->Send(Bytes(header), {Slice::Of(payload)}, Into(outcome));
    EXPECT_EQ(outcome.calls, 0) << "completed inline";
    ASSERT_TRUE(PumpUntil([&] { return messages.size() == 1 && outcome.calls == 1; }));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(messages[0].header, header);
    EXPECT_EQ(messages[0].payload.size(), size);
    EXPECT_TRUE(std::ranges::equal(messages[0].payload.view(), payload.view()));
  }
}

TEST_P(TransportContract, HeadersMayBeShorterAndNeedNotOutliveTheCall) {
  const auto endpoint = Connect(0, 1);
  for (size_t bytes = 0; bytes <= kMessageHeaderBytes; bytes += 7) {
    std::string header(bytes, 'h');
    endpoint->Send(Bytes(header), {}, nullptr);
    header.assign(bytes, '!');
  }
  auto& messages = rig_->receiver(1).messages;
  ASSERT_TRUE(PumpUntil([&] { return messages.size() == 10; }));
  for (size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ(messages[i].header, std::string(i * 7, 'h'));
    EXPECT_TRUE(messages[i].payload.empty());
  }
}

TEST_P(TransportContract, SlicesArriveAsOnePayload) {
  const auto endpoint = Connect(0, 1);
  for (const size_t scale : {1, 1000, 60000}) {
    SCOPED_TRACE(scale);
    auto& messages = rig_->receiver(1).messages;
    messages.clear();
    Payload payload;
    std::string expected;
    for (const size_t size :
         {size_t{3} * scale, size_t{0}, size_t{1}, 16 * scale, 7 * scale}) {
      const Buffer piece = RandomBuffer(size, size + scale);
      payload.push_back(Slice::Of(piece));
      expected += Text(piece);
    }
    Outcome outcome;
    endpoint->Send(Bytes("slices"), payload, Into(outcome));
    payload.clear();
    ASSERT_TRUE(PumpUntil([&] { return messages.size() == 1 && outcome.calls == 1; }));
    EXPECT_TRUE(Text(messages[0].payload) == expected);
  }
}

TEST_P(TransportContract, MessagesOfAnEndpointArriveInOrderWhateverTheirSize) {
  const auto endpoint = Connect(0, 1);
  const Buffer large = RandomBuffer(size_t{1} << 20, 1), small = RandomBuffer(10, 2);
  std::mt19937 random(7);
  std::vector<std::string> sent;
  for (int i = 0; i < 200; ++i) {
    sent.push_back(std::to_string(i));
    endpoint->Send(Bytes(sent.back()), {Slice::Of(random() % 4 == 0 ? large : small)},
                   nullptr);
  }
  auto& messages = rig_->receiver(1).messages;
  ASSERT_TRUE(PumpUntil([&] { return messages.size() == sent.size(); }));
  for (size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(messages[i].header, sent[i]);
}

TEST_P(TransportContract, ClassesMayOvertakeAndFlowsStayInOrder) {
  constexpr uint32_t kFlows = 7;
  const auto endpoint = Connect(0, 1);
  const Buffer payload = RandomBuffer(size_t{1} << 20, 12);
  std::mt19937 random(8);
  std::vector<std::vector<std::string>> sent(kFlows), arrived(kFlows);
  Outcome outcome;
  for (int i = 0; i < 300; ++i) {
    const uint32_t flow = random() % kFlows;
    const size_t bytes = random() % (random() % 4 == 0 ? payload.size() : 2000);
    // The header consists of flow, number and size.
    sent[flow].push_back(absl::StrCat(flow, ":", i, ":", bytes));
    endpoint->SendAs(
        Traffic::OfBlock(static_cast<TrafficClass>(random() % kTrafficClasses), flow),
        Bytes(sent[flow].back()), {Slice::Of(payload, 0, bytes)}, Into(outcome));
    if (i % 10 == 0) rig_->Pump();
  }
  const auto& messages = rig_->receiver(1).messages;
  ASSERT_TRUE(PumpUntil([&] { return messages.size() == 300 && outcome.calls == 300; }));
  for (const auto& message : messages) {
    arrived[static_cast<size_t>(message.header[0] - '0')].push_back(message.header);
    EXPECT_TRUE(message.header.ends_with(absl::StrCat(":", message.payload.size())));
    ASSERT_TRUE(std::ranges::equal(message.payload.view(),
                                   payload.view().first(message.payload.size())));
  }
  EXPECT_EQ(arrived, sent);
  const SendState state = endpoint->send_state();
  EXPECT_EQ(state.queued_bytes, BytesByClass());
}

TEST_P(TransportContract, ThousandMessagesFlyBothWaysAtOnce) {
  constexpr size_t kMessages = 1000;
  const std::unique_ptr<Endpoint> there = Connect(0, 1), back = Connect(1, 0);
  const Buffer payload = RandomBuffer(20000, 3);
  size_t completed = 0;
  for (size_t i = 0; i < kMessages; ++i) {
    const auto count = [&](const absl::Status& status) { completed += status.ok(); };
    const Slice slice = Slice::Of(payload, 0, i * 20);
    there->Send(Bytes(std::to_string(i)), {slice}, count);
    back->Send(Bytes(std::to_string(i)), {slice}, count);
  }
  ASSERT_TRUE(PumpUntil([&] {
    return rig_->receiver(0).messages.size() == kMessages &&
           rig_->receiver(1).messages.size() == kMessages && completed == 2 * kMessages;
  }));
  for (const int side : {0, 1}) {
    for (size_t i = 0; i < kMessages; ++i) {
      const auto& message = rig_->receiver(side).messages[i];
      ASSERT_EQ(message.header, std::to_string(i));
      ASSERT_TRUE(
          std::ranges::equal(message.payload.view(), payload.view().first(i * 20)));
    }
  }
}

TEST_P(TransportContract, CountsWhatIsOnItsWayUntilItHasGone) {
  const auto endpoint = Connect(0, 1);
  EXPECT_EQ(endpoint->send_state().accepted_bytes, 0U);
  const Buffer payload = RandomBuffer(size_t{3} << 20, 9);
  Outcome outcome;
  uint64_t expected = 0;
  uint64_t gone = 0;
  for (const size_t size : {size_t{0}, size_t{100}, payload.size()}) {
    endpoint->Send(Bytes("counted"), {Slice::Of(payload, 0, size)}, Into(outcome));
    expected += 7 + size;
    EXPECT_EQ(endpoint->send_state().accepted_bytes, expected);
    EXPECT_GE(endpoint->send_state().waiting_bytes(), 1U) << "gone inside of Send";
  }
  ASSERT_TRUE(PumpUntil([&] {
    const SendState state = endpoint->send_state();
    EXPECT_LE(gone, state.gone_bytes) << "it shrank";
    gone = state.gone_bytes;
    return state.waiting_bytes() == 0;
  }));
  ASSERT_TRUE(PumpUntil([&] { return outcome.calls == 3; }));
  EXPECT_EQ(endpoint->send_state().gone_bytes, expected);
}

TEST_P(TransportContract, RefusedMessagesLeaveTheEndpointAlive) {
  int failures = 0;
  const auto endpoint = Connect(0, 1, {.on_failure = [&](const auto&) { ++failures; }});
  const Buffer large = RandomBuffer(size_t{2} << 20, 4), small = RandomBuffer(100, 5);
  Outcome outcome;
  for (int i = 0; i < 10; ++i) {
    endpoint->Send(Bytes("x"), {Slice::Of(large)}, Into(outcome));
    endpoint->Send(Bytes("x"), {Slice::Of(small)}, Into(outcome));
    endpoint->Send(Bytes("y"), {Slice::Of(large)}, Into(outcome));
  }
  RecordingReceiver& receiver = rig_->receiver(1);
  ASSERT_TRUE(
      PumpUntil([&] { return receiver.messages.size() == 10 && outcome.calls == 30; }));
  EXPECT_EQ(receiver.refused, 20);
  EXPECT_EQ(failures, 0);
  for (const auto& message : receiver.messages) EXPECT_EQ(message.header, "y");
}

TEST_P(TransportContract, CallbacksMaySendAndClose) {
  std::unique_ptr<Endpoint> there = Connect(0, 1), back = Connect(1, 0);
  rig_->receiver(1).on_message = [&](const RecordingReceiver::Message& message) {
    back->Send(Bytes(message.header), {Slice::Of(message.payload)}, nullptr);
  };
  const Buffer payload = RandomBuffer(100000, 6);
  bool closed = false;
  there->Send(Bytes("echo"), {Slice::Of(payload)}, nullptr);
  rig_->receiver(0).on_message = [&](const auto&) {
    there.reset();
    closed = true;
  };
  ASSERT_TRUE(PumpUntil([&] { return closed; }));
  EXPECT_TRUE(
      std::ranges::equal(rig_->receiver(0).messages[0].payload.view(), payload.view()));
}

TEST_P(TransportContract, ADestroyedEndpointCompletesWhatIsPendingOnceAndLater) {
  auto endpoint = Connect(0, 1);
  const Buffer payload = RandomBuffer(size_t{4} << 20, 7);
  std::vector<Outcome> outcomes(20);
  for (Outcome& outcome : outcomes) {
    endpoint->Send(Bytes("pending"), {Slice::Of(payload)}, Into(outcome));
  }
  endpoint.reset();
  for (const Outcome& outcome : outcomes)
    EXPECT_EQ(outcome.calls, 0) << "completed inline";
  ASSERT_TRUE(PumpUntil([&] {
    return std::ranges::all_of(outcomes, [](const Outcome& o) { return o.calls > 0; });
  }));
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.calls, 1);
    // OK if the transport had copied the payload already.
    EXPECT_TRUE(outcome.status.ok() || absl::IsCancelled(outcome.status))
        << outcome.status;
  }
  // The peer still works.
  const auto again = Connect(0, 1);
  const size_t before = rig_->receiver(1).messages.size();
  again->Send(Bytes("again"), {}, nullptr);
  ASSERT_TRUE(PumpUntil([&] {
    const auto& messages = rig_->receiver(1).messages;
    return messages.size() > before && messages.back().header == "again";
  }));
}

TEST_P(TransportContract, MalformedAddressesAreInvalidArgument) {
  const std::string good = rig_->transport(1).address();
  std::mt19937 random(11);
  std::vector<std::string> bad = {"", "x", "localhost:7070", std::string(1000, '\0'),
                                  std::string(100, '\xff')};
  std::string noise(300, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  bad.push_back(noise);
  for (const std::string& address : bad) {
    const auto endpoint = rig_->transport(0).Connect(address, {});
    EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(TransportContract, WakeFromAnotherThreadEndsWait) {
  const absl::Time start = absl::Now();
  std::thread waker([&] { rig_->transport(0).Wake(); });
  // The wake-up may come before the wait or during it. Wait may also return for no
  // reason.
  rig_->transport(0).Wait(absl::Seconds(30));
  waker.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST_P(TransportContract, AKilledPeerFailsItsEndpointOnce) {
  const std::string address = rig_->StartVictim();
  int failures = 0;
  absl::Status reason;
  auto endpoint =
      rig_->transport(0).Connect(address, {.on_failure =
                                               [&](const absl::Status& status) {
                                                 ++failures;
                                                 reason = status;
                                               },
                                           .key = rig_->key()});
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  Outcome first;
  (*endpoint)->Send(Bytes("hello"), {}, Into(first));
  ASSERT_TRUE(PumpUntil([&] { return first.calls == 1; }));
  EXPECT_EQ(failures, 0);

  rig_->KillVictim();
  ASSERT_TRUE(PumpUntil([&] { return failures > 0; }));
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable) << reason;

  Outcome after;
  (*endpoint)->Send(Bytes("too late"), {}, Into(after));
  ASSERT_TRUE(PumpUntil([&] { return after.calls == 1; }));
  EXPECT_EQ(after.status.code(), absl::StatusCode::kUnavailable) << after.status;
  EXPECT_EQ((*endpoint)->send_state().waiting_bytes(), 0U);
  PumpFor(absl::Milliseconds(20));
  EXPECT_EQ(failures, 1);
}

TEST_P(TransportContract, EndpointsMayOutliveTheirTransport) {
  auto endpoint = Connect(0, 1);
  const Buffer payload = RandomBuffer(size_t{4} << 20, 8);
  endpoint->Send(Bytes("pending"), {Slice::Of(payload)}, nullptr);
  std::unique_ptr<Endpoint> survivor = std::move(endpoint);
  rig_.reset();
  survivor.reset();
}

}  // namespace syncline
