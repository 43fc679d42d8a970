// JSON of files that anybody may have written.
#pragma once

#include <string_view>

#include "nlohmann/json.hpp"

namespace syncline {

// What lies deeper is left out: copies and dumps of a deep tree would end the program for
// want of stack. Discarded when it is no JSON.
inline nlohmann::json ParseShallowJson(std::string_view bytes) {
  constexpr int kMaxDepth = 16;
  using Json = nlohmann::json;
  const auto keeps = [](int depth, Json::parse_event_t, Json&) {
    return depth <= kMaxDepth;
  };
  return Json::parse(bytes.begin(), bytes.end(), keeps, /*allow_exceptions=*/false);
}

}  // namespace syncline
