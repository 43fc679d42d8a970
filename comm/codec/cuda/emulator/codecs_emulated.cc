#include "comm/codec/cuda/emulator/codecs_emulated.h"

#include "comm/codec/cuda/dispatch.cuh"

namespace syncline::emulated {

size_t TileStride(const SynclineCudaCodec& codec) { return StrideOf(codec); }

size_t WorkspaceBytes(const SynclineCudaCodec& codec, uint64_t elements) {
  return ClearedBytes(codec, elements);
}

int Encode(const SynclineCudaCodec& codec, const SynclineCudaEncoding& encoding,
           EmulatedStream& stream) {
  return EncodeAll(codec, encoding, &stream);
}

int DecodeAdd(const SynclineCudaCodec& codec, const SynclineCudaDecoding& decoding,
              EmulatedStream& stream) {
  return DecodeAll(codec, decoding, &stream);
}

}  // namespace syncline::emulated
