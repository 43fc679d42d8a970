#include "server/admin/http_request.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"

namespace syncline {
namespace {

// Both line ends that are in use: RFC 9112 asks a server to take a bare LF as well.
bool HasEnd(std::string_view received) {
  return received.find("\r\n\r\n") != std::string_view::npos ||
         received.find("\n\n") != std::string_view::npos;
}

bool IsMethod(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return absl::ascii_isupper(static_cast<unsigned char>(c));
  });
}

}  // namespace

absl::StatusOr<std::optional<HttpRequest>> ParseHttpRequest(std::string_view received) {
  const size_t end_of_line = received.find('\n');
  if (end_of_line == std::string_view::npos) return std::nullopt;
  std::string_view line = received.substr(0, end_of_line);
  if (line.ends_with('\r')) line.remove_suffix(1);
  const size_t method_end = line.find(' ');
  const size_t target_end = line.rfind(' ');
  if (method_end == std::string_view::npos || target_end == method_end) {
    return absl::InvalidArgumentError("no HTTP request line");
  }
  const std::string_view target =
      line.substr(method_end + 1, target_end - method_end - 1);
  if (!IsMethod(line.substr(0, method_end)) || !target.starts_with('/') ||
      !line.substr(target_end + 1).starts_with("HTTP/1.")) {
    return absl::InvalidArgumentError("no HTTP/1.x request line");
  }
  if (!HasEnd(received)) return std::nullopt;
  return HttpRequest{std::string(line.substr(0, method_end)),
                     std::string(target.substr(0, target.find('?')))};
}

}  // namespace syncline
