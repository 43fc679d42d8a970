// The settings of a job and their fields of a v1::JobSpec, by the table of
// comm/job/job_settings.h: a row names its field, and nothing here names any.
//
// Thread safety: pure functions.
#pragma once

#include "comm/job/job_settings.h"
#include "proto/coordinator.pb.h"

namespace syncline {

void ToProto(const JobSettings& settings, v1::JobSpec& job);

// What the message does not say is the default. What a value may be is not looked at: see
// CheckJobSettings.
JobSettings JobSettingsOf(const v1::JobSpec& job);

}  // namespace syncline
