#include "comm/codec/cuda/codecs.h"

#include "comm/codec/cuda/dispatch.cuh"

extern "C" size_t SynclineCudaTileStride(const SynclineCudaCodec* codec) {
  return codec == nullptr ? 0 : syncline::gpu::StrideOf(*codec);
}

extern "C" size_t SynclineCudaWorkspaceBytes(const SynclineCudaCodec* codec,
                                             uint64_t elements) {
  return codec == nullptr ? 0 : syncline::gpu::ClearedBytes(*codec, elements);
}

extern "C" int SynclineCudaEncode(const SynclineCudaCodec* codec,
                                  const SynclineCudaEncoding* encoding, void* stream) {
  if (codec == nullptr || encoding == nullptr) return cudaErrorInvalidValue;
  return syncline::gpu::EncodeAll(*codec, *encoding, stream);
}

extern "C" int SynclineCudaDecodeAdd(const SynclineCudaCodec* codec,
                                     const SynclineCudaDecoding* decoding, void* stream) {
  if (codec == nullptr || decoding == nullptr) return cudaErrorInvalidValue;
  return syncline::gpu::DecodeAll(*codec, *decoding, stream);
}

extern "C" const char* SynclineCudaErrorString(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}
