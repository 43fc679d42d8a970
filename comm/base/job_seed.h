// Seeds of a job's random bits (comm/base/random.h), made of its name and nothing else:
// a training that is run again under the same name repeats its roundings bit for bit,
// whatever number the coordinator gives it.
//
//   const uint64_t seed = JobSeed("resnet");           // of what the servers round
//   const uint64_t mine = SeedOfRank(seed, rank);      // of what this worker rounds
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

// Another one for each rank, and none of them the job's own: rounding errors of different
// workers must be independent, or their mean keeps them.
constexpr uint64_t SeedOfRank(uint64_t job_seed, uint32_t rank) {
  return job_seed ^ (uint64_t{rank} + 1) * 0x9e3779b97f4a7c15u;
}

}  // namespace syncline
