// Processes on hosts whose connections share cables.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/transport/inproc/inproc.h"
#include "comm/transport/recording_receiver.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr double kRate = 1.25e6;  // 10 Mbit/s

ByteView Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// Returns how long payloads of these bytes take at kRate.
double SecondsOf(double bytes) {
  return bytes * HostCables::kFrameBytes / HostCables::kFrameData / kRate;
}

// A server and two workers, each on a host of its own.
class InprocCables : public ::testing::Test {
 protected:
  InprocCables() {
    for (const char* host : {"server", "worker0", "worker1"}) {
      receivers_.push_back(std::make_unique<RecordingReceiver>());
      transports_.push_back(network_.CreateTransport(*receivers_.back()));
      network_.cables().Lay(host, {.up = kRate, .down = kRate});
      network_.PutOn(transports_.back()->address(), host);
    }
  }

  std::unique_ptr<Endpoint> Connect(int from, int to) {
    return *transports_[from]->Connect(transports_[to]->address(), {});
  }
  void Drain() {
    while (events_.RunNext()) {
    }
  }

  EventQueue events_;
  InprocNetwork network_{events_, {}};
  std::vector<std::unique_ptr<RecordingReceiver>> receivers_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

TEST_F(InprocCables, ConnectionsOfAHostShareItsCable) {
  constexpr int kMessages = 20;
  const std::unique_ptr<Endpoint> workers[] = {Connect(1, 0), Connect(2, 0)};
  const auto back = Connect(0, 1);
  const Buffer payload = Buffer::Allocate(100'000);
  std::memset(payload.data(), 7, payload.size());
  int done = 0;
  for (int i = 0; i < kMessages; ++i) {
    for (const auto& worker : workers) {
      worker->Send(Bytes(absl::StrCat(i)), {Slice::Of(payload)},
                   [&](const absl::Status& status) { done += status.ok(); });
    }
  }
  events_.RunUntil(absl::Seconds(SecondsOf(2e6)));
  for (const auto& worker : workers) {
    const SendState state = worker->send_state();
    EXPECT_GT(state.gone_bytes, 300'000u);
    EXPECT_LT(state.gone_bytes, 1'900'000u) << "the other one has its share";
    EXPECT_LT(state.accepted_bytes - state.gone_bytes, 2'000'000u);
  }
  EXPECT_EQ(back->received_bytes(), workers[0]->send_state().gone_bytes);
  EXPECT_FALSE(workers[0]->IsLocal());
  Drain();
  EXPECT_EQ(done, 2 * kMessages);
  ASSERT_EQ(receivers_[0]->messages.size(), size_t{2 * kMessages});
  for (const auto& message : receivers_[0]->messages) {
    EXPECT_EQ(message.payload.size(), payload.size());
  }
  const double all = SecondsOf(4e6);
  EXPECT_NEAR(absl::ToDoubleSeconds(events_.now()), all, 0.1 * all);
}

// The other connection's bytes are before it at the cable, but not what waits behind them.
TEST_F(InprocCables, AShortMessageBesideAnothersBlocksWaitsForLittle) {
  const auto busy = Connect(1, 0);
  const Buffer block = Buffer::Allocate(size_t{4} << 20);
  for (int i = 0; i < 4; ++i) busy->Send(Bytes("block"), {Slice::Of(block)}, nullptr);
  const auto other = Connect(2, 0);
  absl::Duration longest;
  for (int i = 0; i < 20; ++i) {
    events_.RunUntil(absl::Seconds(1) + absl::Milliseconds(317 * i));
    const absl::Duration sent = events_.now();
    const size_t before = receivers_[0]->messages.size();
    other->Send(Bytes("question"), {}, nullptr);
    while (receivers_[0]->messages.size() == before ||
           receivers_[0]->messages.back().header != "question") {
      ASSERT_TRUE(events_.RunNext());
    }
    longest = std::max(longest, events_.now() - sent);
  }
  EXPECT_LT(longest, absl::Milliseconds(150));
}

TEST_F(InprocCables, ProcessesOfOneHostDoNotUseIt) {
  RecordingReceiver receiver;
  const auto neighbour = network_.CreateTransport(receiver);
  network_.PutOn(neighbour->address(), "worker0");
  const auto endpoint = *transports_[1]->Connect(neighbour->address(), {});
  EXPECT_TRUE(endpoint->IsLocal());
  endpoint->Send(Bytes("m"), {Slice::Of(Buffer::Allocate(1'000'000))}, nullptr);
  Drain();
  EXPECT_EQ(receiver.messages.size(), 1u);
  EXPECT_LT(events_.now(), absl::Milliseconds(1));
  EXPECT_EQ(network_.cables().sent_bytes(), 0u);
}

TEST_F(InprocCables, WhatAClosedEndpointHadNotSentIsDropped) {
  auto closed = Connect(1, 0);
  const auto other = Connect(2, 0);
  absl::Status outcome;
  closed->Send(Bytes("m"), {Slice::Of(Buffer::Allocate(1'000'000))},
               [&](const absl::Status& status) { outcome = status; });
  events_.RunUntil(absl::Milliseconds(100));
  closed.reset();
  other->Send(Bytes("n"), {}, nullptr);
  Drain();
  EXPECT_EQ(outcome.code(), absl::StatusCode::kCancelled);
  ASSERT_EQ(receivers_[0]->messages.size(), 1u);
  EXPECT_EQ(receivers_[0]->messages[0].header, "n");
  EXPECT_LT(events_.now(), absl::Milliseconds(400));
}

TEST_F(InprocCables, AnEmptyMessageArrives) {
  const auto endpoint = Connect(1, 0);
  endpoint->Send({}, {}, nullptr);
  Drain();
  EXPECT_EQ(receivers_[0]->messages.size(), 1u);
}

}  // namespace
}  // namespace syncline
