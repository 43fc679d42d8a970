#include "comm/transport/ucx/lanes.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace syncline {
namespace {

// Returns "sysv/memory" for "#   lane[0]:  5:sysv/memory.0 md[3] -> ..."; the number at
// the end is UCX's path of the device.
std::string LaneOf(const std::string& line) {
  std::istringstream words(line.substr(line.find("]:") + 2));
  std::string name;
  words >> name;
  name.erase(0, name.find(':') + 1);
  return name.substr(0, name.rfind('.'));
}

void AddOnce(std::vector<std::string>& all, std::string one) {
  if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(std::move(one));
}

// Returns what `print` writes to the stream that it gets.
template <typename Print>
std::string TextOf(Print print) {
  char* text = nullptr;
  size_t bytes = 0;
  FILE* stream = open_memstream(&text, &bytes);
  print(stream);
  std::fclose(stream);
  std::string all(text, bytes);
  std::free(text);
  return all;
}

}  // namespace

std::vector<std::string> ParseLanes(const std::string& info) {
  std::vector<std::string> lanes;
  std::istringstream lines(info);
  for (std::string line; std::getline(lines, line);) {
    if (!absl::StrContains(line, "lane[") || !absl::StrContains(line, "]:")) continue;
    AddOnce(lanes, LaneOf(line));
  }
  return lanes;
}

// The line "#      resource 1  :  md 1  dev 1  flags -- tcp/lo" names "tcp/lo".
std::vector<std::string> ParseResources(const std::string& info) {
  std::vector<std::string> resources;
  std::istringstream lines(info);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words =
        absl::StrSplit(line, ' ', absl::SkipWhitespace());
    if (words.size() < 3 || words[1] != "resource") continue;
    AddOnce(resources, words.back());
  }
  return resources;
}

std::vector<std::string> LanesOf(ucp_ep_h endpoint) {
  return ParseLanes(TextOf([&](FILE* out) { ucp_ep_print_info(endpoint, out); }));
}

std::vector<std::string> ResourcesOf(ucp_context_h context) {
  return ParseResources(TextOf([&](FILE* out) { ucp_context_print_info(context, out); }));
}

}  // namespace syncline
