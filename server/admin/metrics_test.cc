#include "server/admin/metrics.h"

#include <gmock/gmock.h>

#include <string>

#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Shown(const prometheus::Registry& registry) {
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

TEST(Metrics, CountRecoveriesByCauseAndForgetThemWithTheJob) {
  prometheus::Registry registry;
  Metrics metrics(registry);
  metrics.SetRecoveries(7, "backup", 1, absl::Seconds(1));
  EXPECT_THAT(Shown(registry), Not(HasSubstr("cause="))) << "the job has no name yet";
  metrics.NameJob(7, "bert");
  metrics.SetRecoveries(7, "backup", 0, absl::ZeroDuration());
  EXPECT_THAT(
      Shown(registry),
      HasSubstr(R"(syncline_recoveries_total{cause="backup",job_name="bert"} 0)"));
  metrics.SetRecoveries(7, "backup", 2, absl::Seconds(2.5));
  metrics.SetRecoveries(7, "backup", 2, absl::Seconds(2.5));
  EXPECT_THAT(
      Shown(registry),
      HasSubstr(R"(syncline_recoveries_total{cause="backup",job_name="bert"} 2)"));
  EXPECT_THAT(
      Shown(registry),
      HasSubstr(
          R"(syncline_recovery_seconds_total{cause="backup",job_name="bert"} 2.5)"));
  metrics.ForgetJob(7);
  EXPECT_THAT(Shown(registry), Not(HasSubstr("cause=")));
}

}  // namespace
}  // namespace syncline
