#include "cli/checkpoint_view.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/human_bytes.h"
#include "cli/output_width.h"
#include "comm/base/printable.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr size_t kColumns = 80;
constexpr size_t kJobColumns = 8;      // minimum, however wide the other columns are
constexpr size_t kAfterNames = 41;     // "  2026-11-22 14:05     402.1 MB  unfinished"
constexpr size_t kTensorColumns = 48;  // shapes are aligned after names shorter than this

std::string Time(absl::Time time, absl::TimeZone zone) {
  return absl::FormatTime("%Y-%m-%d %H:%M", time, zone);
}

std::string Size(uint64_t bytes) { return HumanBytes(static_cast<double>(bytes)); }

std::string Written(const NamedOptions& options) {
  return Printable(
      absl::StrCat(options.name, options.values.empty() ? "" : ":",
                   absl::StrJoin(options.values, ",", absl::PairFormatter("="))));
}

}  // namespace

std::string CheckpointTable(std::span<const CheckpointInfo> all, absl::TimeZone zone) {
  if (all.empty()) return "no checkpoints there\n";
  size_t job_columns = kJobColumns;
  size_t name_columns = 10;  // "CHECKPOINT"
  for (const CheckpointInfo& one : all) {
    job_columns = std::max(job_columns, CharactersOf(Printable(one.folder)));
    name_columns = std::max(name_columns, one.name.ToString().size());
  }
  const size_t taken = name_columns + kAfterNames + 4;
  job_columns =
      std::min(job_columns, std::max(kJobColumns, kColumns - std::min(kColumns, taken)));
  std::string table =
      absl::StrFormat("%s  %s  %-16s  %9s  %s\n", Padded("JOB", job_columns),
                      Padded("CHECKPOINT", name_columns), "WRITTEN", "SIZE", "STATE");
  for (const CheckpointInfo& one : all) {
    absl::StrAppendFormat(&table, "%s  %s  %-16s  %9s  %s\n",
                          FittedAtEnd(Printable(one.folder), job_columns),
                          Padded(one.name.ToString(), name_columns),
                          Time(one.written, zone), Size(one.bytes),
                          one.is_complete ? "complete" : "unfinished");
  }
  return table;
}

std::string CheckpointJson(std::span<const CheckpointInfo> all) {
  Json list = Json::array();
  for (const CheckpointInfo& one : all) {
    list.push_back({{"job", one.folder},
                    {"checkpoint", one.name.ToString()},
                    {"step", one.name.step},
                    {"run", one.name.run},
                    {"bytes", one.bytes},
                    {"written", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", one.written,
                                                 absl::UTCTimeZone())},
                    {"complete", one.is_complete}});
  }
  return list.dump(1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
}

std::string ManifestJson(const Manifest& manifest) {
  const Json json = Json::parse(WriteManifest(manifest));
  return json.dump(1, ' ', /*ensure_ascii=*/true) + "\n";
}

std::string ManifestTable(const Manifest& manifest, const CheckpointInfo& about,
                          absl::TimeZone zone) {
  const TrainingSettings& training = manifest.training;
  std::string table = absl::StrFormat(
      "checkpoint %s of job %s\n"
      "  step        %d, written %s\n"
      "  size        %s in %d files, %d tensors\n"
      "  optimizer   %s, state %s\n"
      "  schedule    %s\n"
      "  codecs      pushes %s, publishes %s\n"
      "  loss scale  %g, %d steps skipped\n",
      manifest.name.ToString(), Printable(manifest.job), manifest.name.step,
      Time(about.written, zone), Size(manifest.bytes()), manifest.files.size(),
      manifest.tensors.size(),
      Written({training.optimizer.name, training.optimizer.options}),
      Printable(training.optimizer.state), Written(training.schedule),
      Printable(manifest.push_codec), Printable(manifest.publish_codec),
      manifest.loss_scaler.scale, manifest.skipped_steps);
  size_t columns = 6;  // "TENSOR"
  for (const CheckpointTensor& tensor : manifest.tensors) {
    columns = std::max(columns, CharactersOf(Printable(tensor.name)));
  }
  columns = std::min(columns, kTensorColumns);
  absl::StrAppend(&table, Padded("TENSOR", columns), "  SHAPE\n");
  for (const CheckpointTensor& tensor : manifest.tensors) {
    absl::StrAppend(&table, Padded(Printable(tensor.name), columns), "  [",
                    absl::StrJoin(tensor.shape, ", "), "]",
                    tensor.frozen ? "  frozen" : "", "\n");
  }
  return table;
}

}  // namespace syncline
