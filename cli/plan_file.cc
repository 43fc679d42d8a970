#include "cli/plan_file.h"

#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/nearest.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/base/sync_mode.h"
#include "comm/job/job_settings.h"
#include "yaml-cpp/yaml.h"

namespace syncline {
namespace {

// Limit of an error, which may quote the file.
constexpr size_t kMaxErrorBytes = 1000;

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(Printable(message, kMaxErrorBytes)),
                     Failure::kUsage);
}

// Stores a value, or fails. `where`: the place for errors, such as "job.yaml:3: workers".
using ReadValue =
    std::function<absl::Status(const YAML::Node& value, const std::string& where)>;
// The keys that a map may have, and where their values are stored.
struct Keys {
  std::string_view owner;  // "a job"
  std::map<std::string_view, ReadValue> readers;
};

std::string Place(const YAML::Node& node, const std::string& source) {
  return absl::StrCat(source, ":", node.Mark().line + 1, ": ");
}

absl::Status ReadMap(const YAML::Node& node, const std::string& source,
                     const Keys& keys) {
  if (!node.IsMap()) {
    return Usage(absl::StrCat(Place(node, source), std::string(keys.owner),
                              " must be written as 'key: value'"));
  }
  std::vector<std::string_view> names;
  for (const auto& [name, reader] : keys.readers) names.push_back(name);
  for (const auto& entry : node) {
    const std::string& key = entry.first.Scalar();
    const auto reader = keys.readers.find(key);
    if (reader == keys.readers.end()) {
      return Usage(absl::StrCat(Place(entry.first, source), "'", key,
                                "' is not a key of ", std::string(keys.owner), "",
                                DidYouMean(key, names)));
    }
    SYNCLINE_RETURN_IF_ERROR(
        reader->second(entry.second, Place(entry.first, source) + key));
  }
  return absl::OkStatus();
}

template <typename T>
ReadValue Into(T* value, const char* kind) {
  return [=](const YAML::Node& node, const std::string& where) {
    const bool fits = node.IsScalar() && YAML::convert<T>::decode(node, *value);
    return fits ? absl::OkStatus() : Usage(absl::StrCat(where, " must be ", kind));
  };
}
ReadValue Into(std::string* value) { return Into(value, "a name"); }

// Reads one of two words.
template <typename T>
ReadValue IntoChoice(T* value, std::map<std::string, T> words) {
  return [=](const YAML::Node& node, const std::string& where) {
    const auto word = words.find(node.IsScalar() ? node.Scalar() : "");
    if (word == words.end()) {
      return Usage(absl::StrCat(where, " must be ", words.begin()->first, " or ",
                                words.rbegin()->first));
    }
    *value = word->second;
    return absl::OkStatus();
  };
}

ReadValue IntoShape(std::vector<uint64_t>* shape) {
  return [=](const YAML::Node& node, const std::string& where) {
    if (!node.IsSequence()) {
      return Usage(absl::StrCat(where, " must be a list such as [300, 700]"));
    }
    for (const YAML::Node& size : node) {
      uint64_t& last = shape->emplace_back();
      if (size.IsScalar() && YAML::convert<uint64_t>::decode(size, last)) continue;
      return Usage(absl::StrCat(where, " must list whole numbers"));
    }
    return absl::OkStatus();
  };
}

// ValidateJob checks the names and the values.
ReadValue IntoOptions(OptionValues* options) {
  return [=](const YAML::Node& node, const std::string& where) {
    if (!node.IsMap()) return Usage(absl::StrCat(where, " must be {option: number}"));
    for (const auto& entry : node) {
      const std::string& name = entry.first.Scalar();
      double& value = (*options)[name];
      if (entry.second.IsScalar() && YAML::convert<double>::decode(entry.second, value)) {
        continue;
      }
      return Usage(absl::StrCat(where, ": ", name, " must be a number"));
    }
    return absl::OkStatus();
  };
}

// Reads a name, or a map with a name and more.
ReadValue NameOr(std::string* name, const std::string& source, Keys keys) {
  keys.readers["name"] = Into(name);
  return [=](const YAML::Node& node, const std::string& where) {
    return node.IsScalar() ? Into(name)(node, where) : ReadMap(node, source, keys);
  };
}

ReadValue IntoTensors(std::vector<TensorSpec>* tensors, const std::string& source) {
  return [=](const YAML::Node& node, const std::string& where) -> absl::Status {
    if (!node.IsSequence()) return Usage(absl::StrCat(where, " must be a list"));
    for (const YAML::Node& element : node) {
      TensorSpec& tensor = tensors->emplace_back();
      GroupOptions& group = tensor.group;
      const Keys keys = {
          "a tensor",
          {{"name", Into(&tensor.name)},
           {"shape", IntoShape(&tensor.shape)},
           {"learning_rate_scale", Into(&group.learning_rate_scale, "a number")},
           {"options", IntoOptions(&group.options)},
           {"state", Into(&group.state)},
           {"frozen", Into(&group.frozen, "true or false")}}};
      SYNCLINE_RETURN_IF_ERROR(ReadMap(element, source, keys));
    }
    return absl::OkStatus();
  };
}

// Reads a mode as in flags, such as "ssp:3", or as a map.
ReadValue IntoMode(NamedOptions* mode, const std::string& source) {
  const ReadValue read_map =
      NameOr(&mode->name, source, {"a mode", {{"options", IntoOptions(&mode->values)}}});
  return [=](const YAML::Node& node, const std::string& where) -> absl::Status {
    if (!node.IsScalar()) return read_map(node, where);
    auto named = ParseModeText(node.Scalar());
    if (!named.ok()) {
      return Usage(absl::StrCat(where, ": ", std::string(named.status().message())));
    }
    *mode = *std::move(named);
    return absl::OkStatus();
  };
}

ReadValue IntoSetting(const JobSetting& setting, JobSettings* settings) {
  return [&setting, settings](const YAML::Node& node, const std::string& where) {
    if (!node.IsScalar()) return Usage(absl::StrCat(where, " must be one value"));
    const absl::Status fits = SetJobSetting(setting, node.Scalar(), *settings);
    if (fits.ok()) return fits;
    return Usage(absl::StrCat(where, ": ", std::string(fits.message())));
  };
}

Keys KeysOfJob(JobSpec& spec, const std::string& source) {
  TrainingSettings& training = spec.training;
  OptimizerSettings& optimizer = training.optimizer;
  const auto named = [&](NamedOptions& options, const char* owner) {
    return NameOr(&options.name, source,
                  {owner, {{"options", IntoOptions(&options.values)}}});
  };
  Keys keys = {
      "a job",
      {{"name", Into(&spec.name)},
       {"workers", Into(&spec.workers, "a whole number")},
       {"optimizer", NameOr(&optimizer.name, source,
                            {"an optimizer",
                             {{"options", IntoOptions(&optimizer.options)},
                              {"state", Into(&optimizer.state)}}})},
       {"schedule", named(training.schedule, "a schedule")},
       {"gradient", IntoOptions(&training.gradient)},
       {"loss_scaling", named(training.loss_scaling, "loss scaling")},
       {"accumulate_steps", Into(&training.accumulate_steps, "a whole number")},
       {"aggregation", IntoChoice<Aggregation>(&training.aggregation,
                                               {{"rank_order", Aggregation::kRankOrder},
                                                {"arrival", Aggregation::kArrival}})},
       {"mode", IntoMode(&training.mode, source)},
       {"nonfinite_steps", IntoChoice<NonfiniteSteps>(&training.nonfinite_steps,
                                                      {{"apply", NonfiniteSteps::kApply},
                                                       {"skip", NonfiniteSteps::kSkip}})},
       {"tensors", IntoTensors(&spec.tensors, source)}}};
  for (const JobSetting& setting : kJobSettings) {
    keys.readers[setting.name] = IntoSetting(setting, &spec.settings);
  }
  return keys;
}

}  // namespace

absl::StatusOr<JobSpec> ParseJobFile(const std::string& text, const std::string& source) {
  JobSpec spec = {.name = "default"};
  // yaml-cpp reports errors by exceptions; none of them leaves this function.
  try {
    SYNCLINE_RETURN_IF_ERROR(ReadMap(YAML::Load(text), source, KeysOfJob(spec, source)));
  } catch (const YAML::Exception& error) {
    return Usage(absl::StrCat(source, ":", error.mark.line + 1, ": ", error.msg));
  }
  return spec;
}

absl::StatusOr<JobSpec> ReadJobFile(const std::string& path) {
  const std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file || !text) {
    return Usage(absl::StrCat("cannot read '", path, "'; check path and permissions"));
  }
  return ParseJobFile(text.str(), path);
}

}  // namespace syncline
