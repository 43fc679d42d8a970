#include "comm/device/device_codec.h"

#include "comm/codec/sparse/sparse.h"

namespace syncline {

std::optional<SynclineCudaCodec> EncoderOnDevice(const Codec& codec) {
  const std::optional<DeviceForm> form = codec.device_form();
  if (!form) return std::nullopt;
  SynclineCudaCodec encoder = {.id = static_cast<uint32_t>(codec.id())};
  if (codec.id() == CodecId::kSparse) {
    encoder.values = static_cast<uint32_t>(form->values);
    encoder.ratio = form->ratio;
  } else {
    encoder.block_log2 = form->block_log2;
    encoder.stochastic = form->is_stochastic ? 1 : 0;
  }
  return encoder;
}

std::optional<SynclineCudaCodec> DecoderOnDevice(const Codec& codec) {
  switch (codec.id()) {
    case CodecId::kSign:
    case CodecId::kInt8:
    case CodecId::kSparse:
      return SynclineCudaCodec{.id = static_cast<uint32_t>(codec.id())};
    default:
      return std::nullopt;
  }
}

std::optional<ByteView> ReadableOnDevice(const Codec& codec, ByteView bytes,
                                         uint32_t elements,
                                         std::vector<std::byte>& memory) {
  if (codec.id() != CodecId::kSparse) return bytes;
  return WithPlainPositions(bytes, elements, memory);
}

}  // namespace syncline
