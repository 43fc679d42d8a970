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
// The end of a traceback matters most.
constexpr size_t kMaxLines = 60;

// Returns a member of a JSON object, or null. The file is {"message": "..."} or
// {"message": {"message": "...", "extraInfo": {"py_callstack": "..."}}}.
const nlohmann::json& At(const nlohmann::json& json, const char* key) {
  static const nlohmann::json kNull;
  const bool is_there = json.is_object() && json.contains(key);
  return is_there ? json[key] : kNull;
}

std::string TextOf(const nlohmann::json& json) {
  return json.is_string() ? json.get<std::string>() : "";
}

std::vector<std::string> TracebackOf(const std::string& text) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    lines.push_back(Printable(std::string(line), kLongestMessage));
  }
  if (lines.size() > kMaxLines) lines.erase(lines.begin(), lines.end() - kMaxLines);
  return lines;
}

}  // namespace

std::optional<WorkerError> ReadWorkerError(const std::string& path) {
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json& outer = At(json, "message");
  const std::string text = TextOf(outer.is_object() ? At(outer, "message") : outer);
  const std::string said(  // cut before it is split, because the file may be long
      absl::StripAsciiWhitespace(text.substr(0, kLongestMessage)));
  std::error_code gone;
  const auto written_at = std::filesystem::last_write_time(path, gone);
  if (said.empty() || gone) return std::nullopt;
  return WorkerError{
      .message = Printable(
          absl::StrJoin(absl::StrSplit(said, '\n', absl::SkipWhitespace()), " "),
          kLongestMessage),
      .traceback = TracebackOf(TextOf(At(At(outer, "extraInfo"), "py_callstack"))),
      .written_at = written_at};
}

void PassOnWorkerError(const std::string& path) {
  const char* target = std::getenv("TORCHELASTIC_ERROR_FILE");
  std::error_code ignored;  // the worker's own file stays, and the run has failed anyway
  if (target == nullptr || !std::filesystem::exists(path, ignored)) return;
  std::filesystem::copy_file(path, target,
                             std::filesystem::copy_options::overwrite_existing, ignored);
}

}  // namespace syncline
