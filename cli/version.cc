#include "cli/version.h"

#include <dlfcn.h>

#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/flags.h"
#include "comm/base/exit_codes.h"
#include "comm/rpc/attach_stream.h"
#include "comm/rpc/versions.h"
#include "comm/transport/message.h"
#include "git_describe.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

std::string Compiler() {
#if defined(__clang__)
  return absl::StrCat("clang ", __clang_version__);
#else
  return absl::StrCat("GCC ", __VERSION__);
#endif
}

std::string ToJson(const BuildInfo& info) {
  nlohmann::ordered_json json = {{"version", info.version},
                                 {"git", info.git},
                                 {"protocol_version", info.protocol_version},
                                 {"wire_version", info.wire_version},
                                 {"compiler", info.compiler},
                                 {"build_type", info.build_type}};
  for (const auto& [name, version] : info.libraries) json["libraries"][name] = version;
  return json.dump(2) + "\n";
}

std::string ToText(const BuildInfo& info) {
  std::vector<std::pair<std::string, std::string>> lines = {
      {"protocol", absl::StrCat(info.protocol_version, ", wire ", info.wire_version)},
      {"compiler", absl::StrCat(info.compiler, ", ", info.build_type)}};
  lines.insert(lines.end(), info.libraries.begin(), info.libraries.end());
  std::string text = absl::StrCat(VersionLine(), "\n");
  for (const auto& [name, value] : lines) {
    absl::StrAppendFormat(&text, "%-10s %s\n", name, value);
  }
  return text;
}

}  // namespace

std::string UcxVersion() {
  using GetVersionString = const char* (*)();
  const auto get =
      reinterpret_cast<GetVersionString>(dlsym(RTLD_DEFAULT, "ucp_get_version_string"));
  return get != nullptr ? get() : "unknown";
}

std::string VersionLine() {
  return absl::StrCat("syncline ", SYNCLINE_VERSION, " (git ", SYNCLINE_GIT_DESCRIBE,
                      ")");
}

BuildInfo GetBuildInfo() {
  BuildInfo info;
  info.version = SYNCLINE_VERSION;
  info.git = SYNCLINE_GIT_DESCRIBE;
  info.protocol_version = kProtocolVersion;
  info.wire_version = kMessageVersion;
  info.compiler = Compiler();
  info.build_type = SYNCLINE_BUILD_TYPE;
  info.libraries = {
      {"gRPC", GrpcVersion()}, {"protobuf", ProtobufVersion()}, {"UCX", UcxVersion()}};
  return info;
}

void AddVersion(CLI::App& app, Command* selected) {
  auto format = std::make_shared<OutputFormat>(OutputFormat::kTable);
  CLI::App* version =
      app.add_subcommand("version", "Show the version and build of this binary");
  AddOutputFlag(*version, format.get());
  version->callback([=] {
    *selected = [format]() -> absl::StatusOr<int> {
      const BuildInfo info = GetBuildInfo();
      std::cout << (*format == OutputFormat::kJson ? ToJson(info) : ToText(info))
                << std::flush;
      return kExitDone;
    };
  });
}

}  // namespace syncline
