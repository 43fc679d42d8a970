#include "cli/events.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

v1::Event Death() {
  v1::Event event;
  event.set_job(3);
  event.set_job_name("bert");
  event.set_time(1763989445.25);
  event.set_kind("death");
  event.set_step(120);
  event.set_what("worker 1 (a\x1b[2J) was dropped");
  return event;
}

std::string Line(const v1::Event& event, const EventLayout& layout = {}) {
  return EventLines(layout).Of(event);
}

v1::Event LongDeath() {
  v1::Event event = Death();
  event.set_job_name("a-job-with-a-name-of-more-than-16-letters");
  event.set_what(
      "worker 1 (a-host-with-a-long-name.example:19) was dropped: its connection broke "
      "and was not restored");
  return event;
}

TEST(Events, ALineHasTimeStepKindAndWhatHappened) {
  EXPECT_EQ(Line(Death()),
            "2025-11-24 13:04:05  step 120       death        worker 1 (a\\x1b[2J) was "
            "dropped");
}

TEST(Events, OfAllJobsALineNamesItsOwn) {
  v1::Event event = Death();
  EXPECT_THAT(Line(event, {.columns = EventColumns::kWithJob, .job_columns = 16}),
              HasSubstr("05  bert              step 120  "));
  event.set_job(0);
  event.set_job_name("");
  EXPECT_THAT(Line(event, {.columns = EventColumns::kWithJob, .job_columns = 16}),
              HasSubstr("05  -                                death  "));
}

TEST(Events, WithoutALimitALineIsWhole) {
  const std::string line =
      Line(LongDeath(), {.columns = EventColumns::kWithJob, .job_columns = 41});
  EXPECT_THAT(line, HasSubstr("a-job-with-a-name-of-more-than-16-letters  step 120 "));
  EXPECT_THAT(line, testing::Not(HasSubstr("\n")));
}

TEST(Events, InEightyColumnsWhatHappenedStandsBelowItselfAndTheDayAbove) {
  EventLines lines({.columns = EventColumns::kWithJob, .width = 80, .job_columns = 41});
  v1::Event event = LongDeath();
  EXPECT_EQ(
      lines.Of(event),
      "2025-11-24\n"
      "13:04:05  ..16-letters  death        worker 1\n"
      "                                     (a-host-with-a-long-name.example:19) was\n"
      "                                     dropped: its connection broke and was not\n"
      "                                     restored");
  event.set_what("x");
  EXPECT_EQ(lines.Of(event), "13:04:05  ..16-letters  death        x");
  event.set_time(event.time() + 86400);
  EXPECT_EQ(lines.Of(event), "2025-11-25\n13:04:05  ..16-letters  death        x");
}

TEST(Events, OfOneJobTheStepFitsEightyColumnsToo) {
  v1::Event event = LongDeath();
  event.set_what("x");
  EXPECT_EQ(Line(event, {.width = 80}),
            "2025-11-24\n13:04:05  step 120       death        x");
}

TEST(Events, InWideTerminalsDayJobAndStepStandInEachLine) {
  const EventLayout wide = {
      .columns = EventColumns::kWithJob, .width = 160, .job_columns = 41};
  EXPECT_EQ(Line(LongDeath(), wide),
            "2025-11-24 13:04:05  ..f-more-than-16-letters  step 120       death        "
            "worker 1 (a-host-with-a-long-name.example:19) was dropped: its connection "
            "broke and\n" +
                std::string(75, ' ') + "was not restored");
}

}  // namespace
}  // namespace syncline
