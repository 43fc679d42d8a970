#include "server/checkpoint/manifest.h"

#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "comm/base/crc32c.h"
#include "comm/base/limits.h"
#include "comm/base/printable.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/shallow_json.h"
#include "server/checkpoint/shared_name.h"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr char kSum[] = "crc32c";

uint32_t SumOf(const Json& json) {
  const std::string bytes = json.dump();
  return Crc32c(std::as_bytes(std::span(bytes)));
}

Json ToJson(const NamedOptions& options) {
  return {{"name", options.name}, {"options", options.values}};
}

NamedOptions NamedFrom(const Json& json) {
  return {json.at("name"), json.at("options").get<OptionValues>()};
}

Json ToJson(const TrainingSettings& training) {
  return {{"optimizer",
           ToJson(NamedOptions{training.optimizer.name, training.optimizer.options})},
          {"state", training.optimizer.state},
          {"schedule", ToJson(training.schedule)},
          {"gradient", training.gradient},
          {"loss_scaling", ToJson(training.loss_scaling)},
          {"skip_nonfinite_steps", training.nonfinite_steps == NonfiniteSteps::kSkip},
          {"accumulate_steps", training.accumulate_steps},
          {"mode", ToJson(training.mode)},
          {"aggregate_on_arrival", training.aggregation == Aggregation::kArrival}};
}

TrainingSettings TrainingFrom(const Json& json) {
  NamedOptions optimizer = NamedFrom(json.at("optimizer"));
  TrainingSettings training = {
      .optimizer = {.name = std::move(optimizer.name),
                    .options = std::move(optimizer.values),
                    .state = json.at("state")},
      .schedule = NamedFrom(json.at("schedule")),
      .gradient = json.at("gradient").get<OptionValues>(),
      .loss_scaling = NamedFrom(json.at("loss_scaling")),
      .nonfinite_steps = json.at("skip_nonfinite_steps") ? NonfiniteSteps::kSkip
                                                         : NonfiniteSteps::kApply,
      .accumulate_steps = json.at("accumulate_steps"),
      .aggregation = json.at("aggregate_on_arrival") ? Aggregation::kArrival
                                                     : Aggregation::kRankOrder};
  // The first manifests have no mode: they are of the default mode.
  if (json.contains("mode")) training.mode = NamedFrom(json.at("mode"));
  return training;
}

// Throws Json::exception if a field is missing or has the wrong type.
Manifest ManifestFrom(const Json& json) {
  Manifest manifest = {.job = json.at("job"),
                       .push_codec = json.at("push_codec"),
                       .publish_codec = json.at("publish_codec"),
                       .declared = TrainingFrom(json.at("declared")),
                       .training = TrainingFrom(json.at("training"))};
  manifest.name = {.run = json.at("run"), .step = json.at("step")};
  const Json& scaler = json.at("loss_scaler");
  manifest.loss_scaler = {.scale = scaler.at("scale"),
                          .growth_tracker = scaler.at("growth_tracker"),
                          .hysteresis = scaler.at("hysteresis")};
  manifest.skipped_steps = json.at("skipped_steps");
  for (const Json& tensor : json.at("tensors")) {
    manifest.tensors.push_back({.name = tensor.at("name"),
                                .shape = tensor.at("shape"),
                                .frozen = tensor.at("frozen")});
  }
  for (const Json& file : json.at("files")) {
    manifest.files.push_back({.name = file.at("name"),
                              .bytes = file.at("bytes"),
                              .head_bytes = file.at("head_bytes"),
                              .head_crc32c = file.at("head_crc32c")});
  }
  return manifest;
}

// The longest file name that common file systems allow.
constexpr size_t kMaxFolderBytes = 255;
constexpr size_t kHashBytes = 17;

// Computes FNV-1a. The manifest holds the whole name, so two jobs with the same hash are
// not mixed up.
uint64_t HashOf(const std::string& job) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : job) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

std::string WrongShape(const CheckpointTensor& tensor) {
  const std::string which = absl::StrCat("tensor '", Printable(tensor.name), "' ");
  if (tensor.shape.size() > kMaxTensorDimensions) {
    return absl::StrCat(which, "has ", tensor.shape.size(), " dimensions");
  }
  uint64_t elements = 1;
  for (const uint64_t size : tensor.shape) {
    if (size != 0 && elements > kMaxTensorElements / size) {
      return absl::StrCat(which, "has more than ", kMaxTensorElements, " elements");
    }
    elements *= size;
  }
  return "";
}

std::string WrongFile(const CheckpointFile& file) {
  const std::string which = absl::StrCat("file '", Printable(file.name), "' ");
  absl::string_view name = file.name;
  if (IsShared(file)) name.remove_prefix(sizeof(kSharedFolder));
  if (name.empty() || name.find('/') != name.npos) {
    return absl::StrCat(which, "is not a file name");
  }
  if (file.head_bytes <= file.bytes) return "";
  return absl::StrCat(which, "has a head of ", file.head_bytes, " of its ", file.bytes,
                      " bytes");
}

// Returns what is wrong with the manifest, or an empty string.
std::string WhatIsWrong(const Manifest& manifest) {
  const LossScalerState& scaler = manifest.loss_scaler;
  if (!std::isfinite(scaler.scale) || scaler.scale <= 0) {
    return absl::StrCat("a loss scale of ", scaler.scale);
  }
  if (manifest.tensors.empty() || manifest.tensors.size() > kMaxTensorsPerJob) {
    return absl::StrCat(manifest.tensors.size(), " tensors");
  }
  std::set<std::string_view> names;
  for (const CheckpointTensor& tensor : manifest.tensors) {
    if (const std::string wrong = WrongShape(tensor); !wrong.empty()) return wrong;
    if (!names.insert(tensor.name).second) {
      return absl::StrCat("two tensors are '", Printable(tensor.name), "'");
    }
  }
  for (const CheckpointFile& file : manifest.files) {
    if (const std::string wrong = WrongFile(file); !wrong.empty()) return wrong;
  }
  return "";
}

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         c == '-' || c == '_';
}

}  // namespace

// A dot at the front is escaped, so that no name is ".", ".." or a hidden file.
std::string FolderOf(const std::string& job) {
  std::string folder;
  size_t kept = 0;  // longest prefix of whole characters that leaves room for a hash
  for (const char c : job) {
    if (folder.size() <= kMaxFolderBytes - kHashBytes) kept = folder.size();
    if (IsPlain(c) || (c == '.' && !folder.empty())) {
      folder += c;
    } else {
      folder += absl::StrFormat("%%%02X", static_cast<unsigned char>(c));
    }
  }
  if (folder.size() <= kMaxFolderBytes) return folder;
  return absl::StrFormat("%s~%016x", folder.substr(0, kept), HashOf(job));
}

std::string FolderOf(const std::string& job, const CheckpointName& name) {
  return absl::StrCat(FolderOf(job), "/", name.ToString());
}

uint64_t Manifest::bytes() const {
  uint64_t sum = 0;
  for (const CheckpointFile& file : files) sum += file.bytes;
  return sum;
}

std::string WriteManifest(const Manifest& manifest) {
  Json tensors = Json::array();
  for (const CheckpointTensor& tensor : manifest.tensors) {
    tensors.push_back(
        {{"name", tensor.name}, {"shape", tensor.shape}, {"frozen", tensor.frozen}});
  }
  Json files = Json::array();
  for (const CheckpointFile& file : manifest.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.bytes},
                     {"head_bytes", file.head_bytes},
                     {"head_crc32c", file.head_crc32c}});
  }
  const LossScalerState& scaler = manifest.loss_scaler;
  Json json = {{"format", HasShared(manifest) ? kSharingFormat : kCheckpointFormat},
               {"job", manifest.job},
               {"run", manifest.name.run},
               {"step", manifest.name.step},
               {"push_codec", manifest.push_codec},
               {"publish_codec", manifest.publish_codec},
               {"declared", ToJson(manifest.declared)},
               {"training", ToJson(manifest.training)},
               {"loss_scaler",
                {{"scale", scaler.scale},
                 {"growth_tracker", scaler.growth_tracker},
                 {"hysteresis", scaler.hysteresis}}},
               {"skipped_steps", manifest.skipped_steps},
               {"tensors", std::move(tensors)},
               {"files", std::move(files)}};
  json[kSum] = SumOf(json);
  return json.dump(1) + "\n";
}

absl::StatusOr<Manifest> ParseManifest(const std::string& text) {
  Json json = ParseShallowJson(text);
  if (!json.is_object()) return absl::DataLossError("it is cut off, or not JSON");
  const Json format = json.value("format", Json());
  if (format.is_number_integer() && format > kSharingFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat("it is of format ", format.get<int>(), ", but this program reads ",
                     kSharingFormat, " at most; use a newer Syncline"));
  }
  const Json sum = json.value(kSum, Json());
  json.erase(kSum);
  if (!sum.is_number_unsigned() || sum != SumOf(json)) {
    return absl::DataLossError("its checksum is wrong: it was changed");
  }
  // The checksum may be right although the content is not: anyone can compute it.
  try {
    Manifest manifest = ManifestFrom(json);
    const std::string wrong = WhatIsWrong(manifest);
    if (wrong.empty()) return manifest;
    return absl::DataLossError(absl::StrCat("it is inconsistent: ", wrong));
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat("it lacks a field: ", error.what()));
  }
}

}  // namespace syncline
