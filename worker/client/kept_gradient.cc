#include "worker/client/kept_gradient.h"

#include <cstddef>
#include <span>
#include <vector>

#include "comm/base/check.h"
#include "comm/base/tiling.h"

namespace syncline {
namespace {

// They are copied as bytes between the two.
static_assert(sizeof(GradientUnits) == sizeof(SynclineCudaUnits));
static_assert(offsetof(GradientUnits, loss_scale) ==
              offsetof(SynclineCudaUnits, loss_scale));
static_assert(offsetof(GradientUnits, learning_rate) ==
              offsetof(SynclineCudaUnits, learning_rate));

}  // namespace

GradientMemory& KeptGradient::OnHost() {
  if (!memory_) {
    memory_.emplace(spec_, elements_);
    if (on_device_ != nullptr) Fetch(*memory_);
    on_device_ = nullptr;
  }
  return *memory_;
}

KeptGradient::Place KeptGradient::OnDevice(Device& device) {
  SYNCLINE_CHECK(spec_.kind != MemoryKind::kMomentumCorrection);
  if (!keeps()) return {};
  if (on_device_ != nullptr && &on_device_->device != &device) OnHost();
  if (on_device_ == nullptr) {
    // Zeros of the host take room only where they are written.
    const GradientMemory& memory = OnHost();
    on_device_ = std::make_unique<DeviceArrays>(device);
    Bring(memory);
    memory_.reset();
  }
  return {
      .residual = reinterpret_cast<float*>(on_device_->residual.data()),
      .tile_units = reinterpret_cast<SynclineCudaUnits*>(on_device_->tile_units.data())};
}

void KeptGradient::Bring(const GradientMemory& memory) const {
  const std::span<const float> residual = memory.residual();
  const std::vector<GradientUnits> units = memory.units();
  if (!on_device_->residual.Reserve(residual.size_bytes()) ||
      !on_device_->tile_units.Reserve(units.size() * sizeof(GradientUnits))) {
    return;
  }
  on_device_->device.Write(std::as_bytes(residual), on_device_->residual.data());
  on_device_->device.Write(std::as_bytes(std::span(units)),
                           on_device_->tile_units.data());
}

void KeptGradient::Fetch(GradientMemory& memory) const {
  if (on_device_->residual.data() == nullptr || !on_device_->device.ok()) return;
  std::vector<float> residual(elements_);
  std::vector<GradientUnits> units(TilesOf(elements_));
  on_device_->device.Read(on_device_->residual.data(),
                          std::as_writable_bytes(std::span(residual)));
  on_device_->device.Read(on_device_->tile_units.data(),
                          std::as_writable_bytes(std::span(units)));
  SYNCLINE_CHECK(memory.Restore({.residual = residual, .units = units}));
}

}  // namespace syncline
