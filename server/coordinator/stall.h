// Finds what holds up a job: members who owe what others wait for, servers that hold up
// everybody.
//
// It goes by what servers say, not by what members say of themselves, and by a measure
// that nothing but a member's own movement moves: how many blocks all lives of its rank
// have contributed to, and how many views reached them (server/shard/movement.h). New
// epochs, new options, the movement of others, a death and a new life leave each clock as
// it is, so that whatever happens around a member, it owes something for a bounded time.
//
// A member's clock runs while
//   it owes      blocks that others wait for lack its contribution
//   seeds        blocks have no values yet, it must give them, and somebody waits
//   is missed    others are in a barrier, and it neither is nor waits
//   is cut off   it says that it waits, but no server holds anything of it
// At Timeouts::no_progress it is dropped. The job fails instead when that would drop
// everybody, when all whose clocks run lack something at one server, which hears nobody
// (a member that lacks the views of one server can contribute to none), when an
// engine does not answer, when a decision does not come, and when everybody waits for a
// little longer than that and no member moves by its own account: then no server says
// why. While nobody waits no clock runs: all may compute as long as they like. Nor does one
// run while bytes cross to a backup, for which everybody may have to wait.
//
// Thread safety: none; pure, but for what it remembers of the looks before.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "comm/base/timeouts.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/membership.h"

namespace syncline {

// A member of the committed epoch, by its own account.
struct StallMember {
  uint32_t rank = 0;
  uint64_t step = 0;
  uint64_t bytes = 0;
  bool waits = false;
  bool in_barrier = false;
  bool seeds = false;
};

// A server that holds blocks of the job.
struct StallServer {
  uint32_t server = 0;
  std::string name = {};
};

struct StallVerdict {
  std::vector<Drop> drops = {};
  std::string failure = {};  // not empty: the job fails, and this is why
};

class StallWatch {
 public:
  explicit StallWatch(const Timeouts& timeouts) : timeouts_(timeouts) {}

  // What a server of the job says in a heartbeat.
  void Said(uint32_t server, const Heartbeat& beat, const JobProgress& progress);
  // The server is gone: it waits for nobody. What was done there stays done.
  void Lost(uint32_t server);
  // A decision went out.
  void Decided() { undecided_for_ = absl::ZeroDuration(); }

  StallVerdict Look(absl::Duration now, const std::vector<StallMember>& members,
                    const std::vector<StallServer>& servers);

  // Bytes cross to a backup. As of the last look.
  bool backups_move() const { return backups_move_; }

  // What holds the job up longest, for status; empty while nothing does so for a failure
  // timeout.
  const std::string& held_up() const { return held_up_; }

  // Of all servers, as they last said: steps of blocks, and contributions of a rank.
  uint64_t completed() const;
  uint64_t contributed(uint32_t rank) const;
  uint32_t trained() const;  // blocks

 private:
  struct Word {
    JobProgress progress = {};
    uint64_t bytes = 0;
    absl::Duration silent = {};
    absl::Duration stood = {};  // bytes did not change for so long
    absl::Duration backup_stood = absl::InfiniteDuration();  // likewise, to its backup
  };
  struct Clock {
    uint64_t moved = 0;
    absl::Duration stood = {};
    uint64_t step = 0;  // of the member's own account
    uint64_t bytes = 0;
    // Of the present look.
    bool runs = false;
    std::string why = {};
    std::vector<uint32_t> owed_to = {};  // servers, also those that it must seed
    bool is_cut_off = false;             // from any of them
  };

  void Advance(absl::Duration passed, const std::vector<StallMember>& members);
  // Whether it moved.
  bool AdvanceMember(const StallMember& member, absl::Duration passed);
  std::string WhyItRuns(const StallMember& member, Clock& clock) const;
  std::string FailureOfServers(const std::vector<StallMember>& members,
                               const std::vector<StallServer>& servers) const;
  std::optional<uint32_t> ServerToBlame(const std::vector<StallMember>& members) const;
  std::string FailureOfAll(const std::vector<StallMember>& members,
                           const std::vector<StallServer>& servers) const;
  void Describe(const std::vector<StallMember>& members);
  uint32_t Unseeded() const;
  bool HearsNobody(uint32_t server) const;

  const Timeouts timeouts_;
  std::map<uint32_t, Word> words_;  // by server
  // Of servers that are gone.
  uint64_t past_completed_ = 0;
  std::map<uint32_t, uint64_t> past_contributed_;  // by rank
  std::map<uint32_t, Clock> clocks_;               // by rank, also of those who are gone
  std::optional<absl::Duration> looked_at_;
  uint32_t least_unseeded_ = ~uint32_t{0};
  absl::Duration undecided_for_ = {};
  absl::Duration all_waited_for_ = {};  // and no member says that it moved
  absl::Duration all_stood_for_ = {};   // nor does a server that bytes cross
  // Of the present look.
  bool somebody_waits_ = false;
  bool somebody_in_barrier_ = false;
  bool seeding_moved_ = false;
  bool backups_move_ = false;
  std::string held_up_;
};

}  // namespace syncline
