// Devices as syncline.h numbers them: 0 is host memory, n is CUDA device n - 1.
//
// Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "comm/device/device.h"

namespace syncline::c {

// Returns null for host memory. Fails with Unavailable if tensors cannot be in that
// memory, and with InvalidArgument if there is no such number.
absl::StatusOr<Device*> DeviceOf(uint64_t number);

}  // namespace syncline::c
