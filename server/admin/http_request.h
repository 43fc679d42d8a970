// Parses the parts of an HTTP/1.x request that an admin port needs: the page, the
// reader's credentials, and the body of a login form. Other headers are skipped.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const auto request, ParseHttpRequest(received));
//   if (!request.has_value()) ... read on ...
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  // Values of headers. Empty: there is no such header. If it comes several times, the
  // first counts.
  std::string authorization = {};
  std::string cookie = {};
  std::string accept = {};
  std::string body = {};    // as long as Content-Length says
  std::string source = {};  // set by the receiver: "10.0.0.7" (comm/base/crowd.h)
};

// Returns nullopt if `received` is incomplete: it lacks the empty line after the headers,
// or part of the body. Fails with InvalidArgument if it can never become a request.
absl::StatusOr<std::optional<HttpRequest>> ParseHttpRequest(std::string_view received);

}  // namespace syncline
