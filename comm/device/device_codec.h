// Which encodings the kernels of comm/codec/cuda make and read.
#pragma once

#include <optional>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/codec.h"
#include "comm/codec/cuda/codecs.h"

namespace syncline {

// The encoder that makes the bytes of `codec`, but for the coder of a sparse tile's
// positions (WithSmallestPositions). Nothing: there is none.
std::optional<SynclineCudaCodec> EncoderOnDevice(const Codec& codec);

// The decoder of such tiles, whatever options their encoder has.
std::optional<SynclineCudaCodec> DecoderOnDevice(const Codec& codec);

// The bytes as that decoder reads them: themselves, or a copy in `memory`. Nothing: it
// cannot read them. REQUIRES: a valid encoding of `elements` values, DecoderOnDevice.
std::optional<ByteView> ReadableOnDevice(const Codec& codec, ByteView bytes,
                                         uint32_t elements,
                                         std::vector<std::byte>& memory);

}  // namespace syncline
