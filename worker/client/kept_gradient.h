// The error feedback of one tensor: on the host, or in a GPU's memory while that GPU
// encodes the tensor's gradients. OnHost and OnDevice move it there.
//
//   kept.OnHost().EncodeTile(transfer, tile, writer, workspace);
//   if (const auto place = kept.OnDevice(*gradient.device())) ...
//
// Thread safety: none. While encodings of the tensor are under way, they own it, and it
// must not be moved.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "comm/codec/cuda/codecs.h"
#include "comm/compression/memory/gradient_memory.h"
#include "comm/compression/transfer.h"
#include "comm/device/device.h"

namespace syncline {

class KeptGradient {
 public:
  // `elements`: number of the tensor's elements. MemoryKind::kNone keeps nothing.
  KeptGradient(const MemorySpec& spec, uint64_t elements)
      : spec_(spec), elements_(elements) {}

  bool keeps() const { return spec_.kind != MemoryKind::kNone && elements_ > 0; }
  const MemorySpec& spec() const { return spec_; }

  // Moves it to the host. If the GPU that held it has failed, it is lost: it starts from
  // zero, and status() is an error.
  GradientMemory& OnHost();

  // Addresses in the device's memory: a residual for each element, and units for each
  // tile. Null if nothing is kept.
  struct Place {
    float* residual = nullptr;
    SynclineCudaUnits* tile_units = nullptr;
  };
  // Moves it to the device. Empty: the device has no memory for it; it stays on the host,
  // and later calls do not try again. REQUIRES: spec().kind is not kMomentumCorrection.
  std::optional<Place> OnDevice(Device& device);

  // Not OK after something was lost.
  const absl::Status& status() const { return status_; }

 private:
  struct DeviceArrays {
    explicit DeviceArrays(Device& of)
        : device(of),
          residual(of, DeviceBuffer::Place::kDevice),
          tile_units(of, DeviceBuffer::Place::kDevice) {}
    Device& device;
    DeviceBuffer residual;
    DeviceBuffer tile_units;
  };
  bool Reserve(Device& device);
  void Fetch(GradientMemory& memory);
  void Bring();

  const MemorySpec spec_;
  const uint64_t elements_;
  std::optional<GradientMemory> memory_;     // set once it was used on the host
  std::unique_ptr<DeviceArrays> on_device_;  // stays allocated after a move to the host
  bool is_on_device_ = false;
  bool has_no_room_ = false;  // the device has no memory for it
  absl::Status status_;
};

}  // namespace syncline
