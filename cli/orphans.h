// Processes that the launcher's children left behind in sessions of their own (setsid,
// daemons): no signal to a process group reaches them. A subreaper becomes their parent
// when theirs ends, and so can end them too.
//
//   Orphans orphans;               // from now on they come to this process
//   orphans.Reap(is_known);        // now and then: those that have ended
//   orphans.Kill(is_known);        // at the end
//
// Children that this process had before are left alone. Belongs to one thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <set>

namespace syncline {

class Orphans {
 public:
  using IsKnown = std::function<bool(pid_t)>;  // a child that somebody waits for

  Orphans();
  ~Orphans();
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  void Reap(const IsKnown& is_known) const;
  // All children that are not known, and what they leave behind in turn.
  void Kill(const IsKnown& is_known) const;

 private:
  bool IsOrphan(pid_t child, const IsKnown& is_known) const {
    return earlier_.count(child) == 0 && !is_known(child);
  }

  const std::set<pid_t> earlier_;
};

}  // namespace syncline
