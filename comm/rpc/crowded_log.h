// Logs, also to the audit log, that connections of an address were closed to make room
// (front_door.h): the 1st, 2nd, 4th, 8th … time for each address.
//
//   CrowdedLog crowded(log, audit);
//   options.on_crowded = [&](const std::string& source) { crowded.Say(source); };
//
// Thread safety: any thread.
#pragma once

#include <string>
#include <utility>

#include "comm/base/log.h"
#include "comm/base/repeats.h"

namespace syncline {

class CrowdedLog {
 public:
  explicit CrowdedLog(Logger log, Logger audit = {})
      : log_(std::move(log)), audit_(std::move(audit)) {}

  void Say(const std::string& source);

 private:
  const Logger log_, audit_;
  Repeats times_;  // by source
};

}  // namespace syncline
