// What this process may use of its machine: the quotas of its control group (version 2
// or 1) and of every group above it, and what the machine itself has left.
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
  // What can still be taken before the quota or the machine ends; absent: not known.
  // Memory that only caches files counts as left.
  std::optional<uint64_t> memory_bytes = std::nullopt;
};

// `root` stands before every path: "" is the machine itself, tests bring their own tree.
ProcessLimits ReadProcessLimits(const std::string& root = "");

// Lets this process have as many open files, and so connections, as its hard limit allows:
// most systems start processes with 1,024. Returns how many that is; 0 when it is unknown.
uint64_t RaiseFileLimit();

}  // namespace syncline
