// The resources that this process may use: the quotas of its control group (version 2 or
// 1) and of all groups above it, and what the machine itself has left.
//
//   const ProcessLimits limits = ReadProcessLimits();
//   if (limits.memory_bytes) options.memory = *limits.memory_bytes / 10 * 8;
//
// Thread safety: ReadProcessLimits reads files of the kernel, nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace syncline {

struct ProcessLimits {
  // Cores' worth of time that the quota allows, at least 1; 0: no quota is set.
  int cores = 0;
  // Bytes that can still be allocated before the quota or the machine's memory is used
  // up; absent: unknown. Page cache counts as free.
  std::optional<uint64_t> memory_bytes = std::nullopt;
};

// `root` is a prefix for every path: "" is the machine itself, tests use their own tree.
ProcessLimits ReadProcessLimits(const std::string& root = "");

// Raises this process's limit of open files, and so of connections, to its hard limit:
// most systems start processes with 1,024. Returns the new limit; 0 when it is unknown.
uint64_t RaiseFileLimit();

}  // namespace syncline
