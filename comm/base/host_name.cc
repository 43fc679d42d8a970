#include "comm/base/host_name.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace syncline {

std::string HostName() {
  char name[256] = {};
  const bool is_known = gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0';
  return is_known ? name : "host";
}

std::string ProcessName() { return absl::StrCat(HostName(), ":", getpid()); }

}  // namespace syncline
