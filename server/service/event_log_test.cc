#include "server/service/event_log.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const absl::Time kStart = absl::FromUnixSeconds(1000);

CoordinatorEvent Event(uint32_t job, std::string what) {
  return {.job = job,
          .job_name = job == 0 ? "" : "bert",
          .step = 9,
          .kind = EventKind::kJoin,
          .what = std::move(what)};
}

std::vector<std::string> Words(const std::vector<LoggedEvent>& events) {
  std::vector<std::string> words;
  for (const LoggedEvent& logged : events) words.push_back(logged.event.what);
  return words;
}

TEST(EventLog, ShowsWhatIsStoredAndNothingElse) {
  EventLog log;
  log.Add(Event(7, "a"), kStart);
  EXPECT_THAT(log.Of(7), IsEmpty());
  ASSERT_EQ(log.Changes().size(), 1u);
  EXPECT_EQ(log.Changes()[0].key, "events/7");
  log.Show();
  EXPECT_THAT(log.Changes(), IsEmpty());
  log.Add(Event(7, "b"), kStart);
  EXPECT_THAT(Words(log.Of(7)), ElementsAre("a"));
  EXPECT_THAT(Words(log.Latest(9).at(7)), ElementsAre("a"));
}

TEST(EventLog, GoesOnFromWhatAnotherOneHadStored) {
  EventLog before;
  CoordinatorEvent recovery = Event(7, "goes on");
  recovery.kind = EventKind::kRecovery;
  recovery.took = absl::Seconds(2.5);
  before.Add(Event(7, "a"), kStart);
  before.Add(recovery, kStart + absl::Seconds(3));
  EventLog log;
  for (const StoreRecord& record : before.Changes()) {
    ASSERT_TRUE(log.Restore(record.key, *record.value).ok());
  }
  EXPECT_THAT(log.Changes(), IsEmpty());
  log.Add(Event(7, "later"), kStart + absl::Seconds(9));
  log.Show();
  const std::vector<LoggedEvent> events = log.Of(7);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].number, 2u);
  EXPECT_EQ(events[1].time, kStart + absl::Seconds(3));
  EXPECT_EQ(events[1].event.job, 7u);
  EXPECT_EQ(events[1].event.job_name, "bert");
  EXPECT_EQ(events[1].event.step, 9u);
  EXPECT_EQ(events[1].event.kind, EventKind::kRecovery);
  EXPECT_EQ(events[1].event.took, absl::Seconds(2.5));
  EXPECT_EQ(events[2].number, 3u);
}

TEST(EventLog, KeepsTheLatestOfEachJobWhateverOthersSay) {
  EventLog log({.events = 2});
  log.Add(Event(1, "quiet"), kStart);
  for (const char* what : {"a", "b", "c"}) log.Add(Event(2, what), kStart);
  log.Show();
  EXPECT_THAT(Words(log.Of(1)), ElementsAre("quiet"));
  EXPECT_THAT(Words(log.Of(2)), ElementsAre("b", "c"));
  EXPECT_EQ(log.Of(2).back().number, 3u);
  EXPECT_THAT(Words(log.Latest(1).at(2)), ElementsAre("c"));
}

TEST(EventLog, ForgetsTheJobOfWhichNothingWasHeardLongestAndErasesIt) {
  EventLog log({.jobs = 2});
  for (uint32_t job = 0; job < 4; ++job) {
    log.Add(Event(job, "a"), kStart + absl::Seconds(job));
    log.Add(Event(1, "again"), kStart + absl::Seconds(job + 1));
  }
  const std::vector<StoreRecord> changes = log.Changes();
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(changes[0].key, "events/2");
  EXPECT_EQ(changes[0].value, nullptr);
  log.Show();
  EXPECT_THAT(log.Of(2), IsEmpty());
  EXPECT_THAT(Words(log.Of(0)), ElementsAre("a")) << "of no job, and the oldest";
}

TEST(EventLog, AllAreInTheOrderOfTheirTimes) {
  EventLog log;
  log.Add(Event(2, "first"), kStart);
  log.Add(Event(0, "second"), kStart + absl::Seconds(1));
  log.Add(Event(1, "third"), kStart + absl::Seconds(2));
  log.Show();
  EXPECT_THAT(Words(log.All()), ElementsAre("first", "second", "third"));
}

TEST(EventLog, CutsLongSentencesBetweenCharacters) {
  EventLog log({.words = 4});
  log.Add(Event(1, "abc\u00e9\u00e9"), kStart);
  log.Show();
  EXPECT_THAT(Words(log.Of(1)), ElementsAre("abc"));
}

TEST(EventLog, TakesNamesThatAreNoUtf8) {
  EventLog log;
  log.Add(Event(1, "worker 0 (\xff) joins"), kStart);
  EventLog next;
  const StoreRecord record = log.Changes().at(0);
  ASSERT_TRUE(next.Restore(record.key, *record.value).ok());
  EXPECT_THAT(Words(next.Of(1)), ElementsAre("worker 0 (\uFFFD) joins"));
}

TEST(EventLog, DamagedRecordsAreRefusedAndLaterKindsLeftOut) {
  EventLog log;
  EXPECT_TRUE(absl::IsDataLoss(log.Restore("events/1", "{")));
  EXPECT_TRUE(absl::IsDataLoss(log.Restore("events/x", "{}")));
  EXPECT_TRUE(absl::IsDataLoss(log.Restore("events/1", R"({"version":2})")));
  const absl::Status missing = log.Restore("events/1", R"({"version":1,"name":"a"})");
  EXPECT_THAT(std::string(missing.message()), HasSubstr("events"));
  const std::string later =
      R"({"version":1,"name":"a","events":[)"
      R"({"number":1,"time_ms":1,"kind":"flood","step":1,"what":"a"},)"
      R"({"number":2,"time_ms":1,"kind":"end","step":1,"what":"b"}]})";
  ASSERT_TRUE(log.Restore("events/1", later).ok());
  EXPECT_THAT(Words(log.Of(1)), ElementsAre("b"));
}

}  // namespace
}  // namespace syncline
