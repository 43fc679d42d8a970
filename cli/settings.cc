#include "cli/settings.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "CLI/Error.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "comm/base/failure.h"
#include "comm/base/nearest.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "yaml-cpp/yaml.h"

namespace syncline {
namespace {

// Limit of the file's size. Usual files have a few hundred bytes.
constexpr size_t kMaxConfigBytes = size_t{1} << 20;
// Limit of an error, which may quote the file.
constexpr size_t kMaxErrorBytes = 1000;

// Variables that sessions, kernels and tests read, besides those of flags.
constexpr const char* kOtherVariables[] = {
    "SYNCLINE_COORDINATOR",  "SYNCLINE_JOB",        "SYNCLINE_RUN_ID",
    "SYNCLINE_LR_RANGE",     "SYNCLINE_ISA",        "SYNCLINE_CUDA_MODULE",
    "SYNCLINE_TLS_CERT",     "SYNCLINE_TLS_KEY",    "SYNCLINE_TLS_CA",
    "SYNCLINE_IDENTITIES",   "SYNCLINE_BINARY",     "SYNCLINE_LIBRARY",
    "SYNCLINE_LOG",          "SYNCLINE_GPU_CODECS", "SYNCLINE_NCCL",
    "SYNCLINE_NCCL_LIBRARY", "SYNCLINE_CUDA_DRIVER"};
// Maximum edit distance of a misspelled name. A name further off belongs to other
// software.
constexpr size_t kMisspelled = 2;

using FileValues = std::map<std::string, std::vector<std::string>>;

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(Printable(message, kMaxErrorBytes)),
                     Failure::kUsage);
}

bool HasName(const CLI::Option& flag, const std::string& name) {
  return flag.check_lname(name);
}

absl::StatusOr<std::vector<std::string>> ValuesOf(const YAML::Node& node,
                                                  const std::string& where) {
  if (node.IsScalar()) return std::vector<std::string>{node.Scalar()};
  std::vector<std::string> values;
  if (!node.IsSequence()) return Usage(absl::StrCat(where, " must be a value or a list"));
  for (const YAML::Node& element : node) {
    if (!element.IsScalar()) return Usage(absl::StrCat(where, " must list plain values"));
    values.push_back(element.Scalar());
  }
  return values;
}

absl::StatusOr<FileValues> ToValues(const YAML::Node& root, const std::string& file,
                                    const std::vector<CLI::Option*>& flags) {
  FileValues values;
  if (root.IsNull()) return values;
  if (!root.IsMap())
    return Usage(absl::StrCat(file, ": must hold lines of 'flag: value'"));
  for (const auto& entry : root) {
    const std::string key = entry.first.Scalar();
    const std::string where =
        absl::StrCat(file, ":", entry.first.Mark().line + 1, ": ", key);
    bool known = false;
    for (const CLI::Option* flag : flags) known = known || HasName(*flag, key);
    if (!known) {
      const std::string nearest = NearestFlag(key, flags);
      return Usage(absl::StrCat(
          where, " is not a setting of this command; ",
          nearest.empty() ? "see --help" : absl::StrCat("did you mean ", nearest, "?")));
    }
    SYNCLINE_ASSIGN_OR_RETURN(values[key], ValuesOf(entry.second, where));
  }
  return values;
}

absl::StatusOr<std::string> ReadText(const std::string& file) {
  std::ifstream stream(file);
  std::string text(kMaxConfigBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  // A directory can be opened but not read.
  if (stream.bad() || (stream.fail() && !stream.eof())) {
    return Usage(absl::StrCat("cannot read --config '", file,
                              std::filesystem::is_directory(file)
                                  ? "': it is a directory; name a file of it"
                                  : "'; check path and permissions"));
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() <= kMaxConfigBytes) return text;
  return Usage(absl::StrCat("--config '", file, "' has more than ", kMaxConfigBytes,
                            " bytes: that is not a file of settings; check the path"));
}

absl::StatusOr<FileValues> ReadFile(const std::string& file,
                                    const std::vector<CLI::Option*>& flags) {
  if (file.empty()) return FileValues();
  SYNCLINE_ASSIGN_OR_RETURN(const std::string text, ReadText(file));
  // yaml-cpp reports errors by exceptions; none of them leaves this function.
  try {
    return ToValues(YAML::Load(text), file, flags);
  } catch (const YAML::Exception& error) {
    return Usage(absl::StrCat(file, ":", error.mark.line + 1, ": ", error.msg));
  }
}

absl::Status Set(CLI::Option& flag, const std::vector<std::string>& values,
                 const std::string& source) {
  try {
    for (const std::string& value : values) flag.add_result(value);
    flag.run_callback();
    return absl::OkStatus();
  } catch (const CLI::Error&) {
    return Usage(absl::StrCat(source, ": '", absl::StrJoin(values, ","),
                              "' is not a valid value of ", flag.get_name()));
  }
}

// Returns whether another flag that was given excludes this one: --output table rules out
// SYNCLINE_JSON.
bool IsRuledOut(const CLI::Option& flag) {
  return std::ranges::any_of(flag.get_excludes(),
                             [](const CLI::Option* other) { return other->count() > 0; });
}

constexpr char kPrefix[] = "SYNCLINE_";

std::string VariableOf(const std::string& prefix, const std::string& flag) {
  return absl::StrCat(prefix,
                      absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}})));
}

// Returns the name of the variable that is set for `flag`; empty if there is none.
std::string FindVariable(const CLI::Option& flag, const SettingSources& sources) {
  for (const std::string& prefix : sources.prefixes) {
    for (const std::string& name : flag.get_lnames()) {
      const std::string variable = VariableOf(prefix, name);
      const char* value = sources.environment(variable.c_str());
      if (value != nullptr && *value != '\0') return variable;
    }
  }
  return "";
}

void AddVariables(const CLI::App& app, std::set<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& flag : option->get_lnames()) names.insert(VariableName(flag));
  }
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    AddVariables(*command, names);
  }
}

}  // namespace

std::string VariableName(const std::string& flag) { return VariableOf(kPrefix, flag); }

std::vector<CLI::Option*> FlagsOf(CLI::App& command) {
  std::vector<CLI::Option*> flags;
  for (CLI::Option* option : command.get_options()) {
    const bool is_flag = !option->get_lnames().empty();
    if (is_flag && !HasName(*option, "help") && !HasName(*option, "config")) {
      flags.push_back(option);
    }
  }
  for (CLI::App* sub : command.get_subcommands()) {
    for (CLI::Option* flag : FlagsOf(*sub)) flags.push_back(flag);
  }
  return flags;
}

std::string NearestFlag(absl::string_view name, const std::vector<CLI::Option*>& flags) {
  std::vector<std::string> names = {"help", "config"};
  for (const CLI::Option* flag : flags) {
    for (const std::string& lname : flag->get_lnames()) names.push_back(lname);
  }
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const std::string bare(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  return std::string(NearestName(bare, candidates));
}

std::vector<std::string> MisspelledVariables(CLI::App& app,
                                             const char* const* environment) {
  std::set<std::string> known(std::begin(kOtherVariables), std::end(kOtherVariables));
  AddVariables(app, known);
  const std::vector<std::string_view> names(known.begin(), known.end());
  std::vector<std::string> warnings;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    const std::string_view name = entry.substr(0, entry.find('='));
    const bool is_service = name.find("_PORT") != std::string_view::npos ||
                            name.find("_SERVICE_") != std::string_view::npos;
    if (!name.starts_with("SYNCLINE_") || is_service || known.contains(std::string(name)))
      continue;
    const std::string_view nearest = NearestName(name, names);
    if (EditDistance(name, nearest) > kMisspelled) continue;
    warnings.push_back(absl::StrCat(Printable(name),
                                    " is not a setting and has no effect; ",
                                    "did you mean ", std::string(nearest), "?"));
  }
  return warnings;
}

absl::Status ApplySettings(const std::vector<CLI::Option*>& flags,
                           const SettingSources& sources) {
  SYNCLINE_ASSIGN_OR_RETURN(const FileValues file, ReadFile(sources.config_file, flags));
  for (CLI::Option* flag : flags) {
    if (flag->count() > 0 || IsRuledOut(*flag)) continue;
    if (const std::string variable = FindVariable(*flag, sources); !variable.empty()) {
      SYNCLINE_RETURN_IF_ERROR(
          Set(*flag, {sources.environment(variable.c_str())}, variable));
      continue;
    }
    for (const auto& [key, values] : file) {
      if (!HasName(*flag, key)) continue;
      SYNCLINE_RETURN_IF_ERROR(
          Set(*flag, values, absl::StrCat(sources.config_file, ": ", key)));
    }
  }
  return absl::OkStatus();
}

}  // namespace syncline
