// Jobs between their messages and the structs of the state machines: specifications as
// bytes that are digested and forwarded, training settings, and where blocks lie.
//
// Reading checks what the wire cannot express; what a value may be is the state machines'
// business.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

// Of the code that a server sent; one that says nothing, or nothing known, is a fault of
// that server.
absl::Status ErrorOf(uint32_t code, const std::string& message);

JobSpec FromProto(const v1::JobSpec& spec);
TrainingSettings FromProto(const v1::TrainingSpec& training);
UpdateJob FromProto(const v1::UpdateJobRequest& request);
void ToProto(const TrainingSettings& training, v1::TrainingSpec& out);

// As a worker would declare it.
Declaration Declare(const JobSpec& spec);
// Reads the bytes of a v1::JobSpec and digests them.
DeclarationReader WireDeclarations();

// What a server was told: its `declared` has no bytes, its `placement` only
// shard_of_block. InvalidArgument as ValidateJob.
absl::StatusOr<ConfigureJob> FromProto(const v1::ConfigureJob& configure);

// Bytes that many messages share, made once for messages that follow each other.
class SharedBytes {
 public:
  // A v1::Placement.
  const std::string& Of(const std::shared_ptr<const JobPlacement>& placement);
  // v1::ShardAddresses.
  const std::string& Of(const std::shared_ptr<const std::vector<std::string>>& addresses);

 private:
  std::shared_ptr<const JobPlacement> placement_;
  std::string placement_bytes_;
  std::shared_ptr<const std::vector<std::string>> addresses_;
  std::string addresses_bytes_;
};

void ToProto(const ConfigureJob& configure, SharedBytes& shared, v1::ConfigureJob& out);

}  // namespace syncline
