#include "cli/worker_error.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "comm/base/printable.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

constexpr size_t kLongestMessage = 500;

}  // namespace

std::string ReadWorkerError(const std::string& path) {
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  // {"message": "..."}, or {"message": {"message": "...", "extraInfo": ...}}.
  if (!json.is_object() || !json.contains("message")) return "";
  const nlohmann::json& outer = json["message"];
  const bool is_nested = outer.is_object() && outer.contains("message");
  const nlohmann::json& message = is_nested ? outer["message"] : outer;
  if (!message.is_string()) return "";
  const std::string said(  // cut before it is split: a file may be long
      absl::StripAsciiWhitespace(message.get<std::string>().substr(0, kLongestMessage)));
  return Printable(absl::StrJoin(absl::StrSplit(said, '\n', absl::SkipWhitespace()), " "),
                   kLongestMessage);
}

void PassOnWorkerError(const std::string& path) {
  const char* target = std::getenv("TORCHELASTIC_ERROR_FILE");
  std::error_code ignored;  // the worker's own file stays, and the run has failed anyhow
  if (target == nullptr || !std::filesystem::exists(path, ignored)) return;
  std::filesystem::copy_file(path, target,
                             std::filesystem::copy_options::overwrite_existing, ignored);
}

}  // namespace syncline
