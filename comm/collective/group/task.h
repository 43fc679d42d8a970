// An operation under way: advanced by whoever drives its group, without ever blocking.
#pragma once

#include <vector>

#include "absl/status/status.h"

namespace syncline::collective {

class Task {
 public:
  virtual ~Task() = default;

  // Moves what can move now. Whether anything moved.
  virtual bool Advance() = 0;
  virtual bool done() const = 0;
  // Not OK: ranks disagree, and nothing moves any more.
  virtual absl::Status status() const = 0;
  // The ranks of which it needs more than they have given so far. What they have given
  // counts also when they are gone.
  virtual std::vector<int> WaitingFor() const = 0;
};

}  // namespace syncline::collective
