// Builds the messages by which a worker introduces itself. Its hello identifies the job
// by a digest. The job itself is sent only if the coordinator asks for it (DescribeJob).
// Used by clients, the load generator and tests.
//
//   const Announcement worker = Announce(job, {.rank = 3, .name = "host:77"});
//   link->Send(worker.hello);
//   ...
//   if (message.has_describe_job()) link->Send(worker.declaration);
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace syncline {

// Returns the 32 bytes of the digest.
std::string Sha256(std::string_view bytes);

struct Announcement {
  v1::MemberMessage hello;
  v1::MemberMessage declaration;
};

struct WorkerIdentity {
  uint32_t rank = 0;
  std::string run_id = {};
  std::string name = {};
  absl::Duration failure_timeout = absl::ZeroDuration();  // zero: not set
  bool rejoins = false;
};

Announcement Announce(const v1::JobSpec& job, const WorkerIdentity& worker);

}  // namespace syncline
