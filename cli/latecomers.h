// Workers that were started again, and came back to a job that all others have left (kExitJobOver).
//
// The others may have finished it, or have left it with errors and be about to begin it anew.
// Which of the two is known once they end: whoever is started again takes along those that came
// too late, as members of a new run; otherwise nothing is left for these to do.
//
// Thread safety: a Latecomers is used by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace syncline {

class Latecomers {
 public:
  // A life of that worker begins.
  void NoteStart(int rank) { started_[rank] = ++starts_; }

  // The same, because it failed itself: it is a member of what is there now.
  void NoteRestart(int rank) {
    anew_.erase(rank);
    NoteStart(rank);
  }

  // It found the job over. Whether it begins anew at once, since one of `working` has begun
  // after it; otherwise it waits for what becomes of them.
  bool BeginsAnew(int rank, const std::vector<int>& working);

  // Another one is started again: all who waited, who begin anew with it. They wait no more.
  std::vector<int> TakeWaiting();

  // So many wait.
  int waiting() const { return static_cast<int>(waiting_.size()); }

  // Whether its next life is to join the run that it was in, and no other.
  bool Rejoins(int rank) const { return !anew_.contains(rank); }

 private:
  uint64_t starts_ = 0;
  std::map<int, uint64_t> started_;  // by rank, in the order of the starts
  std::set<int> waiting_;
  std::set<int> anew_;
};

}  // namespace syncline
