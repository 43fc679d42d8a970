#include "server/admin/http_request.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

bool IsMethod(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return absl::ascii_isupper(static_cast<unsigned char>(c));
  });
}

// Takes the next line from `rest`. Lines end with CR LF or with LF alone, as RFC 9112
// asks of servers. Returns nullopt if the line is incomplete.
std::optional<std::string_view> TakeLine(std::string_view& rest) {
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

absl::StatusOr<HttpRequest> ParseRequestLine(std::string_view line) {
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
  return HttpRequest{std::string(line.substr(0, method_end)),
                     std::string(target.substr(0, target.find('?')))};
}

// What the headers contain besides the fields of HttpRequest.
struct Headers {
  std::optional<uint64_t> body_bytes;
};

absl::Status TakeHeader(std::string_view line, HttpRequest& request, Headers& headers) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return absl::OkStatus();
  const absl::string_view name(line.data(), colon);
  const std::string value(absl::StripAsciiWhitespace(
      absl::string_view(line.data() + colon + 1, line.size() - colon - 1)));
  if (absl::EqualsIgnoreCase(name, "content-length")) {
    uint64_t bytes = 0;
    const bool is_said_twice = headers.body_bytes.has_value();
    if (is_said_twice || !absl::SimpleAtoi(value, &bytes)) {
      return absl::InvalidArgumentError("no valid Content-Length");
    }
    headers.body_bytes = bytes;
    return absl::OkStatus();
  }
  const auto keep = [&](const char* wanted, std::string& kept) {
    if (kept.empty() && absl::EqualsIgnoreCase(name, wanted)) kept = value;
  };
  keep("authorization", request.authorization);
  keep("cookie", request.cookie);
  keep("accept", request.accept);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<HttpRequest>> ParseHttpRequest(std::string_view received) {
  std::string_view rest = received;
  const std::optional<std::string_view> first = TakeLine(rest);
  if (!first.has_value()) return std::nullopt;
  SYNCLINE_ASSIGN_OR_RETURN(HttpRequest request, ParseRequestLine(*first));
  Headers headers;
  for (;;) {
    const std::optional<std::string_view> line = TakeLine(rest);
    if (!line.has_value()) return std::nullopt;
    if (line->empty()) break;
    SYNCLINE_RETURN_IF_ERROR(TakeHeader(*line, request, headers));
  }
  const uint64_t wanted = headers.body_bytes.value_or(0);
  if (rest.size() < wanted) return std::nullopt;
  request.body = std::string(rest.substr(0, static_cast<size_t>(wanted)));
  return request;
}

}  // namespace syncline
