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

TEST(Events, ALineHasTimeStepKindAndWhatHappened) {
  EXPECT_EQ(EventLine(Death(), {}),
            "2025-11-24 13:04:05  step 120       death        worker 1 (a\\x1b[2J) was "
            "dropped");
}

TEST(Events, OfAllJobsALineNamesItsOwn) {
  v1::Event event = Death();
  EXPECT_THAT(EventLine(event, {.columns = EventColumns::kWithJob}),
              HasSubstr("05  bert              step 120  "));
  event.set_job(0);
  event.set_job_name("");
  EXPECT_THAT(EventLine(event, {.columns = EventColumns::kWithJob}),
              HasSubstr("05  -                                death  "));
}

TEST(Events, ALineThatIsTooLongIsBrokenAndLosesNoWord) {
  v1::Event event = Death();
  event.set_job_name("a-job-with-a-name-of-more-than-16-letters");
  event.set_what(
      "worker 1 (a-host-with-a-long-name.example:19) was dropped: its connection "
      "broke and did not come back");
  EXPECT_EQ(
      EventLine(event, {.columns = EventColumns::kWithJob, .width = 80}),
      "2025-11-24 13:04:05  a-job-with-a-name-of-more-than-16-letters  step 120\n"
      "                     death        worker 1 (a-host-with-a-long-name.example:19)\n"
      "                     was dropped: its connection broke and did not come back");
}

}  // namespace
}  // namespace syncline
