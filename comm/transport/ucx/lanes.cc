#include "comm/transport/ucx/lanes.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "absl/strings/match.h"

namespace syncline {
namespace {

// "#   lane[0]:  5:sysv/memory.0 md[3] -> ..." becomes "sysv/memory"; UCX numbers its
// devices' paths.
std::string LaneOf(const std::string& line) {
  std::istringstream words(line.substr(line.find("]:") + 2));
  std::string name;
  words >> name;
  name.erase(0, name.find(':') + 1);
  return name.substr(0, name.rfind('.'));
}

}  // namespace

std::vector<std::string> ParseLanes(const std::string& info) {
  std::vector<std::string> lanes;
  std::istringstream lines(info);
  for (std::string line; std::getline(lines, line);) {
    if (!absl::StrContains(line, "lane[") || !absl::StrContains(line, "]:")) continue;
    const std::string lane = LaneOf(line);
    if (std::find(lanes.begin(), lanes.end(), lane) == lanes.end()) lanes.push_back(lane);
  }
  return lanes;
}

std::vector<std::string> LanesOf(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t bytes = 0;
  FILE* stream = open_memstream(&text, &bytes);
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  const std::string info(text, bytes);
  std::free(text);
  return ParseLanes(info);
}

}  // namespace syncline
