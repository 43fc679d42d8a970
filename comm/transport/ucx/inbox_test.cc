#include "comm/transport/ucx/inbox.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using State = Arrival::State;

std::shared_ptr<Arrival> Message(uint64_t link, uint64_t number) {
  const std::string header = std::to_string(link) + "/" + std::to_string(number);
  const WireHeader wire({link, number}, std::as_bytes(std::span(header)));
  return std::make_shared<Arrival>(wire.bytes());
}

void Settle(Inbox& inbox, const std::shared_ptr<Arrival>& message, State state) {
  message->state = state;
  inbox.Settle(*message);
}

std::vector<std::string> Drain(Inbox& inbox) {
  std::vector<std::string> headers;
  while (const auto message = inbox.Next()) {
    const ByteView header = message->wire.header();
    headers.emplace_back(reinterpret_cast<const char*>(header.data()), header.size());
  }
  return headers;
}

TEST(Inbox, HandsOutInTheOrderOfTheLinkHoweverPayloadsArrive) {
  Inbox inbox;
  const auto a = Message(1, 0), b = Message(1, 1), c = Message(1, 2),
             other = Message(2, 0);
  for (const auto& message : {c, a, other, b}) EXPECT_TRUE(inbox.Announce(message));
  Settle(inbox, c, State::kWhole);
  Settle(inbox, b, State::kWhole);
  EXPECT_THAT(Drain(inbox), ElementsAre());
  Settle(inbox, other, State::kWhole);
  EXPECT_THAT(Drain(inbox), ElementsAre("2/0"));
  Settle(inbox, a, State::kWhole);
  EXPECT_THAT(Drain(inbox), ElementsAre("1/0", "1/1", "1/2"));
  EXPECT_TRUE(inbox.empty());
}

TEST(Inbox, DroppedMessagesHoldNothingUp) {
  Inbox inbox;
  const auto a = Message(1, 0), b = Message(1, 1), c = Message(1, 2);
  for (const auto& message : {a, b, c}) inbox.Announce(message);
  Settle(inbox, b, State::kWhole);
  Settle(inbox, a, State::kDropped);
  EXPECT_THAT(Drain(inbox), ElementsAre("1/1"));
  Settle(inbox, c, State::kDropped);
  EXPECT_THAT(Drain(inbox), ElementsAre());
}

TEST(Inbox, RepetitionsAndImpossibleNumbersAreRefused) {
  Inbox inbox;
  const auto a = Message(1, 0);
  EXPECT_TRUE(inbox.Announce(a));
  EXPECT_FALSE(inbox.Announce(Message(1, 0)));
  Settle(inbox, a, State::kWhole);
  EXPECT_FALSE(inbox.Announce(Message(1, 0)));
  EXPECT_FALSE(inbox.Announce(Message(1, uint64_t{1} << 40)));
  EXPECT_THAT(Drain(inbox), ElementsAre("1/0"));
}

TEST(Inbox, RemembersABoundedNumberOfLinksAndForgetsTheOldest) {
  Inbox inbox;
  for (uint64_t link = 0; link < 100000; ++link) {
    const auto message = Message(link, 0);
    ASSERT_TRUE(inbox.Announce(message));
    Settle(inbox, message, State::kWhole);
    inbox.Next();
  }
  EXPECT_FALSE(inbox.Announce(Message(99999, 0)));
  EXPECT_TRUE(inbox.Announce(Message(0, 0)));  // forgotten long ago
}

}  // namespace
}  // namespace syncline
