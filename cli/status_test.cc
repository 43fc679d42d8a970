#include "cli/status.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST(StatusTable, ShowsServersJobsAndMembers) {
  const auto table = StatusAsTable(
      R"({"build_version": "0.1.0", "uptime_seconds": 12.4,
          "servers": [{"server": 1, "name": "a:17", "shards": 2, "lanes": "TLS 1.3",
                       "lanes_because": "--data-plane tls", "heartbeat_age_seconds": 0.25, "bytes": 1500000,
                       "memory_budget_bytes": 8589934592, "memory_placed_bytes": 3221225472},
                      {"server": 2, "name": "b:18"}],
          "jobs": [{"name": "resnet", "phase": "running", "reason": "worker 2 left", "epoch": 3,
                    "step": 120, "parameters": 1250000, "expected_workers": 4,
                    "push_codec": "topk", "publish_codec": "onebit",
                    "mode": "ssp:staleness=3",
                    "learning_rate": 0.00025, "loss_scale": 65536, "skipped_steps": 3,
                    "members": [{"rank": 3, "incarnation": 2, "name": "b:19", "step": 121,
                                 "bytes": 999, "waiting": true, "heartbeat_age_seconds": 1,
                                 "compression": {"ratio": 93.75, "encode_ns_per_value": 0.5,
                                     "decode_ns_per_value": 0.25, "residual_ratio": 7.25,
                                     "choice": "topk: why", "diverged_blocks": 2}}]}]})",
      "10.0.0.1:7070", {.detail = StatusDetail::kAll});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, HasSubstr("coordinator 10.0.0.1:7070, syncline 0.1.0, up 12 s\n"));
  EXPECT_THAT(*table, testing::ContainsRegex("1 +a:17 +2 +1.5 MB +3.0 GiB of 8.0 GiB "
                                             "+0.2 s +attached\n"));
  EXPECT_THAT(*table, testing::ContainsRegex("2 +b:18 +0 +0 B +0 B +0.0 s +attached\n"));
  EXPECT_THAT(*table, HasSubstr("\nSERVER  LANES\n"
                                "1       TLS 1.3 (--data-plane tls)\n"
                                "2       -\n"));
  EXPECT_THAT(
      *table,
      HasSubstr(
          "job resnet: running, epoch 3, step 120, 1 of 4 workers, 1.25 M "
          "parameters\n  worker 2 left\n  mode ssp:staleness=3; pushes topk, publishes "
          "onebit; gradients are 93.8 times smaller than FP32\n  compression: 0.50 ns to "
          "encode a "
          "value, 0.25 to decode one; the residual is 7.2 times a gradient\n  "
          "worker 3 chooses topk: why\n  2 views differed from the servers' and "
          "were sent again\n  learning rate 0.00025, loss "
          "scale 65536, 3 steps skipped\n"));
  EXPECT_THAT(*table, testing::ContainsRegex("3 +b:19 +2 +999 B +1.0 s +121  waiting\n"));
}

// For a tensor of a few elements, most bytes are the codec's own fields.
TEST(StatusTable, SaysThatACodecMakesGradientsLarger) {
  const auto table = StatusAsTable(
      R"j({"jobs": [{"name": "bert", "phase": "running", "members": [
          {"rank": 0, "compression": {"ratio": 0.2}}]}]})j",
      "10.0.0.1:7070", {.detail = StatusDetail::kAll});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, HasSubstr("; gradients are 5.0 times as large as FP32\n"));
}

TEST(StatusTable, SaysWhatBecameOfTheRunBefore) {
  const auto table = StatusAsTable(
      R"j({"jobs": [{"name": "bert", "phase": "running", "epoch": 1, "step": 3,
                     "before": {"job": 4, "phase": "failed", "reason": "no worker was connected for 50s",
                                "exit": "rank 1 died: signal 9 (Killed)", "step": 120,
                                "age_seconds": 182}},
                    {"name": "gpt", "phase": "over", "reason": "all workers left", "step": 7,
                     "ended": {"job": 2, "phase": "over", "reason": "all workers left",
                               "exit": "", "step": 7, "age_seconds": 20000}, "before": null}]})j",
      "a:7070");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table,
              HasSubstr("  the run before: failed at step 120, 3 min ago: no worker "
                        "was connected for 50s; rank 1 died: signal 9 (Killed)\n"));
  EXPECT_THAT(*table, HasSubstr("finished jobs\n  gpt: over at step 7, 6 h ago: all "
                                "workers left\n"));
}

TEST(StatusTable, FitsEightyColumnsAndKeepsWhoIsMeant) {
  const auto table = StatusAsTable(
      R"({"build_version": "0.1.0", "uptime_seconds": 12.4,
          "servers": [{"server": 1, "name": "parameter-server-1.example:1717", "shards": 2,
                       "lanes": "TLS 1.3", "lanes_because": "workers of other hosts come by it",
                       "heartbeat_age_seconds": 0.25, "bytes": 1500000,
                       "memory_budget_bytes": 8589934592, "memory_placed_bytes": 3221225472}],
          "jobs": [{"name": "resnet", "phase": "running", "epoch": 3,
                    "reason": "rank 3 owes step 120 in 3 blocks to server 1 for 12 s, and all others wait",
                    "step": 120, "parameters": 1250000, "expected_workers": 4,
                    "push_codec": "topk", "publish_codec": "onebit", "mode": "ssp:staleness=3",
                    "members": [{"rank": 3, "incarnation": 2, "step": 121, "bytes": 999,
                                 "name": "a-host-with-a-long-name.in.some.example:190519",
                                 "compression": {"ratio": 93.75}}]},
                   {"name": "old", "phase": "failed", "step": 3,
                    "reason": "server 0 (a:17) is lost, and so are its weights; resume from a checkpoint"}]})",
      "10.0.0.1:7070", {.columns = 80, .detail = StatusDetail::kAll});
  ASSERT_TRUE(table.ok()) << table.status();
  for (const absl::string_view line : absl::StrSplit(*table, '\n')) {
    EXPECT_LE(line.size(), 80u) << line;
  }
  for (const char* kept :
       {"parameter-server-1.example:1717",
        "a-host-with-a-long-name.in.some.example:190519", "3.0 GiB of 8.0 GiB",
        "(workers of", "all others wait", "\n    from a checkpoint", "working"}) {
    EXPECT_THAT(*table, HasSubstr(kept));
  }
}

TEST(StatusTable, SaysByWhichWayDataTravelsWhereServersDifferOrNothingIsSealed) {
  const auto with = [](const char* lanes, const char* others = "sysv") {
    return *StatusAsTable(absl::StrCat(R"({"servers": [{"server": 1, "lanes": ")", others,
                                       R"(", "lanes_because": "x"},
                                          {"server": 2, "lanes": ")",
                                       lanes, R"("}]})"),
                          "a:1");
  };
  const char* const plain = "plain TCP, neither sealed nor authenticated";
  EXPECT_THAT(with(plain, plain), HasSubstr(plain));
  EXPECT_THAT(with("sysv"), testing::Not(HasSubstr("sysv")));
  EXPECT_THAT(with("TLS 1.3"), HasSubstr("\nSERVER  LANES\n"
                                         "1       sysv (x)\n"
                                         "2       TLS 1.3\n"));
}

// A server's report may be newer or older than that of the slowest worker.
TEST(StatusTable, CallsNoStepSafeThatTheJobHasNotReached) {
  const auto with = [](int step, int lag) {
    return *StatusAsTable(
        absl::StrCat(
            R"({"jobs": [{"name": "a", "phase": "running", "durability": "disk", "step": )",
            step, R"(, "training_servers": 1,
                       "records": [{"server": 0, "durable_step": 42, "lag_steps": )",
            lag, "}]}]}"),
        "a:1");
  };
  const std::string newer = with(40, 0);
  EXPECT_THAT(newer, HasSubstr("epoch 0, step 42, "));
  EXPECT_THAT(newer, HasSubstr("durability disk: all steps below 42 are safe\n"));
  EXPECT_THAT(with(42, 1), HasSubstr("all steps below 42 are safe, 1 more on the way\n"));
  const std::string older = with(50, 3);
  EXPECT_THAT(older, HasSubstr("epoch 0, step 50, "));
  EXPECT_THAT(older, HasSubstr("all steps below 42 were safe, 3 more on the way at the "
                               "last heartbeat\n"));
}

TEST(StatusTable, SaysWhichServerIsLost) {
  const auto table = StatusAsTable(
      R"({"servers": [{"server": 0, "name": "a:17", "lanes": "tcp"},
                      {"server": 1, "name": "a:18", "lanes": "tcp", "lost_seconds": 2.2}]})",
      "a:1");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, testing::ContainsRegex("0 +a:17 .* attached\n"));
  EXPECT_THAT(*table, testing::ContainsRegex("1 +a:18 .* lost 2 s ago\n"));
}

TEST(StatusTable, SaysNothingOfChoicesThatNobodyMakes) {
  const auto table = StatusAsTable(
      R"({"jobs": [{"name": "a", "members": [{"rank": 0, "compression": {"choice": ""}},
                                             {"rank": 1}]}]})",
      "a:1");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, testing::Not(HasSubstr("chooses")));
  EXPECT_THAT(*table, testing::Not(HasSubstr("compression:")));
}

TEST(StatusTable, SaysWhereBackupsAreAndWhichAreLost) {
  const auto table = StatusAsTable(
      R"json({"jobs": [{"name": "a", "durability": "peer",
                    "backups": [{"server": 0, "holder": "server 1 (b:18)", "lost": ""},
                                {"server": 1, "holder": "server 0 (a:17)",
                                 "lost": "the cable broke"},
                                {"server": 2, "lost": "it has taken over",
                                 "next": "a new one is being made"}]}]})json",
      "a:1");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(
      *table,
      HasSubstr("  durability peer: server 0's backup is with server 1 (b:18); server 1 "
                "no longer has a backup: the cable broke; server 2 no longer has a "
                "backup: it has taken over, and a new one is being made\n"));
}

TEST(StatusTable, SaysHowFarJournalsAreAndWhichHaveEnded) {
  const auto table = StatusAsTable(
      R"json({"jobs": [{"name": "a", "durability": "disk",
                    "records": [{"server": 0, "durable_step": 12, "lag_steps": 3},
                                {"server": 1, "durable_step": 11, "lag_steps": 0},
                                {"server": 2, "error": "the disk is full"}]},
                   {"name": "b", "durability": "disk", "training_servers": 1,
                    "records": [{"server": 0, "durable_step": 7, "lag_steps": 0}]},
                   {"name": "c", "durability": "disk", "training_servers": 2,
                    "records": [{"server": 0, "durable_step": 9, "lag_steps": 0,
                                 "disk_bytes": 2000000, "begins_at": 4},
                                {"server": 1, "durable_step": 9, "lag_steps": 0,
                                 "disk_bytes": 1000000, "begins_at": 6}]}]})json",
      "a:1");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, HasSubstr("all steps below 9 are safe; 3.0 MB on disk, from step 6 "
                                "on\n"));
  EXPECT_THAT(*table,
              HasSubstr("  durability disk: the journal of server 2 has ended: "
                        "the disk is full; for the other servers all steps below 11 are "
                        "safe, 3 more on the way\n"));
  EXPECT_THAT(*table, HasSubstr("  durability disk: all steps below 7 are safe\n"));
}

TEST(StatusTable, SaysThatStepsAreSafeOnlyOfServersThatHaveABackup) {
  const auto table = StatusAsTable(
      R"json({"jobs": [{"name": "a", "durability": "peer", "training_servers": 2,
                    "backups": [{"server": 0, "holder": "server 1 (b)"},
                                {"server": 1, "lost": "the cable broke"}],
                    "records": [{"server": 0, "durable_step": 12},
                                {"server": 1, "durable_step": 3}]},
                   {"name": "b", "durability": "peer", "training_servers": 1,
                    "backups": [{"server": 0, "lost": "the cable broke"}],
                    "records": [{"server": 0, "durable_step": 9}]}]})json",
      "a:1");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table,
              HasSubstr("the cable broke; for the other servers all steps below 12 are "
                        "safe\n"));
  EXPECT_THAT(*table, testing::Not(HasSubstr("below 9")));
}

TEST(StatusTable, OfTwoCopiesOneIsEnough) {
  const auto table = StatusAsTable(
      R"json({"jobs": [{"name": "a", "durability": "disk+peer", "training_servers": 3,
                    "backups": [{"server": 0, "lost": "the cable broke"},
                                {"server": 1, "holder": "server 2 (c)"},
                                {"server": 2, "lost": "it was used up"}],
                    "records": [{"server": 0, "durable_step": 12},
                                {"server": 1, "durable_step": 13, "error": "disk full"},
                                {"server": 2, "durable_step": 9, "error": "disk full"}]}]})json",
      "a:1");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table,
              HasSubstr("  durability disk+peer: server 0 no longer has a backup"));
  EXPECT_THAT(*table, HasSubstr("for the other servers all steps below 12 are safe"));
}

// Before that it is unknown, because a server that has not reported may be far behind.
TEST(StatusTable, SaysThatStepsAreSafeOnceAllServersHaveSaidSo) {
  const auto with = [](int servers) {
    return *StatusAsTable(
        absl::StrCat(
            R"({"jobs": [{"name": "a", "durability": "disk", "training_servers": )",
            servers, R"(, "records": [{"server": 0, "durable_step": 12}]}]})"),
        "a:1");
  };
  EXPECT_THAT(with(2), HasSubstr("  durability disk\n"));
  EXPECT_THAT(with(1), HasSubstr("  durability disk: all steps below 12 are safe\n"));
}

TEST(StatusTable, SaysWhichServersAreToEnd) {
  const auto table = StatusAsTable(
      R"({"servers": [{"server": 1, "name": "b", "lanes": "tcp", "drains": true}]})",
      "a:1");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, testing::ContainsRegex("1 +b .* draining\n"));
}

TEST(StatusTable, SaysHowOftenAJobRecoveredAndHowLongThatTook) {
  const auto table = StatusAsTable(
      R"json({"jobs": [{"name": "a", "recoveries": {"count": 2, "last": "server 1 (b:18)",
                        "last_seconds": 1.24, "last_age_seconds": 60}},
                       {"name": "b", "recoveries": {"count": 0}}]})json",
      "a:1");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, HasSubstr("  2 recoveries, no step lost; the last: server 1 "
                                "(b:18), back after 1.2 s, 60 s ago\n"));
  EXPECT_THAT(*table, testing::Not(HasSubstr("0 recover")));
}

TEST(StatusTable, SaysThatNothingIsThereYet) {
  const auto table = StatusAsTable(R"({"servers": [], "jobs": []})", "a:1");
  ASSERT_TRUE(table.ok());
  EXPECT_THAT(*table, HasSubstr("no servers yet"));
  EXPECT_THAT(*table, HasSubstr("no jobs yet\n"));
  const auto starting =
      StatusAsTable(R"({"servers": [], "jobs": []})", "a:1", {.starting = {"bert"}});
  EXPECT_THAT(*starting, HasSubstr("\njob 'bert' is starting: none of its workers has "
                                   "joined yet\n"));
}

TEST(StatusTable, ShowsNamesSafely) {
  const auto table = StatusAsTable(
      R"({"servers": [{"name": "s\u001b[2J"}],
          "jobs": [{"name": "a\nb\u001b[31m", "reason": "r\r",
                    "members": [{"name": "\u202eevil", "compression": {"choice": "c\n"}}]}]})",
      "a:1");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, testing::Not(HasSubstr("\x1b")));
  for (const char* shown : {"s\\x1b[2J", "job a\\x0ab\\x1b[31m:", "  r\\x0d\n",
                            "\\xe2\\x80\\xaeevil", "chooses c\\x0a\n"}) {
    EXPECT_THAT(*table, HasSubstr(shown));
  }
}

TEST(StatusTable, ShowsTheLatestFinishedJobsInALineEach) {
  std::string jobs = R"({"job": 3, "name": "now", "phase": "running"})";
  for (int i = 10; i < 18; ++i) {
    absl::StrAppend(&jobs, R"(, {"job": )", i, R"(, "name": "j)", i,
                    R"(", "phase": "over", "step": )", 100 * i,
                    R"(, "reason": "all left", "push_codec": "bf16"})");
  }
  const auto table = StatusAsTable(absl::StrCat(R"({"jobs": [)", jobs, "]}"), "a:1");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, HasSubstr("job now: running"));
  EXPECT_THAT(*table,
              HasSubstr("\nfinished jobs\n  j17: over at step 1700, all left\n  j16: "));
  EXPECT_THAT(*table, testing::EndsWith("\n  and 3 more; --json shows all\n"));
  EXPECT_THAT(*table, testing::Not(HasSubstr("j12:")));
}

TEST(StatusTable, RefusesWhatIsNoJson) {
  EXPECT_FALSE(StatusAsTable("{", "a:1").ok());
  EXPECT_FALSE(StatusAsTable("3", "a:1").ok());
}

}  // namespace
}  // namespace syncline
