// An operation in progress. The driver of its group advances it without ever blocking.
#pragma once

#include <vector>

#include "absl/status/status.h"

namespace syncline::collective {

class Task {
 public:
  virtual ~Task() = default;

  // Moves data that can move now. Returns whether any moved.
  virtual bool Advance() = 0;
  virtual bool done() const = 0;
  // Not OK: the ranks disagree, and the task has stopped.
  virtual absl::Status status() const = 0;
  // Returns the ranks from which it needs more data than has arrived. Data that arrived
  // counts even if its sender is gone.
  virtual std::vector<int> WaitingFor() const = 0;
};

}  // namespace syncline::collective
