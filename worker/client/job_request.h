// Checks a session's options and tensors, and makes the messages with which it joins a
// job.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/rpc/announcement.h"
#include "proto/coordinator.pb.h"
#include "worker/client/session.h"

namespace syncline {

// Fails with InvalidArgument, which names the option, its value and what is allowed.
absl::Status CheckSessionOptions(const SessionOptions& options);

// Returns a sentence for each option that is allowed but probably a mistake.
std::vector<std::string> SessionWarnings(const SessionOptions& options);

// Whether error feedback is converted when the learning rate changes
// (ExchangeOptions::follow_learning_rate; comm/compression/residual_rate.h).
bool FollowsLearningRate(const TrainingOptions& training);

// Whether a step may lack gradients of some tensors, and tensors may have different
// learning rates. False for an optimizer that treats all tensors as one vector (lbfgs).
bool TakesTensorsApart(const TrainingOptions& training);

// Fails with InvalidArgument if the name is not valid, or if the shape does not have
// `elements` elements.
absl::Status CheckTensor(const TensorOptions& tensor, size_t elements);
// Returns the number of elements of the shape. Fails with InvalidArgument if the name is
// not valid, or if there are too many elements.
absl::StatusOr<size_t> CheckTensor(const TensorOptions& tensor);

// Returns the hello, which is the first message on the control stream and names worker
// and job, and the declaration of the job.
Announcement MakeAnnouncement(const SessionOptions& options,
                              const std::vector<TensorOptions>& tensors);

// The placement of a job.
struct JobLayout {
  std::vector<std::string> shard_addresses;
  std::vector<uint32_t> shard_of_block;
};

// Reads the placement from the welcome. Fails with Internal if it does not name a shard
// for each block of tensors with these numbers of elements.
absl::StatusOr<JobLayout> ReadLayout(const v1::WorkerWelcome& welcome,
                                     const std::vector<uint64_t>& elements);

}  // namespace syncline
