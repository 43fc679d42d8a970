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
    on_device_ = std::make_unique<DeviceArrays>(device);
    Bring();
    memory_.reset();
  }
  return {
      .residual = reinterpret_cast<float*>(on_device_->residual.data()),
      .tile_units = reinterpret_cast<SynclineCudaUnits*>(on_device_->tile_units.data())};
}

// Memory of a device is zeros at first.
void KeptGradient::Bring() const {
  const std::vector<GradientUnits> units =
      memory_ ? memory_->units() : std::vector<GradientUnits>(TilesOf(elements_));
  if (!on_device_->residual.Reserve(elements_ * sizeof(float)) ||
      !on_device_->tile_units.Reserve(units.size() * sizeof(GradientUnits))) {
    return;
  }
  Device& device = on_device_->device;
  if (memory_) {
    device.Write(std::as_bytes(memory_->residual()), on_device_->residual.data());
  }
  device.Write(std::as_bytes(std::span(units)), on_device_->tile_units.data());
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
