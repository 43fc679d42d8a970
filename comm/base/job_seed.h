// Seeds of a job's random bits (comm/base/random.h), derived only from its name. A
// training that is repeated under the same name repeats its roundings bit for bit,
// whatever number the coordinator assigns to it.
//
//   const uint64_t seed = JobSeed("resnet");           // for roundings of servers
//   const uint64_t mine = SeedOfRank(seed, rank);      // for roundings of this worker
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace syncline {

// FNV-1a of 64 bits (Fowler, Noll, Vo; draft-eastlake-fnv).
constexpr uint64_t JobSeed(std::string_view job) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : job) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

// Returns a different seed for each rank, and never the job's own. Rounding errors of
// workers must be independent; otherwise their mean would not cancel them.
constexpr uint64_t SeedOfRank(uint64_t job_seed, uint32_t rank) {
  return job_seed ^ (uint64_t{rank} + 1) * 0x9e3779b97f4a7c15u;
}

}  // namespace syncline
