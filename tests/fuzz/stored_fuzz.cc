// Fuzzes what a coordinator has stored: its state, the record of a job, and events.
//
//   offset  bytes
//   0       1      0: state, 1: record of a job, 2: events
//   1       rest   the text
//
// Damage in the record of a job ends that job alone, and damage in events loses them.
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "comm/base/check.h"
#include "server/coordinator/job_record.h"
#include "server/service/event_convert.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_cluster.h"
#include "tests/fuzz/wire_message.h"

namespace syncline::fuzz {
namespace {

enum Kind : uint32_t { kState, kRecord, kEvents, kKinds };

constexpr char kEventsKey[] = "events/7";

SmallCluster Cluster(const char* durability) {
  JobSpec job = SomeJob();
  job.settings.durability = durability;
  return SmallCluster(job);
}

void CheckState(const std::string& text, SmallCluster& cluster) {
  StoredState stored = cluster.stored();
  stored.state = text;
  const absl::Status restored = cluster.RestartFrom(stored);
  SYNCLINE_CHECK(restored.ok() || absl::IsDataLoss(restored) ||
                 absl::IsFailedPrecondition(restored));
  if (restored.ok()) cluster.Restart();
}

void CheckRecord(const std::string& text, SmallCluster& cluster) {
  StoredState stored = cluster.stored();
  stored.records[RecordKey(cluster.job())] = text;
  SYNCLINE_CHECK(cluster.RestartFrom(stored).ok());
  for (int i = 0; i < 3; ++i) {
    cluster.CheckView();
    cluster.BeatAll();
    cluster.PassTime(absl::Seconds(9));
  }
  const absl::StatusOr<JobRecord> record = ParseJobRecord(text);
  if (!record.ok()) return;
  const std::string once = WriteJobRecord(*record);
  SYNCLINE_CHECK(WriteJobRecord(ParseJobRecord(once).value()) == once);
}

void CheckEvents(const std::string& text) {
  EventLog log;
  const absl::Status restored = log.Restore(kEventsKey, text);
  SYNCLINE_CHECK(restored.ok() || absl::IsDataLoss(restored));
  if (!restored.ok()) return;
  log.Add({.job = 7, .job_name = "job", .what = "one more"}, absl::UnixEpoch());
  for (const StoreRecord& change : log.Changes()) {
    SYNCLINE_CHECK(EventLog().Restore(change.key, *change.value).ok());
  }
  log.Show();
  SYNCLINE_CHECK(ToProto(log.All()).events_size() > 0);
}

Bytes Seed(Kind kind, std::string_view text) {
  Bytes seed;
  Append(seed, kind, 1);
  Append(seed, std::as_bytes(std::span(text)));
  return seed;
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (const char* durability : {"none", "disk", "disk+peer"}) {
    const SmallCluster cluster = Cluster(durability);
    const StoredState stored = cluster.stored();
    seeds.push_back(Seed(kState, stored.state));
    seeds.push_back(Seed(kRecord, stored.records.at(RecordKey(cluster.job()))));
  }
  EventLog log;
  for (const EventKind kind : {EventKind::kJoin, EventKind::kRecovery}) {
    log.Add({.job = 7,
             .job_name = "job",
             .step = 51,
             .kind = kind,
             .what = "server 3 was lost",
             .took = absl::Milliseconds(250)},
            absl::FromUnixMillis(1'700'000'000'123));
  }
  seeds.push_back(Seed(kEvents, *log.Changes().at(0).value));
  seeds.push_back(Seed(kState, R"({"version":"one"})"));
  seeds.push_back(Seed(kRecord, R"({"version":"one"})"));
  seeds.push_back(Seed(kEvents, R"({"version":"one"})"));
  return seeds;
}

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncline;  // NOLINT(google-build-using-namespace): C has none
  fuzz::Reader input(std::as_bytes(std::span(data, size)));
  const uint32_t kind = input.Take(1) % fuzz::kKinds;
  const std::string text(reinterpret_cast<const char*>(input.rest().data()),
                         input.rest().size());
  if (kind == fuzz::kEvents) {
    fuzz::CheckEvents(text);
    return 0;
  }
  fuzz::SmallCluster cluster = fuzz::Cluster("disk+peer");
  kind == fuzz::kState ? fuzz::CheckState(text, cluster)
                       : fuzz::CheckRecord(text, cluster);
  return 0;
}
