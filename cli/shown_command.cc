#include "cli/shown_command.h"

#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace syncline {

ShownCommand ShownCommand::OfThisProcess() {
  std::ifstream file("/proc/self/stat");
  std::string stat;
  std::getline(file, stat);
  // In "17 (a name) S 1 ...", the name may contain any characters. It is the second
  // field; begin and end of the command line are fields 48 and 49 (proc(5)).
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  const std::vector<std::string> fields =
      absl::StrSplit(stat.substr(name_end + 1), ' ', absl::SkipEmpty());
  ShownCommand command;
  if (fields.size() < 47 || !absl::SimpleAtoi(fields[45], &command.begin_) ||
      !absl::SimpleAtoi(fields[46], &command.end_)) {
    return {};
  }
  return command;
}

void ShownCommand::Become(const char* title) const {
  if (end_ <= begin_) return;
  const size_t size = end_ - begin_;
  char* shown = reinterpret_cast<char*>(begin_);  // NOLINT(performance-no-int-to-ptr)
  std::memset(shown, 0, size);
  std::string_view(title).copy(shown, size - 1);
}

}  // namespace syncline
