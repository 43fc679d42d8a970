// Converts the settings of a job to and from the fields of a v1::JobSpec. The table in
// comm/job/job_settings.h names the fields; no field is named here.
//
// Thread safety: pure functions.
#pragma once

#include "comm/job/job_settings.h"
#include "proto/coordinator.pb.h"

namespace syncline {

void ToProto(const JobSettings& settings, v1::JobSpec& job);

// Reads the settings. Fields that the message lacks get their default. Values are not
// checked: see CheckJobSettings.
JobSettings JobSettingsOf(const v1::JobSpec& job);

}  // namespace syncline
