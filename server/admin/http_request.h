// An HTTP/1.x request, as far as an admin port reads it: which page is asked for, what
// shows who asks, and the body of a login form. Other headers are skipped.
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
  // Values of headers; empty: not there. Of several the first.
  std::string authorization = {};
  std::string cookie = {};
  std::string accept = {};
  std::string body = {};    // as long as Content-Length says
  std::string source = {};  // whoever took it fills it in: "10.0.0.7" (comm/base/crowd.h)
};

// nullopt while `received` does not yet hold the empty line that ends the headers, or not
// all of the body. InvalidArgument when it never will be a request.
absl::StatusOr<std::optional<HttpRequest>> ParseHttpRequest(std::string_view received);

}  // namespace syncline
