// codecs.h on the emulated GPU, from the same source, for tests. Pointers are host
// memory.
#pragma once

#include "comm/codec/cuda/codecs.h"
#include "comm/codec/cuda/emulator/emulator.h"

namespace syncline::emulated {

size_t TileStride(const SynclineCudaCodec& codec);
size_t WorkspaceBytes(const SynclineCudaCodec& codec, uint64_t elements);
int Encode(const SynclineCudaCodec& codec, const SynclineCudaEncoding& encoding,
           EmulatedStream& stream);
int DecodeAdd(const SynclineCudaCodec& codec, const SynclineCudaDecoding& decoding,
              EmulatedStream& stream);

}  // namespace syncline::emulated
