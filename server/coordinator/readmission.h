// Decides when a rank whose process died may be a member again.
//
// Its first successor may join at once. But a worker that is restarted again and again,
// and dies each time before it contributes, would delay every step until its death is
// noticed. So after the second such death, or after a drop for standing still, the
// successor waits outside until the others have made a step without it. Each further
// death doubles that number of steps, up to 64.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace syncline {

class Readmission {
 public:
  // Reports of the servers at that moment.
  struct Figures {
    uint64_t contributed = 0;  // by all incarnations of the rank
    uint64_t completed = 0;    // steps of blocks
    uint64_t trained =
        0;  // number of blocks; one step of the job is this many steps of blocks
  };
  enum class Cause { kDied, kStoodStill };

  void Lost(uint32_t rank, Cause cause, const Figures& figures);
  bool MayJoin(uint32_t rank, const Figures& figures) const;
  std::string Why(uint32_t rank) const;

 private:
  struct Record {
    int deaths = 0;  // since its last contribution
    uint64_t contributed = 0;
    uint64_t may_join_at = 0;  // in steps of blocks
  };
  std::map<uint32_t, Record> records_;
};

}  // namespace syncline
