#include "worker/client/kept_gradient.h"

#include <cstddef>
#include <span>
#include <vector>

#include "comm/base/check.h"
#include "comm/base/tiling.h"

namespace syncline {
namespace {

// The two types are copied to each other as bytes.
static_assert(sizeof(GradientUnits) == sizeof(SynclineCudaUnits));
static_assert(offsetof(GradientUnits, loss_scale) ==
              offsetof(SynclineCudaUnits, loss_scale));
static_assert(offsetof(GradientUnits, learning_rate) ==
              offsetof(SynclineCudaUnits, learning_rate));

}  // namespace

GradientMemory& KeptGradient::OnHost() {
  if (memory_) return *memory_;
  memory_.emplace(spec_, elements_);
  if (is_on_device_) Fetch(*memory_);
  is_on_device_ = false;
  return *memory_;
}

std::optional<KeptGradient::Place> KeptGradient::OnDevice(Device& device) {
  SYNCLINE_CHECK(spec_.kind != MemoryKind::kMomentumCorrection);
  if (!keeps()) return Place{};
  if (is_on_device_ && &on_device_->device != &device) OnHost();
  if (!is_on_device_) {
    if (!Reserve(device)) return std::nullopt;
    Bring();
    is_on_device_ = true;
    memory_.reset();
  }
  return Place{
      .residual = reinterpret_cast<float*>(on_device_->residual.data()),
      .tile_units = reinterpret_cast<SynclineCudaUnits*>(on_device_->tile_units.data())};
}

// Reserves memory on the device. After a failure it never tries again: the program's own
// needs vary, and an attempt at each step would be slow.
bool KeptGradient::Reserve(Device& device) {
  if (has_no_room_) return false;
  if (on_device_ == nullptr || &on_device_->device != &device) {
    on_device_ = std::make_unique<DeviceArrays>(device);
  }
  if (on_device_->residual.TryReserve(elements_ * sizeof(float)) &&
      on_device_->tile_units.TryReserve(TilesOf(elements_) * sizeof(GradientUnits))) {
    return true;
  }
  on_device_ = nullptr;
  has_no_room_ = true;
  return false;
}

// Copies the error feedback to the device. If there is none yet, which is the usual case,
// the device clears its memory, and no zeros are made and copied.
void KeptGradient::Bring() {
  Device& device = on_device_->device;
  std::vector<GradientUnits> units(TilesOf(elements_));
  if (memory_) {
    units = memory_->units();
    device.Write(std::as_bytes(memory_->residual()), on_device_->residual.data());
  } else {
    device.Clear(on_device_->residual.data(), elements_ * sizeof(float));
  }
  device.Write(std::as_bytes(std::span(units)), on_device_->tile_units.data());
}

void KeptGradient::Fetch(GradientMemory& memory) {
  std::vector<float> residual(elements_);
  std::vector<GradientUnits> units(TilesOf(elements_));
  Device& device = on_device_->device;
  device.Read(on_device_->residual.data(), std::as_writable_bytes(std::span(residual)));
  device.Read(on_device_->tile_units.data(), std::as_writable_bytes(std::span(units)));
  status_.Update(device.status());
  if (!status_.ok()) return;
  SYNCLINE_CHECK(memory.Restore({.residual = residual, .units = units}));
}

}  // namespace syncline
