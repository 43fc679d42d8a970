#include "comm/base/process_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace syncline {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
// Version 1 of control groups has no word for "unlimited" and shows the largest number of
// pages instead.
constexpr uint64_t kUnlimitedFrom = uint64_t{1} << 62;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  return file ? content.str() : "";
}

// Returns the first number of a file. Returns nullopt if there is none, or the file says
// "max".
std::optional<uint64_t> ReadNumber(const std::string& path) {
  uint64_t number = 0;
  const std::string content = ReadFile(path);
  if (!absl::SimpleAtoi(content, &number)) return std::nullopt;
  return number;
}

// Returns the number after `name` in lines such as "inactive_file 123" or "MemAvailable:
// 5 kB".
std::optional<uint64_t> ReadField(const std::string& path, const std::string& name) {
  std::istringstream lines(ReadFile(path));
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t number = 0;
    if (words.size() < 2 || words[0] != name) continue;
    if (absl::SimpleAtoi(words[1], &number)) return number;
  }
  return std::nullopt;
}

// Location and version of the files of one control group.
struct Hierarchy {
  std::string mount;  // mount point, the root group
  std::string group;  // this process's group, "/a/b"; "/" in most containers
  bool is_version_2 = false;
};

// Lines of /proc/self/cgroup are ID:CONTROLLERS:GROUP; version 2 names no controllers.
std::optional<Hierarchy> FindHierarchy(const std::string& root,
                                       const std::string& controller) {
  std::optional<Hierarchy> found;
  std::istringstream lines(ReadFile(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (std::ranges::count(controllers, controller) > 0) {
      // Controllers that are mounted together share a folder, to which the name of each
      // links.
      return Hierarchy{absl::StrCat(root, "/sys/fs/cgroup/", controller), parts[2],
                       false};
    }
    if (parts[1].empty()) found = {absl::StrCat(root, "/sys/fs/cgroup"), parts[2], true};
  }
  return found;
}

// Returns the smallest of the values that this process's group and its ancestors have
// left. In a container the path may be one that only the host knows; the mount's root is
// then the container's own group.
uint64_t LeastOf(const Hierarchy& hierarchy,
                 const std::function<uint64_t(const std::string& folder)>& left) {
  uint64_t least = left(hierarchy.mount);
  std::string folder = hierarchy.mount;
  for (const std::string_view part : std::vector<std::string>(
           absl::StrSplit(hierarchy.group, '/', absl::SkipEmpty()))) {
    absl::StrAppend(&folder, "/", std::string(part));
    least = std::min(least, left(folder));
  }
  return least;
}

uint64_t MemoryLeft(const std::string& folder, bool is_version_2) {
  const auto limit =
      ReadNumber(folder + (is_version_2 ? "/memory.max" : "/memory.limit_in_bytes"));
  if (!limit || *limit >= kUnlimitedFrom) return kUnlimited;
  const uint64_t used =
      ReadNumber(folder + (is_version_2 ? "/memory.current" : "/memory.usage_in_bytes"))
          .value_or(0);
  const uint64_t cache = ReadField(folder + "/memory.stat",
                                   is_version_2 ? "inactive_file" : "total_inactive_file")
                             .value_or(0);
  const uint64_t kept = used - std::min(used, cache);
  return *limit - std::min(*limit, kept);
}

// Returns the quota in thousandths of a core.
uint64_t CpuQuota(const std::string& folder, bool is_version_2) {
  std::string quota;
  std::string period;
  if (is_version_2) {  // "200000 100000", or "max 100000"
    std::istringstream(ReadFile(folder + "/cpu.max")) >> quota >> period;
  } else {  // -1: no quota
    quota = ReadFile(folder + "/cpu.cfs_quota_us");
    period = ReadFile(folder + "/cpu.cfs_period_us");
  }
  int64_t quota_us = 0;
  int64_t period_us = 0;
  if (!absl::SimpleAtoi(quota, &quota_us) || !absl::SimpleAtoi(period, &period_us) ||
      quota_us <= 0 || period_us <= 0) {
    return kUnlimited;
  }
  return static_cast<uint64_t>(1000.0 * static_cast<double>(quota_us) /
                               static_cast<double>(period_us));
}

}  // namespace

ProcessLimits ReadProcessLimits(const std::string& root) {
  ProcessLimits limits;
  if (const auto cpu = FindHierarchy(root, "cpu")) {
    const uint64_t quota = LeastOf(*cpu, [&](const std::string& folder) {
      return CpuQuota(folder, cpu->is_version_2);
    });
    if (quota < kUnlimitedFrom) limits.cores = static_cast<int>((quota + 999) / 1000);
  }
  const auto available = ReadField(root + "/proc/meminfo", "MemAvailable:");
  uint64_t memory = available ? *available * 1024 : kUnlimited;
  if (const auto group = FindHierarchy(root, "memory")) {
    memory = std::min(memory, LeastOf(*group, [&](const std::string& folder) {
                        return MemoryLeft(folder, group->is_version_2);
                      }));
  }
  if (memory != kUnlimited) limits.memory_bytes = memory;
  return limits;
}

uint64_t RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit raised = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  return setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

}  // namespace syncline
