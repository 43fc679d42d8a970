#include "comm/rpc/roles.h"

#include "comm/base/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

// The table of roles.h. Columns: server, worker of job a, operator, reader, coordinator.
TEST(Roles, MayDoWhatTheTableSays) {
  const Identity roles[] = {{Role::kServer},
                            {Role::kWorker, "a"},
                            {Role::kOperator},
                            {Role::kReader},
                            {Role::kCoordinator}};
  struct Row {
    Action action;
    const char* job;
    const char* may;  // in the order of `roles`
  };
  for (const Row& row :
       {Row{Action::kAttachAsServer, "", "y---y"},
        Row{Action::kAttachAsWorker, "a", "-y---"},
        Row{Action::kAttachAsWorker, "b", "-----"},
        Row{Action::kAttachAsWorker, "", "-----"}, Row{Action::kReadStatus, "", "-yyy-"},
        Row{Action::kTraceJob, "a", "-yyy-"}, Row{Action::kTraceJob, "b", "--yy-"},
        Row{Action::kUpdateJob, "a", "--y--"}, Row{Action::kDrainServer, "", "--y--"},
        Row{Action::kReportExit, "a", "-yy--"}, Row{Action::kReportExit, "b", "--y--"}}) {
    for (size_t i = 0; i < std::size(roles); ++i) {
      const absl::Status allowed = CheckAllowed(roles[i], row.action, row.job);
      EXPECT_EQ(allowed.ok(), row.may[i] == 'y')
          << Describe(roles[i]) << ", action " << static_cast<int>(row.action);
      if (allowed.ok()) continue;
      EXPECT_EQ(allowed.code(), absl::StatusCode::kPermissionDenied);
      EXPECT_EQ(FailureOf(allowed), Failure::kUsage);
    }
  }
}

TEST(Roles, ARefusalSaysWhoTriedWhatAndWhoMay) {
  EXPECT_EQ(
      std::string(
          CheckAllowed({Role::kWorker, "bert"}, Action::kUpdateJob, "gpt").message()),
      "by its certificate this is the worker of job 'bert', which may not change "
      "job 'gpt'; give --tls-cert and --tls-key of `syncline certs issue DIR "
      "--role operator`");
  EXPECT_THAT(
      std::string(
          CheckAllowed({Role::kServer}, Action::kAttachAsWorker, "a\nb").message()),
      HasSubstr("--role worker --job a\\x0ab"));
}

}  // namespace
}  // namespace syncline
