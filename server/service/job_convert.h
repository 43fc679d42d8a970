// Converts jobs between protocol messages and the structs of the state machines: job
// specifications, which are digested and forwarded as bytes, training settings, and
// placements of blocks.
//
// Reading checks only what the wire cannot express. The state machines check the values.
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

// Returns an error's text as a message can carry it. Protobuf refuses texts that are no
// UTF-8, such as the name of a directory in Latin-1. Long texts are cut.
std::string SendableError(std::string_view text);
// Returns the error that a server sent. It is Internal if the code is OK or unknown,
// because the server is then faulty.
absl::Status ErrorOf(uint32_t code, const std::string& message);

JobSpec FromProto(const v1::JobSpec& spec);
TrainingSettings FromProto(const v1::TrainingSpec& training);
UpdateJob FromProto(const v1::UpdateJobRequest& request);
void ToProto(const TrainingSettings& training, v1::TrainingSpec& out);

// Returns the declaration that a worker would send for this job.
Declaration Declare(const JobSpec& spec);
// Returns functions that parse and digest the bytes of a v1::JobSpec.
DeclarationReader WireDeclarations();

// Reads an order to a server. In the result `declared` has no bytes, and `placement` has
// only shard_of_block. Fails with InvalidArgument as ValidateJob does.
absl::StatusOr<ConfigureJob> FromProto(const v1::ConfigureJob& configure);

// Serializes placements and addresses. The bytes of the last one are kept, because many
// messages in a row share them.
class SharedBytes {
 public:
  // Returns a serialized v1::Placement.
  const std::string& Of(const std::shared_ptr<const JobPlacement>& placement);
  // Returns serialized v1::ShardAddresses.
  const std::string& Of(const std::shared_ptr<const std::vector<std::string>>& addresses);

 private:
  std::shared_ptr<const JobPlacement> placement_;
  std::string placement_bytes_;
  std::shared_ptr<const std::vector<std::string>> addresses_;
  std::string addresses_bytes_;
};

void ToProto(const ConfigureJob& configure, SharedBytes& shared, v1::ConfigureJob& out);

}  // namespace syncline
