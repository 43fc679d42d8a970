// Parses JSON from files that anyone may have written.
#pragma once

#include <string_view>

#include "nlohmann/json.hpp"

namespace syncline {

// Parses JSON and leaves out everything deeper than kMaxDepth levels. Copying or dumping
// a very deep tree would overflow the stack and end the program. Returns a discarded
// value (is_discarded()) if `bytes` is not JSON.
inline nlohmann::json ParseShallowJson(std::string_view bytes) {
  constexpr int kMaxDepth = 16;
  using Json = nlohmann::json;
  const auto keeps = [](int depth, Json::parse_event_t, Json&) {
    return depth <= kMaxDepth;
  };
  return Json::parse(bytes.begin(), bytes.end(), keeps, /*allow_exceptions=*/false);
}

}  // namespace syncline
