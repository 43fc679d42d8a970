// What the lossy pushes of one tensor keep from step to step: on the host, or, while a GPU
// encodes its gradients, in the GPU's memory. It lies where it was asked for last.
//
//   kept.OnHost().EncodeTile(transfer, tile, writer, workspace);
//   const KeptGradient::Place place = kept.OnDevice(*gradient.device());
//
// Thread safety: none; while encodings of the tensor are under way, what they use is theirs,
// and nothing is moved.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

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

  // Moves it to the host. What a GPU kept is lost, as zeros, after an error of it.
  GradientMemory& OnHost();

  // In memory of the device, null where nothing is kept: a value for each element, and the
  // units for each tile.
  struct Place {
    float* residual = nullptr;
    SynclineCudaUnits* tile_units = nullptr;
  };
  // Moves it there. REQUIRES: spec().kind is not kMomentumCorrection.
  Place OnDevice(Device& device);

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
  void Fetch(GradientMemory& memory) const;
  void Bring() const;

  const MemorySpec spec_;
  const uint64_t elements_;
  std::optional<GradientMemory> memory_;
  std::unique_ptr<DeviceArrays> on_device_;
};

}  // namespace syncline
