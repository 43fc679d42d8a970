// Finds out what holds up a job: members whose contributions others wait for, and servers
// that hold up all members.
//
// It relies on the reports of servers, not on those of the member itself. Its measure
// changes only by the member's own progress: the number of blocks that all incarnations
// of its rank have contributed to, and the number of views that reached them
// (server/shard/movement.h). New epochs, new options, the progress of others, a death and
// a restart do not reset a member's clock, so each member owes something for a bounded
// time only.
//
// A member's clock runs while
//   it owes      blocks that others wait for lack its contribution
//   seeds        blocks have no values, it must provide them, and a member waits
//   is missed    others are in a barrier, and it is not in it and does not wait
//   is cut off   it reports that it waits, but no server holds anything from it
// At Timeouts::no_progress the member is dropped. The job fails instead if
//   - all members would be dropped;
//   - all members whose clocks run lack something at the same server, and that server
//     receives nothing (a member without the views of one server cannot contribute to any);
//   - an engine does not answer, or a decision does not arrive;
//   - all members wait for a little longer than that, none reports progress, and no server
//     says why.
// No clock runs while no member waits, so all may compute as long as they like. No clock
// runs while bytes are sent to a backup, which may delay all members.
//
// Thread safety: none.
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

// A member of the committed epoch, as it reports itself.
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
  std::string failure = {};  // not empty: the job fails for this reason
};

class StallWatch {
 public:
  explicit StallWatch(const Timeouts& timeouts) : timeouts_(timeouts) {}

  // A heartbeat of one of the job's servers.
  void Said(uint32_t server, const Heartbeat& beat, const JobProgress& progress);
  // The server is lost. Its contributions still count.
  void Lost(uint32_t server);
  // A decision was sent.
  void Decided() { undecided_for_ = absl::ZeroDuration(); }

  StallVerdict Look(absl::Duration now, const std::vector<StallMember>& members,
                    const std::vector<StallServer>& servers);

  // Whether bytes were being sent to a backup at the last Look.
  bool backups_move() const { return backups_move_; }

  // What has held up the job longest, for status. Empty before it did so for a failure
  // timeout.
  const std::string& held_up() const { return held_up_; }

  // Sums of the latest reports of all servers: steps of blocks, and contributions of a
  // rank.
  uint64_t completed() const;
  uint64_t contributed(uint32_t rank) const;
  uint32_t trained() const;  // number of trained blocks

 private:
  struct Word {
    JobProgress progress = {};
    uint64_t bytes = 0;
    absl::Duration silent = {};
    absl::Duration stood = {};                               // time since `bytes` changed
    absl::Duration backup_stood = absl::InfiniteDuration();  // the same for backup bytes
  };
  struct Clock {
    uint64_t moved = 0;
    absl::Duration stood = {};
    uint64_t step = 0;  // as the member reports
    uint64_t bytes = 0;
    // Set by each Look.
    bool runs = false;
    std::string why = {};
    std::vector<uint32_t> owed_to = {};  // servers that it owes contributions or seeds
    bool is_cut_off = false;             // from one of them
  };

  void Advance(absl::Duration passed, const std::vector<StallMember>& members);
  // Returns whether the member made progress.
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
  // Totals of lost servers.
  uint64_t past_completed_ = 0;
  std::map<uint32_t, uint64_t> past_contributed_;  // by rank
  std::map<uint32_t, Clock> clocks_;               // by rank, including former members
  std::optional<absl::Duration> looked_at_;
  uint32_t least_unseeded_ = ~uint32_t{0};
  absl::Duration undecided_for_ = {};
  absl::Duration all_waited_for_ = {};  // all wait, and no member reports progress
  absl::Duration all_stood_for_ = {};   // the same, and no server's bytes change
  // Set by each Look.
  bool somebody_waits_ = false;
  bool somebody_in_barrier_ = false;
  bool seeding_moved_ = false;
  bool backups_move_ = false;
  std::string held_up_;
};

}  // namespace syncline
