// Ends processes that the launcher's children left behind in sessions of their own
// (setsid, daemons), which no signal to a process group reaches. As a subreaper this
// process becomes their parent when their own parent ends.
//
//   Orphans orphans;               // from now on orphans become children of this process
//   orphans.Reap(is_known);        // periodically: reaps those that have ended
//   orphans.Kill(is_known);        // at the end
//
// Ignores children that this process had before. Used by one thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <set>

namespace syncline {

class Orphans {
 public:
  using IsKnown = std::function<bool(pid_t)>;  // whether the caller waits for this child

  Orphans();
  ~Orphans();
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  void Reap(const IsKnown& is_known) const;
  // Kills all children that are not known, and then their own orphans.
  void Kill(const IsKnown& is_known) const;

 private:
  bool IsOrphan(pid_t child, const IsKnown& is_known) const {
    return earlier_.count(child) == 0 && !is_known(child);
  }

  const std::set<pid_t> earlier_;
};

}  // namespace syncline
