// What is stored: the coordinator's state, files of workers, and the records of shards,
// which also travel to backups. Journals and checkpoints have files of their own in
// server/journal/testdata and server/checkpoint/testdata.
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "comm/base/temp_directory.h"
#include "comm/rpc/join_token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/manifest.h"
#include "server/coordinator/job_record.h"
#include "server/journal/record_bytes.h"
#include "server/service/event_log.h"
#include "server/service/job_convert.h"
#include "tests/fuzz/wire_message.h"
#include "tests/golden/golden_file.h"
#include "worker/client/residual_file.h"

namespace syncline {
namespace {

constexpr char kPath[] = GOLDEN_DATA "/stored.golden";

std::string Text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

SecretKey SomeKey() {
  const std::string bytes(SecretKey::kBytes, 'k');
  return *SecretKey::From(std::as_bytes(std::span(bytes)));
}

TrainingSettings SomeSettings() {
  TrainingSettings settings = fuzz::SomeJob().training;
  settings.schedule = {.name = "cosine", .values = {{"total_steps", 1000}}};
  settings.loss_scaling = {.name = "torch", .values = {{"init_scale", 1024}}};
  settings.nonfinite_steps = NonfiniteSteps::kSkip;
  settings.accumulate_steps = 2;
  settings.mode = {.name = "ssp", .values = {{"staleness", 3}}};
  return settings;
}

// ---- The coordinator ----

JobRecord SomeRecord() {
  return {.id = 7,
          .name = "job",
          .run_id = "run",
          .digest = std::string(32, 'd'),
          .epoch = {.epoch = 3,
                    .members = {{.rank = 0,
                                 .incarnation = 5,
                                 .first_step = 2,
                                 .session_key = 0xfedcba9876543210,
                                 .key = SomeKey()}},
                    .names = {"host:1"},
                    .reason = "worker 0 has joined",
                    .training = SomeSettings(),
                    .training_from = 9,
                    .staleness = 4},
          .training = SomeSettings(),
          .goals = "samples_per_s>=2000",
          .answers = "exclude_straggler",
          .excluded = {{.rank = 1, .host = "host2", .times = 2}},
          .exclusions = 2,
          .update_is_due = true,
          .scaler = {.scale = 512, .growth_tracker = 3, .hysteresis = 2},
          .skipped = 6,
          .decided = 50,
          .decision = StepDecision{.job = 7,
                                   .step = 50,
                                   .decision = {.gradient_scale = 0.1f,
                                                .skip = true,
                                                .loss_scale = 512,
                                                .figures = {0.1, -0.0}},
                                   .scaler = {.scale = 512, .growth_tracker = 3},
                                   .skipped = 4},
          .step = 51,
          .servers = {{.identity = {3, 9},
                       .name = "b:17/backup-4",
                       .host = "b:17",
                       .shard_addresses = {"address"},
                       .moved_in = 5,
                       .backup_lost = "the cable broke",
                       .journal_generation = 17,
                       .journal_lost = "the disk is full"}},
          .placement_sum = 0xdeadbeef,
          .journal = "run1",
          .run = 2,
          .last_cut = 40,
          .saves_last = true,
          .saved = {.latest = "run2-step40",
                    .step = 40,
                    .bytes = 1000,
                    .took = absl::Milliseconds(1500),
                    .written = 4,
                    .failed = 1,
                    .error = "no space",
                    .resumed_from = "run1-step20"}};
}

TEST(Goldens, AJobRecordIsTheSame) {
  GoldenFile goldens(kPath);
  const std::string written = WriteJobRecord(SomeRecord());
  const std::string golden = goldens.Same("job record", written);
  const auto read = ParseJobRecord(golden);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(WriteJobRecord(*read), golden);
}

TEST(Goldens, TheCoordinatorsStateIsTheSame) {
  GoldenFile goldens(kPath);
  Coordinator coordinator(
      CoordinatorOptions{Timeouts::Derive(absl::Seconds(10)), /*expected_servers=*/1});
  const auto state_of = [](const CoordinatorOutputs& outputs) {
    std::string state;
    for (const CoordinatorOutput& output : outputs) {
      if (const auto* persist = std::get_if<PersistState>(&output))
        state = persist->state;
    }
    return state;
  };
  state_of(coordinator.Apply(Start{}, absl::ZeroDuration()));
  const ServerHello hello = {.name = "server", .shard_addresses = {"address"}};
  const std::string written =
      state_of(coordinator.Apply(FromMember{1, hello}, absl::ZeroDuration()));
  const std::string golden = goldens.Same("coordinator state", written);
  Coordinator next(CoordinatorOptions{Timeouts::Derive(absl::Seconds(10)), 1});
  ASSERT_TRUE(next.Restore({.state = golden}, WireDeclarations()).ok());
  EXPECT_EQ(next.term(), coordinator.term() + 1);
}

TEST(Goldens, EventsAreTheSame) {
  GoldenFile goldens(kPath);
  EventLog log;
  log.Add({.job = 7,
           .job_name = "job",
           .step = 51,
           .kind = EventKind::kRecovery,
           .what = "server 3 was lost",
           .took = absl::Milliseconds(250)},
          absl::FromUnixMillis(1'700'000'000'123));
  const std::vector<StoreRecord> changes = log.Changes();
  ASSERT_EQ(changes.size(), 1u);
  const std::string golden = goldens.Same(changes[0].key, *changes[0].value);
  EventLog next;
  ASSERT_TRUE(next.Restore(changes[0].key, golden).ok());
  ASSERT_EQ(next.Of(7).size(), 1u);
  EXPECT_EQ(next.Of(7)[0].event.what, "server 3 was lost");
  EXPECT_EQ(next.Of(7)[0].event.took, absl::Milliseconds(250));
}

// Workers of two versions can only join the same job if they declare the same bytes.
TEST(Goldens, ADeclarationIsTheSame) {
  GoldenFile goldens(kPath);
  JobSpec spec = fuzz::SomeJob();
  spec.training = SomeSettings();
  const Declaration declared = Declare(spec);
  goldens.Same("declaration", *declared.bytes);
  goldens.Same("declaration's digest", declared.digest);
}

// ---- Checkpoints and shards ----

TEST(Goldens, AManifestIsTheSame) {
  GoldenFile goldens(kPath);
  const std::string written =
      WriteManifest({.job = "job",
                     .name = {2, 40},
                     .push_codec = "bf16",
                     .publish_codec = "fp32",
                     .declared = fuzz::SomeJob().training,
                     .training = SomeSettings(),
                     .loss_scaler = {.scale = 512, .growth_tracker = 3},
                     .skipped_steps = 6,
                     .tensors = {{.name = "a", .shape = {10, 10}},
                                 {.name = "b", .shape = {3}, .frozen = true}},
                     .files = {{.name = "weights-00000.safetensors",
                                .bytes = 900,
                                .head_bytes = 500,
                                .head_crc32c = 0xdeadbeef}}});
  const std::string golden = goldens.Same("manifest", written);
  const auto read = ParseManifest(golden);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(WriteManifest(*read), golden);
}

std::string BytesOf(const ShardRecord& record) {
  const RecordBytes written = WriteRecord(record);
  return Text(Gather({Slice::Borrowed(ByteView(written.head)), written.payload}).view());
}

TEST(Goldens, RecordsOfShardsAreTheSame) {
  GoldenFile goldens(kPath);
  const std::vector<std::byte> bytes(64, std::byte{5});
  const Slice payload = Slice::Borrowed(bytes);
  const std::vector<std::vector<std::byte>> state = {{std::byte{1}, std::byte{2}}, {}};
  const StepRecord::Part part = {.from = {.rank = 1,
                                          .incarnation = 2,
                                          .samples = 3,
                                          .parting = true,
                                          .rate_factor = 0.5f},
                                 .bytes = 64};
  const std::map<std::string, ShardRecord::What> kinds = {
      {"seed", SeedRecord{.block = 1, .values = payload, .updates = 2, .state = state}},
      {"step", StepRecord{.block = 1,
                          .step = 2,
                          .decision = {.step = 2,
                                       .gradient_scale = 0.5f,
                                       .verdict = ShardDecision::Verdict::kSkip,
                                       .loss_scale = 512,
                                       .figures = {0.25}},
                          .loss_scale = 256,
                          .arrival = ShardApplied::Arrival{.step = 3, .age = 4},
                          .parts = {part},
                          .samples = 5,
                          .parting_samples = 6,
                          .holds = StepRecord::Payload::kContributions,
                          .payload = payload,
                          .digest = 7}},
      {"settings", SettingsRecord{.training = SomeSettings(), .from = 9}},
      {"parting", PartingRecord{.block = 1, .step = 2, .part = part, .payload = payload}},
      {"block state", BlockStateRecord{.block = 1,
                                       .saved = std::make_shared<const BlockSnapshot>(
                                           BlockSnapshot{.version = 2,
                                                         .updates = 3,
                                                         .seeded = true,
                                                         .weights = {1, 2},
                                                         .view = {3, 4},
                                                         .accumulator = {5, 6},
                                                         .accumulated_samples = 7,
                                                         .accumulated_parting_samples = 8,
                                                         .rate_factor = 0.5f,
                                                         .state = state}),
                                       .factors = {9, 10}}},
      {"job state", JobStateRecord{.memory = {0.5, 1}, .loss_scale = 512}}};
  ASSERT_EQ(kinds.size(), std::variant_size_v<ShardRecord::What>);
  for (const auto& [kind, what] : kinds) {
    const std::string written = BytesOf({.epoch = 11, .what = what});
    const std::string golden = goldens.Same("record: " + kind, written);
    const auto read = ReadRecord(std::as_bytes(std::span(golden)));
    ASSERT_TRUE(read.ok()) << kind << read.status();
    EXPECT_TRUE(BytesOf(*read) == golden) << kind;
  }
}

// ---- Workers and operators ----

TEST(Goldens, AFileOfResidualsIsTheSame) {
  GoldenFile goldens(kPath);
  const TempDirectory directory;
  const std::string path = directory.File("residuals");
  const std::vector<float> values = {1, -2, 0.5f};
  const std::vector<GradientUnits> units = {{.loss_scale = 8, .learning_rate = 0.5f}};
  ASSERT_TRUE(
      WriteResiduals(path,
                     {{.tensor = "fc1",
                       .codec = "dgc",
                       .kept = {.residual = values, .velocity = values, .units = units}}})
          .ok());
  std::ifstream file(path, std::ios::binary);
  const std::string written{std::istreambuf_iterator<char>(file), {}};
  const std::string golden = goldens.Same("residuals", written);
  std::ofstream(path, std::ios::binary) << golden;
  const auto read = ReadResiduals(path);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ((*read)[0].velocity, values);
  EXPECT_EQ((*read)[0].units, units);
}

TEST(Goldens, AJoinTokenIsTheSame) {
  GoldenFile goldens(kPath);
  const JoinToken token = {.id = std::string(12, 'a'),
                           .secret = std::string(32, '0'),
                           .authority = std::string(64, '9'),
                           .address = "ca.example:7073"};
  const std::string golden = goldens.Same("join token", Written(token));
  const auto read = ParseJoinToken(golden);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, token);
}

}  // namespace
}  // namespace syncline
