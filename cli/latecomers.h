// Workers that were started again, and came back to a job that all others have left
// (kExitJobOver).
//
// The others may have finished the job, or may have left it with errors and begin it
// again. So latecomers wait. If a new run gathers workers, latecomers are started as its
// members. If no other worker is running, there is nothing left for them to do.
//
// Thread safety: none.
#pragma once

#include <set>
#include <vector>

namespace syncline {

class Latecomers {
 public:
  // Records a worker that found the job over. It waits.
  void Wait(int rank) { waiting_.insert(rank); }

  // A new run needs workers. Returns those that waited, to be started as its members. No
  // worker waits afterwards.
  std::vector<int> BeginAnew();

  // Records that a worker failed and is restarted. It rejoins the run that it was in.
  void NoteRestart(int rank) { anew_.erase(rank); }

  // Number of waiting workers.
  int waiting() const { return static_cast<int>(waiting_.size()); }

  // Whether the worker's next process must rejoin the run that it was in, and begin no
  // other.
  bool Rejoins(int rank) const { return !anew_.contains(rank); }

 private:
  std::set<int> waiting_;
  std::set<int> anew_;
};

}  // namespace syncline
