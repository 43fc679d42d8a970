// When a rank whose process died may be a member again.
//
// Its first successor may at once. But a worker that dies again and again before it
// contributes anything, restarted by its launcher each time, would hold up each step of
// the others for as long as it takes to notice its death. So from the second such death
// on, and after a drop because it stood still, the next successor waits outside until the
// others have made a step without it: twice as many after each further death.
//
// Thread safety: none; pure, but for what it remembers.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace syncline {

class Readmission {
 public:
  // What servers say at that moment.
  struct Figures {
    uint64_t contributed = 0;  // by all lives of the rank
    uint64_t completed = 0;    // steps of blocks
    uint64_t trained = 0;      // blocks, which is one step of the job
  };
  enum class Cause { kDied, kStoodStill };

  void Lost(uint32_t rank, Cause cause, const Figures& figures);
  bool MayJoin(uint32_t rank, const Figures& figures) const;
  std::string Why(uint32_t rank) const;

 private:
  struct Record {
    int deaths = 0;  // since it contributed anything
    uint64_t contributed = 0;
    uint64_t may_join_at = 0;  // so many steps of blocks
  };
  std::map<uint32_t, Record> records_;
};

}  // namespace syncline
