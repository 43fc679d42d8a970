#include "worker/c/device.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "worker/c/handles.h"

namespace syncline::c {

absl::StatusOr<Device*> DeviceOf(uint64_t number) {
  if (number == 0) return nullptr;
  const uint64_t ordinal = number - 1;
  if (ordinal > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("device is ", number,
                     ", but must be 0, which is host memory, or 1 + the number of a CUDA "
                     "device"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(Device* const device,
                            Device::Open(static_cast<int32_t>(ordinal)));
  SYNCLINE_RETURN_IF_ERROR(device->status());
  return device;
}

}  // namespace syncline::c

syncline_code syncline_device_check(uint64_t device) {
  return syncline::c::Guarded([&] { return syncline::c::DeviceOf(device).status(); });
}
