// What the lossy pushes of one tensor keep from step to step: on the host, or, while a GPU
// encodes its gradients, in the GPU's memory. It lies where it was asked for last.
//
//   kept.OnHost().EncodeTile(transfer, tile, writer, workspace);
//   if (const auto place = kept.OnDevice(*gradient.device())) ...
//
// Thread safety: none; while encodings of the tensor are under way, what they use is theirs,
// and nothing is moved.
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
  // Of a tensor of `elements` values; MemoryKind::kNone keeps nothing.
  KeptGradient(const MemorySpec& spec, uint64_t elements)
      : spec_(spec), elements_(elements) {}

  bool keeps() const { return spec_.kind != MemoryKind::kNone && elements_ > 0; }
  const MemorySpec& spec() const { return spec_; }

  // Moves it to the host. What a GPU kept that has failed is lost: it is as if nothing had
  // been kept, and status() says so.
  GradientMemory& OnHost();

  // In memory of the device, null where nothing is kept: a value for each element, and the
  // units for each tile.
  struct Place {
    float* residual = nullptr;
    SynclineCudaUnits* tile_units = nullptr;
  };
  // Moves it there. Nothing: the device has no memory for it, now and for good, and it is
  // on the host. REQUIRES: spec().kind is not kMomentumCorrection.
  std::optional<Place> OnDevice(Device& device);

  // Not OK once something was lost.
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
  std::optional<GradientMemory> memory_;     // where it is on the host, or nowhere yet
  std::unique_ptr<DeviceArrays> on_device_;  // stays there when it moves to the host
  bool is_on_device_ = false;
  bool has_no_room_ = false;  // on the device
  absl::Status status_;
};

}  // namespace syncline
