#include "server/service/link_table.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Arrival = LinkTable::Arrival;

constexpr char kKey[] = "0123456789abcdef";

class FakeStream : public LinkStream {
 public:
  void Send(std::shared_ptr<const v1::CoordinatorMessage> message) override {
    if (message->has_link_ready()) {
      lines.push_back(absl::StrCat("ready after ", message->seen()));
    } else if (message->has_link_unknown()) {
      lines.push_back(absl::StrCat("unknown in term ", message->term()));
    } else if (message->has_waiting()) {
      lines.push_back(absl::StrCat(message->number(), " ", message->waiting().reason()));
    } else {
      lines.push_back(absl::StrCat("answer ", message->beat(), ", ", message->seen()));
    }
  }
  void Close(const absl::Status& status) override {
    if (!end) end = status;
  }
  std::string owner() const override { return whose; }

  std::string whose;
  std::vector<std::string> lines;
  std::optional<absl::Status> end;
};

v1::MemberMessage Hello(const std::string& key = kKey, uint64_t stream = 1) {
  v1::MemberMessage message;
  message.set_beat(stream);
  message.mutable_server_hello();
  message.set_link_key(key);
  return message;
}

v1::MemberMessage Resume(uint64_t seen, const std::string& key = kKey,
                         uint64_t stream = 2) {
  v1::MemberMessage message;
  message.set_beat(stream);
  message.mutable_resume();
  message.set_link_key(key);
  message.set_seen(seen);
  return message;
}

v1::MemberMessage Numbered(uint64_t number) {
  v1::MemberMessage message;
  message.mutable_leave();
  message.set_number(number);
  return message;
}

v1::CoordinatorMessage Saying(const std::string& reason) {
  v1::CoordinatorMessage message;
  message.mutable_waiting()->set_reason(reason);
  return message;
}

class LinkTableTest : public testing::Test {
 protected:
  ConnectionId Greet(FakeStream& stream, const v1::MemberMessage& hello) {
    table_.Began(&stream, absl::ZeroDuration());
    const Arrival arrival = table_.Heard(&stream, hello);
    EXPECT_EQ(arrival.kind, Arrival::kHello);
    return arrival.connection;
  }
  Arrival Come(FakeStream& stream, const v1::MemberMessage& first) {
    table_.Began(&stream, absl::ZeroDuration());
    return table_.Heard(&stream, first);
  }

  LinkTable table_{{.timeouts = Timeouts::Derive(absl::Seconds(10)),
                    .max_silent_streams = 2,
                    .max_closed_links = 2,
                    .queue = {.messages = 3}}};
  FakeStream first_, second_, third_;
};

TEST_F(LinkTableTest, GoesOnOnANewStreamWithWhatWasMissed) {
  const ConnectionId link = Greet(first_, Hello());
  EXPECT_TRUE(table_.Send(link, Saying("a")).ok());
  EXPECT_TRUE(table_.Send(link, Saying("b")).ok());
  EXPECT_EQ(table_.Heard(&first_, Numbered(1)).kind, Arrival::kMessage);
  EXPECT_EQ(table_.Ended(&first_), link);
  EXPECT_TRUE(table_.Send(link, Saying("c")).ok());
  const Arrival back = Come(second_, Resume(1));
  EXPECT_EQ(back.kind, Arrival::kReturned);
  EXPECT_EQ(back.connection, link);
  EXPECT_THAT(first_.lines, ElementsAre("ready after 0", "1 a", "2 b"));
  EXPECT_THAT(second_.lines, ElementsAre("ready after 1", "2 b", "3 c"));
  EXPECT_EQ(table_.Heard(&second_, Numbered(1)).kind, Arrival::kNothing) << "again";
  EXPECT_EQ(table_.Heard(&second_, Numbered(2)).kind, Arrival::kMessage);
}

// A worker that has another's secret key must not be taken for it.
TEST_F(LinkTableTest, GoesOnWithNobodyButItsOwner) {
  first_.whose = "worker of job 'a'";
  second_.whose = "worker of job 'b'";
  const ConnectionId link = Greet(first_, Hello());
  for (const auto& message : {Resume(0), Hello(kKey, 3)}) {
    const Arrival refused = Come(second_, message);
    EXPECT_EQ(refused.kind, Arrival::kRefused);
    EXPECT_EQ(refused.status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(table_.Ended(&second_), 0u);
  }
  EXPECT_FALSE(first_.end) << "and it harms nobody";
  third_.whose = first_.whose;
  EXPECT_EQ(Come(third_, Resume(0)).connection, link);
}

TEST_F(LinkTableTest, ANewerStreamTakesThePlaceOfAHalfOpenOne) {
  const ConnectionId link = Greet(first_, Hello());
  EXPECT_EQ(Come(second_, Hello(kKey, 2)).kind, Arrival::kReturned) << "no answer came";
  EXPECT_TRUE(absl::IsUnavailable(*first_.end));
  EXPECT_EQ(table_.Heard(&first_, Numbered(1)).kind, Arrival::kNothing);
  EXPECT_EQ(table_.Ended(&first_), 0u) << "the link has a stream";
  EXPECT_EQ(table_.Ended(&second_), link);
}

// After a pause the coordinator may handle streams in any order.
TEST_F(LinkTableTest, AStreamThatWasGivenUpTakesNoPlace) {
  const ConnectionId link = Greet(first_, Hello());
  EXPECT_EQ(Come(second_, Resume(0, kKey, 3)).kind, Arrival::kReturned);
  EXPECT_EQ(Come(third_, Resume(0, kKey, 2)).kind, Arrival::kRefused);
  EXPECT_TRUE(absl::IsUnavailable(*third_.end));
  EXPECT_FALSE(second_.end.has_value());
  EXPECT_EQ(table_.Ended(&third_), 0u);
  EXPECT_EQ(table_.Ended(&second_), link);
}

// The member sent on the new stream what it had received then, and later acknowledged
// more on the old stream.
TEST_F(LinkTableTest, AcknowledgementsMayOvertakeTheStreamThatWasDialledBeforeThem) {
  const ConnectionId link = Greet(first_, Hello());
  EXPECT_TRUE(table_.Send(link, Saying("a")).ok());
  EXPECT_TRUE(table_.Send(link, Saying("b")).ok());
  v1::MemberMessage seen;
  seen.set_seen(1);
  EXPECT_EQ(table_.Heard(&first_, seen).kind, Arrival::kNothing);
  const Arrival back = Come(second_, Resume(0));
  EXPECT_EQ(back.kind, Arrival::kReturned) << back.status;
  EXPECT_EQ(back.connection, link);
  EXPECT_THAT(second_.lines, ElementsAre("ready after 0", "2 b"));
  EXPECT_EQ(table_.Heard(&second_, Numbered(1)).kind, Arrival::kMessage);
}

// What it says is out of date, and no reason to end the member.
TEST_F(LinkTableTest, AStreamThatWasGivenUpEndsWithABreakWhateverItSays) {
  Greet(first_, Hello());
  EXPECT_EQ(Come(second_, Resume(0, kKey, 3)).kind, Arrival::kReturned);
  Come(third_, Resume(7, kKey, 2));
  EXPECT_TRUE(absl::IsUnavailable(*third_.end));
}

TEST_F(LinkTableTest, TellsAMemberThatComesBackWhyItWasDropped) {
  const ConnectionId link = Greet(first_, Hello());
  table_.Ended(&first_);
  EXPECT_TRUE(table_.Send(link, Saying("last words")).ok());
  table_.Close(link, absl::AbortedError("no heartbeat"), absl::ZeroDuration());
  EXPECT_EQ(Come(second_, Resume(0)).kind, Arrival::kNothing);
  EXPECT_THAT(second_.lines, ElementsAre("ready after 0", "1 last words"));
  EXPECT_EQ(second_.end, absl::AbortedError("no heartbeat"));
  table_.Tick(absl::Seconds(20));
  EXPECT_EQ(table_.links(), 0u);
  EXPECT_EQ(Come(third_, Resume(0)).kind, Arrival::kRefused);
  EXPECT_TRUE(absl::IsUnavailable(*third_.end));
}

TEST_F(LinkTableTest, RefusesWhatCannotBeALink) {
  EXPECT_EQ(Come(first_, Numbered(1)).kind, Arrival::kRefused);
  EXPECT_TRUE(absl::IsInvalidArgument(*first_.end));
  EXPECT_EQ(Come(second_, Hello("short")).kind, Arrival::kRefused);
  Greet(third_, Hello());
  FakeStream liar;
  EXPECT_EQ(Come(liar, Resume(5)).kind, Arrival::kRefused);
  EXPECT_TRUE(absl::IsAborted(*liar.end));
  EXPECT_FALSE(third_.end.has_value()) << "the link keeps its stream";
}

TEST_F(LinkTableTest, AGapEndsTheStream) {
  const ConnectionId link = Greet(first_, Hello());
  const Arrival arrival = table_.Heard(&first_, Numbered(2));
  EXPECT_EQ(arrival.kind, Arrival::kRefused);
  EXPECT_EQ(arrival.connection, link);
  EXPECT_TRUE(absl::IsInvalidArgument(*first_.end));
}

TEST_F(LinkTableTest, AnswersEveryHeartbeat) {
  Greet(first_, Hello());
  v1::MemberMessage beat;
  beat.mutable_heartbeat();
  beat.set_beat(1);
  EXPECT_EQ(table_.Heard(&first_, beat).kind, Arrival::kMessage);
  table_.Heard(&first_, Numbered(1));
  beat.set_beat(2);
  table_.Heard(&first_, beat);
  EXPECT_THAT(first_.lines, ElementsAre("ready after 0", "answer 1, 0", "answer 2, 1"));
}

TEST_F(LinkTableTest, KeepsNoMoreThanItsLimitForAMemberThatDoesNotRead) {
  const ConnectionId link = Greet(first_, Hello());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(table_.Send(link, Saying("x")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table_.Send(link, Saying("y"))));
  v1::MemberMessage seen;
  seen.set_seen(3);
  EXPECT_EQ(table_.Heard(&first_, seen).kind, Arrival::kNothing);
  EXPECT_TRUE(table_.Send(link, Saying("z")).ok());
}

TEST_F(LinkTableTest, ClosesStreamsThatSayNothing) {
  table_.Began(&first_, absl::ZeroDuration());
  table_.Began(&second_, absl::Seconds(1));
  table_.Began(&third_, absl::Seconds(1));
  EXPECT_TRUE(absl::IsUnavailable(*third_.end)) << "two at most";
  table_.Tick(absl::Seconds(3));
  EXPECT_TRUE(absl::IsDeadlineExceeded(*first_.end));
  EXPECT_FALSE(second_.end.has_value());
  EXPECT_EQ(table_.silent_streams(), 1u);
  EXPECT_EQ(table_.Heard(&first_, Hello()).kind, Arrival::kNothing) << "too late";
}

TEST_F(LinkTableTest, ForgetsTheOldestOfTooManyClosedLinks) {
  std::vector<std::unique_ptr<FakeStream>> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(std::make_unique<FakeStream>());
    const ConnectionId link = Greet(*streams.back(), Hello(absl::StrCat(kKey, i)));
    table_.Close(link, absl::OkStatus(), absl::ZeroDuration());
    EXPECT_EQ(table_.Ended(streams.back().get()), 0u);
  }
  EXPECT_EQ(table_.links(), 2u);
}

TEST_F(LinkTableTest, AMemberWithoutAKeyCannotComeBack) {
  const ConnectionId link = Greet(first_, Hello(""));
  EXPECT_THAT(first_.lines, IsEmpty());
  EXPECT_TRUE(table_.Send(link, Saying("a")).ok());
  EXPECT_THAT(first_.lines, ElementsAre("1 a"));
  EXPECT_EQ(Come(second_, Resume(0, "")).kind, Arrival::kRefused);
}

// ---- A restarted coordinator ----

TEST_F(LinkTableTest, AMemberOfAFormerLifeSaysHelloAnew) {
  table_.SetTerm(5);
  v1::MemberMessage resume = Resume(7);
  resume.set_term(4);
  EXPECT_EQ(Come(first_, resume).kind, Arrival::kNothing);
  EXPECT_THAT(first_.lines, ElementsAre("unknown in term 5"));
  ASSERT_TRUE(first_.end.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*first_.end));
  EXPECT_EQ(FailureOf(*first_.end), Failure::kNone);  // not final: it connects again
  v1::MemberMessage hello = Hello("another key of 16");
  hello.set_term(5);
  EXPECT_NE(Greet(second_, hello), 0u);
}

TEST_F(LinkTableTest, AMemberOfThisLifeThatIsForgottenIsLost) {
  table_.SetTerm(5);
  v1::MemberMessage resume = Resume(7);
  resume.set_term(5);
  const Arrival arrival = Come(first_, resume);
  EXPECT_EQ(arrival.kind, Arrival::kRefused);
  EXPECT_EQ(FailureOf(arrival.status), Failure::kRetryable);
}

TEST_F(LinkTableTest, MembersOfALaterLifeAreNotTakenIn) {
  table_.SetTerm(5);
  for (v1::MemberMessage first : {Hello(), Resume(0)}) {
    FakeStream stream;
    first.set_term(6);
    const Arrival arrival = Come(stream, first);
    EXPECT_EQ(arrival.kind, Arrival::kRefused);
    EXPECT_EQ(FailureOf(arrival.status), Failure::kNone);
    table_.Ended(&stream);
  }
  EXPECT_EQ(table_.links(), 0u);
}

}  // namespace
}  // namespace syncline
