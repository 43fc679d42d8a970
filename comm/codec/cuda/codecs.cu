#include "comm/codec/cuda/codecs.h"

#include "comm/codec/cuda/dispatch.cuh"

extern "C" size_t SynclineCudaTileStride(const SynclineCudaCodec* codec) {
  return syncline::gpu::StrideOf(*codec);
}

extern "C" size_t SynclineCudaWorkspaceBytes(const SynclineCudaCodec* codec,
                                             uint64_t elements) {
  return syncline::gpu::ClearedBytes(*codec, elements);
}

extern "C" int SynclineCudaEncode(const SynclineCudaCodec* codec,
                                  const SynclineCudaEncoding* encoding, void* stream) {
  return syncline::gpu::EncodeAll(*codec, *encoding, stream);
}

extern "C" int SynclineCudaDecodeAdd(const SynclineCudaCodec* codec,
                                     const SynclineCudaDecoding* decoding, void* stream) {
  return syncline::gpu::DecodeAll(*codec, *decoding, stream);
}
