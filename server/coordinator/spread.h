// Where a share of a job is to move so that servers serve about as many each: after a
// take-over one serves two, and the server that comes in place of the dead one none. A
// share is what one server had when the job began; it moves whole, to the server that
// holds its backup (ADR 44).
//
// Each move takes one from a server that serves at least two more than the other: the sum
// of the squares falls, so no move is ever undone by a later one.
//
//   NextMove({{.place = 0, .host = "b", .holder = "c"}, {.place = 1, .host = "b", …}},
//            {{.name = "b"}, {.name = "c"}});      // place 0 to c, which has its backup
//
// Thread safety: none; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/coordinator/admission.h"

namespace syncline {

struct Share {
  size_t place = 0;
  std::string host = {};    // that serves it
  std::string holder = {};  // that has its backup, whole
  bool may_copy = true;     // another one can be made beside that
  uint64_t bytes = 0;
  std::set<std::string> barred = {};  // servers that it must not move to
};
// A server that may be given shares. Others may serve some.
struct ShareHost {
  std::string name = {};
  ServerMemory memory = {};  // with what is placed there of all jobs, backups too
  bool is_steady = true;     // long enough there to be worth a copy
};
struct ShareMove {
  size_t place = 0;
  std::string to = {};
  bool has_copy = true;  // its backup is there already; otherwise it is to be made there
};

// What is to be done next; none: nothing would be better, or nothing is possible. Moves
// to where the backup is come first, as nothing has to be copied before.
std::optional<ShareMove> NextMove(const std::vector<Share>& shares,
                                  const std::vector<ShareHost>& hosts);

}  // namespace syncline
