// Says which encodings the kernels of comm/codec/cuda can write and read.
#pragma once

#include <optional>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/codec.h"
#include "comm/codec/cuda/codecs.h"

namespace syncline {

// Returns the encoder that produces the bytes of `codec`, except that a sparse tile may
// use another coder of positions (WithSmallestPositions). Returns nothing if there is no
// such encoder.
std::optional<SynclineCudaCodec> EncoderOnDevice(const Codec& codec);

// Returns the decoder of such tiles, which accepts any options of the encoder.
std::optional<SynclineCudaCodec> DecoderOnDevice(const Codec& codec);

// Returns the bytes in a form that the decoder accepts: the argument itself, or a copy in
// `memory`. Returns nothing if the decoder cannot read this encoding. REQUIRES: a valid
// encoding of `elements` values, and DecoderOnDevice returned a decoder.
std::optional<ByteView> ReadableOnDevice(const Codec& codec, ByteView bytes,
                                         uint32_t elements,
                                         std::vector<std::byte>& memory);

}  // namespace syncline
