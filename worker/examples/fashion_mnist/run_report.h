// What the workers of a run say about it when it ends, each in a JSON file, and the table
// and the summary file that compare runs.
//
//   {"name": "bf16", "precision": "bf16", "accuracy": 0.912, "seconds": 41.5,
//    "bytes_pushed": 1, "bytes_pulled": 1, ...}
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace syncline::fashion_mnist {

// A test in the middle of a run.
struct Evaluation {
  int64_t step = 0;
  double seconds = 0;  // of training, without evaluations
  double accuracy = 0;
  int64_t bytes_pushed = 0;
  int64_t bytes_pulled = 0;
};

struct RunReport {
  std::string name;       // of the run, as tables show it
  std::string precision;  // "fp32" or "bf16"
  int64_t rank = 0;       // of the worker that reports
  int64_t workers = 1;
  int64_t steps = 0;
  int64_t parameters = 0;         // elements of the model
  double accuracy = 0;            // on the test images, 0 to 1
  double loss = 0;                // mean over the last training steps
  double seconds = 0;             // of training, without loading and evaluation
  double samples_per_second = 0;  // of all workers
  int64_t bytes_pushed = 0;       // on the wire, of this worker
  int64_t bytes_pulled = 0;
  std::vector<Evaluation> evaluations = {};  // --eval-steps; written, but not read again
};

std::string ToJson(const RunReport& report);

// INVALID_ARGUMENT names the field that is missing or has another type.
absl::StatusOr<RunReport> ParseRunReport(const std::string& json);

// One report per run, in the order of their first appearance: what rank 0 says, with the
// bytes of all ranks. A worker that died left no report, and its bytes are unknown.
// INVALID_ARGUMENT: no rank 0, or two reports of one rank.
absl::StatusOr<std::vector<RunReport>> MergeRanks(const std::vector<RunReport>& reports);

// {"runs": [...]} of all reports.
std::string SummaryJson(const std::vector<RunReport>& reports);

// One line per run, and with more than one, a line that compares the last with the first.
std::string SummaryTable(const std::vector<RunReport>& reports);

// Where this rank writes: `path` itself for rank 0, else `path`.rank3.
std::string RankPath(const std::string& path, int64_t rank);

// Whole files; the error names the file.
absl::StatusOr<RunReport> ReadRunReport(const std::string& path);

// The merged runs of these reports.
absl::StatusOr<std::vector<RunReport>> ReadRuns(const std::vector<std::string>& paths);

absl::Status WriteTextFile(const std::string& path, const std::string& text);

}  // namespace syncline::fashion_mnist
