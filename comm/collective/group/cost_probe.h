// Measures the costs of the model by which groups choose algorithms: latency, message and
// byte between two ranks, and a reduced byte.
//
// One rank of a pair measures; the other one answers until it is told to stop. Only the
// measuring rank's clock is used, and only differences of its times.
//
// Takes about 10 ms within a rack. On slower links it sends at least 200 KiB, and waits
// for a dozen answers. The best of at least three times counts, because other programs
// take this one's core now and then.
//
//   LinkCost cost = *MeasureLink(peer);          // on one rank
//   absl::Status status = AnswerProbes(peer);    // on the other
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "comm/collective/schedule/select.h"

namespace syncline::collective {

// The other rank of a pair.
class ProbePeer {
 public:
  virtual ~ProbePeer() = default;

  // Blocking. Messages arrive in order, and the receiver names the right size.
  virtual absl::Status Send(ByteView message) = 0;
  virtual absl::Status Receive(MutableByteView message) = 0;
  virtual absl::Duration Now() = 0;
};

absl::StatusOr<LinkCost> MeasureLink(ProbePeer& peer);
absl::Status AnswerProbes(ProbePeer& peer);

// Returns the seconds per byte that this thread needs to add FP32 values.
double MeasureReduction(absl::FunctionRef<absl::Duration()> now);

}  // namespace syncline::collective
