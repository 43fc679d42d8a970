// Fuzzes YAML files: the description of a job for `syncline plan`, and the flags of
// --config.
//
//   offset  bytes
//   0       1      0: a job; otherwise flags
//   1       rest   the file
#include <cstdint>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/status.h"
#include "cli/plan.h"
#include "cli/plan_file.h"
#include "cli/settings.h"
#include "comm/base/check.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "server/service/job_convert.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"

namespace syncline::fuzz {
namespace {

// Errors are shown in a terminal, in one line.
void CheckRefusal(const absl::Status& status) {
  SYNCLINE_CHECK(absl::IsInvalidArgument(status));
  SYNCLINE_CHECK(FailureOf(status) == Failure::kUsage);
  SYNCLINE_CHECK(IsPrintable(std::string(status.message())));
}

void CheckJob(const std::string& text) {
  const absl::StatusOr<JobSpec> spec = ParseJobFile(text, "job.yaml");
  if (!spec.ok()) return CheckRefusal(spec.status());
  const absl::StatusOr<PlannedMemory> memory = PlanJobMemory(*spec, {.servers = 2});
  if (!memory.ok()) {
    SYNCLINE_CHECK(absl::IsInvalidArgument(memory.status()));
    return;
  }
  SYNCLINE_CHECK(!MemoryAsTable(*memory).empty());
  SYNCLINE_CHECK(!MemoryAsJson(*memory).empty());
  // A worker could declare this job.
  const Declaration declared = Declare(*spec);
  const absl::StatusOr<JobSpec> read = WireDeclarations().parse(*declared.bytes);
  SYNCLINE_CHECK(read.ok());
  SYNCLINE_CHECK(*Declare(*read).bytes == *declared.bytes);
}

void CheckFlags(ByteView bytes) {
  CLI::App app;
  std::string name = "none";
  uint32_t workers = 1;
  double patience = 1;
  bool verbose = false;
  std::vector<std::string> hosts;
  app.add_option("--name", name);
  app.add_option("--workers", workers)->check(CLI::Range(1, 1024));
  app.add_option("--patience", patience);
  app.add_flag("--verbose", verbose);
  app.add_option("--hosts", hosts)->delimiter(',');
  const MemoryFile file(bytes);
  const absl::Status status = ApplySettings(
      FlagsOf(app), {.config_file = file.path(),
                     .environment = [](const char*) -> const char* { return nullptr; }});
  if (!status.ok()) return CheckRefusal(status);
  SYNCLINE_CHECK(workers >= 1 && workers <= 1024);
}

}  // namespace

std::vector<Bytes> Seeds() {
  return {Seed(false, R"(name: job
workers: 8
optimizer: {name: adamw, options: {beta2: 0.95, lr: 1e-3}, state: int8}
schedule: {name: cosine, options: {total_steps: 10000, warmup_steps: 500}}
gradient: {clip_global_norm: 1}
loss_scaling: torch
tensors:
  - {name: embed, shape: [32000, 4096], learning_rate_scale: 0.1, state: f32}
)"),
          Seed(false, R"(accumulate_steps: 4
aggregation: arrival
nonfinite_steps: skip
mode: ssp:3
push_codec: topk:ratio=0.01
publish_codec: bf16
checkpoint_every: 100
durability: disk
tensors:
  - {name: head, shape: [4096], options: {weight_decay: 0}, frozen: true}
  - {name: scalar, shape: []}
)"),
          Seed(false, "mode: {name: ssp, options: {staleness: 3}}\ntensors: &t [*t]\n"),
          Seed(false, "tensors: [{name: a, shape: [2, 3]}, {name: \"\\xe9\\u2028\"}]"),
          Seed(false, "? [a, b]\n: c\n"),
          Seed(false, "--- !!map {<<: {name: a}, \"w\\x07\": 1}\n"),
          Seed(true, "name: a\nworkers: 4\npatience: 5.5\nverbose: true\nhosts: [a, b]"),
          Seed(true, "workers: [1, 2]\nhosts: a,b\n"),
          Seed(true, "name: &a b\nhosts: [*a, 'c d', \"\\e\"]\n"),
          Seed(true, "# nothing\n")};
}

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncline;  // NOLINT(google-build-using-namespace): C has none
  fuzz::Reader input(std::as_bytes(std::span(data, size)));
  const bool is_flags = input.Take(1) != 0;
  if (is_flags) {
    fuzz::CheckFlags(input.rest());
  } else {
    fuzz::CheckJob(std::string(reinterpret_cast<const char*>(input.rest().data()),
                               input.rest().size()));
  }
  return 0;
}
