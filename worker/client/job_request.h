// What a session asks of the coordinator: its options and tensors, checked and put into a
// hello.
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

// InvalidArgument names the option, its value and what is allowed.
absl::Status CheckSessionOptions(const SessionOptions& options);

// What is allowed, but hardly meant: a sentence for each.
std::vector<std::string> SessionWarnings(const SessionOptions& options);

// Whether what lossy encodings keep is converted when the learning rate changes
// (ExchangeOptions::follow_learning_rate; comm/compression/residual_rate.h).
bool FollowsLearningRate(const TrainingOptions& training);

// Whether a step may go without gradients of some tensors: not with an optimizer that
// steps in one direction for all tensors together.
bool TakesTensorsApart(const TrainingOptions& training);

// InvalidArgument for a bad name, or a shape that is not one of `elements` elements.
absl::Status CheckTensor(const TensorOptions& tensor, size_t elements);
// The number of elements that the shape says; InvalidArgument when that is too many.
absl::StatusOr<size_t> CheckTensor(const TensorOptions& tensor);

// The first message on the control stream, who we are and which job we mean, and that job.
Announcement MakeAnnouncement(const SessionOptions& options,
                              const std::vector<TensorOptions>& tensors);

// Where a job lies.
struct JobLayout {
  std::vector<std::string> shard_addresses;
  std::vector<uint32_t> shard_of_block;
};

// Internal when the coordinator's placement does not name one of its shards for each
// block of tensors with so many elements.
absl::StatusOr<JobLayout> ReadLayout(const v1::WorkerWelcome& welcome,
                                     const std::vector<uint64_t>& elements);

}  // namespace syncline
