// Implements codecs.h for a device that is the emulated GPU. Its threads run in another
// order than those of the emulator with which the check programs compare it.
#include <cstdlib>
#include <string_view>

#include "comm/codec/cuda/codecs.h"
#include "comm/codec/cuda/emulator/codecs_emulated.h"
#include "comm/codec/cuda/fake/runtime.h"

namespace {

constexpr uint64_t kOtherOrder = 99;

// Whether the device has the given fault, from SYNCLINE_FAKE_FAULT. "bit" flips a bit of
// the first tile's residual, "step" keeps the step of a graph's capture, "error" reports
// an earlier error as its own. The check programs must fail on such a device.
bool HasFault(std::string_view fault) {
  const char* const given = std::getenv("SYNCLINE_FAKE_FAULT");
  return given != nullptr && fault == given;
}

}  // namespace

size_t SynclineCudaTileStride(const SynclineCudaCodec* codec) {
  return syncline::emulated::TileStride(*codec);
}
size_t SynclineCudaWorkspaceBytes(const SynclineCudaCodec* codec, uint64_t elements) {
  return syncline::emulated::WorkspaceBytes(*codec, elements);
}

int SynclineCudaEncode(const SynclineCudaCodec* codec,
                       const SynclineCudaEncoding* encoding, void* stream) {
  auto* const real = static_cast<cudaStream_t>(stream);
  if (encoding->device > 0) return cudaErrorInvalidDevice;
  if (HasFault("error")) {
    const cudaError_t others = cudaGetLastError();
    if (others != cudaSuccess) return others;
  }
  SynclineCudaEncoding given = *encoding;
  if (HasFault("step") && given.now_on_device != nullptr) {
    given.now = *given.now_on_device;
    given.now_on_device = nullptr;
  }
  return syncline::fake::Enqueue(real, [codec = *codec, given] {
    syncline::emulated::EmulatedStream order{.seed = kOtherOrder};
    syncline::emulated::Encode(codec, given, order);
    if (HasFault("bit") && given.residual != nullptr && given.elements > 3) {
      given.residual[3] = -given.residual[3];
    }
  });
}

int SynclineCudaDecodeAdd(const SynclineCudaCodec* codec,
                          const SynclineCudaDecoding* decoding, void* stream) {
  return syncline::fake::Enqueue(
      static_cast<cudaStream_t>(stream), [codec = *codec, given = *decoding] {
        syncline::emulated::EmulatedStream order{.seed = kOtherOrder};
        syncline::emulated::DecodeAdd(codec, given, order);
      });
}

const char* SynclineCudaErrorString(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}
