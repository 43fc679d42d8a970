// How long a server must have been attached before it is worth a copy of a share. A
// server that dies again and again costs a copy each time. So each further life of its
// name that was given one must last twice as long before the next one is given a copy.
//
//   Newcomers newcomers(failure_timeout);
//   newcomers.IsSteady(server, now);   // attached for a failure timeout: true
//   newcomers.Give(server, now);       // a copy is made there
//   newcomers.IsSteady(its_next_life, now);  // after twice the failure timeout
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "server/coordinator/job_context.h"

namespace syncline {

class Newcomers {
 public:
  explicit Newcomers(absl::Duration failure_timeout)
      : failure_timeout_(failure_timeout) {}

  // Notes that this life of the server is given a copy.
  void Give(const JobServer& server, absl::Duration now);
  // Whether it has been attached for long enough to be given one. A life that was given
  // one stays steady.
  bool IsSteady(const JobServer& server, absl::Duration now) const;
  // Whether an earlier life was given one not long ago, and this one is not steady yet.
  bool IsUnsteadyAgain(const JobServer& server, absl::Duration now) const;

 private:
  struct Given {
    uint32_t server = 0;          // the number of the last life that was given a copy
    int lives = 0;                // that were given copies, not long after each other
    absl::Duration last_at = {};  // when the last of them was given the last one
  };
  // Null: none of its lives was given a copy lately.
  const Given* Find(const std::string& name, absl::Duration now) const;

  const absl::Duration failure_timeout_;
  std::map<std::string, Given> given_;  // by name
};

}  // namespace syncline
