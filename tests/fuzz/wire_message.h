// Messages of the control plane with all fields set, and random changes of fields. Both
// follow the descriptors, so a new field needs no change here.
//
// Thread safety: functions without state.
#pragma once

#include <random>
#include <vector>

#include "google/protobuf/message.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/job_spec.h"

namespace syncline::fuzz {

// A small job that servers accept.
JobSpec SomeJob();

// Sets all fields, also those of messages inside: each number and text is different, and
// lists have two elements. Serialized messages inside (JobSpec, Placement) are those of
// SomeJob. Leaves out oneofs.
void Fill(google::protobuf::Message& message);

// Return one message for each kind of body, filled. Fields of the link are not set.
std::vector<v1::MemberMessage> MemberMessages();
std::vector<v1::CoordinatorMessage> CoordinatorMessages();

// Changes up to four fields, at any depth.
void Alter(google::protobuf::Message& message, std::mt19937& random);

}  // namespace syncline::fuzz
