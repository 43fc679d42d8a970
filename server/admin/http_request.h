// The start of an HTTP/1.x request, as far as an admin port reads it: which page is asked
// for. Headers are skipped and bodies are nobody's.
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
};

// nullopt while `received` does not yet hold the empty line that ends the headers.
// InvalidArgument when it never will be a request.
absl::StatusOr<std::optional<HttpRequest>> ParseHttpRequest(std::string_view received);

}  // namespace syncline
