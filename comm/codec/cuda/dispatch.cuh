// Checks the arguments and starts the kernels: the functions of codecs.h on the real or
// the emulated GPU.
#pragma once

#include "comm/codec/cuda/codecs.h"

#include <algorithm>

#include "comm/codec/cuda/decode.cuh"
#include "comm/codec/cuda/scaled_encode.cuh"
#include "comm/codec/cuda/top_k.cuh"

namespace syncline::SYNCLINE_GPU {
enum Id : uint32_t { kBf16Id = 2, kSignId = 5, kInt8Id = 6, kSparseId = 16 };

using Codec = SynclineCudaCodec;
using Encoding = SynclineCudaEncoding;
using Decoding = SynclineCudaDecoding;

constexpr size_t kPadding = 64;
constexpr size_t kTicketBytes = 64;

// Maximum number of tiles in one launch, which limits the workspace. Top-k: 16 MB of
// selection boards, enough tiles to keep any device busy. Others: 2^32 elements.
constexpr uint64_t kSparseTilesAtOnce = 1024;
constexpr uint64_t kScaledTilesAtOnce = (uint64_t{1} << 32) / kTileElements;

inline size_t Padded(size_t bytes) {
  return (bytes + kPadding - 1) / kPadding * kPadding;
}

inline bool IsScaled(const Codec& codec) {
  return codec.id == kSignId || codec.id == kInt8Id;
}

inline bool IsValid(const Codec& codec) {
  if (codec.struct_bytes != sizeof(Codec)) return false;
  if (codec.id == kBf16Id) return true;
  if (codec.id == kSparseId) {
    return codec.ratio > 0 && codec.ratio <= 1 &&
           (codec.values == kValuesFp32 || codec.values == kValuesBf16);
  }
  return IsScaled(codec) && codec.block_log2 >= kMinBlockLog2 &&
         codec.block_log2 <= kMaxBlockLog2 && codec.stochastic <= 1;
}

// Null counts as aligned.
inline bool IsAligned(const void* pointer, size_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}
inline bool IsArray(const void* pointer, size_t alignment) {
  return pointer != nullptr && IsAligned(pointer, alignment);
}

// The same as TopCount in comm/codec/sparse/selector.h.
inline uint32_t TopCount(double ratio, uint32_t n) {
  const auto k = static_cast<uint32_t>(ratio * n);
  return std::min(std::max(k, 1u), n);
}

inline size_t StrideOf(const Codec& codec) {
  if (!IsValid(codec)) return 0;
  if (codec.id == kBf16Id) return Padded(size_t{2} * kTileElements);
  if (codec.id == kSparseId) {
    constexpr uint32_t kMost = LargestListed(kTileElements);
    const uint32_t k = TopCount(codec.ratio, kTileElements);
    const uint32_t listed = SparseBytes(std::min(k, kMost), kTileElements, codec.values);
    const uint32_t every = SparseBytes(kTileElements, kTileElements, codec.values);
    return Padded(k > kMost ? std::max(listed, every) : listed);
  }
  const uint32_t bits = codec.id == kSignId ? SignRule::kBits : 8;
  return Padded(LayoutOf(kTileElements, codec.block_log2, bits).bytes);
}

// Bytes of workspace for each tile.
inline size_t BoardBytes(const Codec& codec) {
  if (codec.id == kSparseId) return sizeof(SelectionBoard);
  const bool chained = codec.id == kSignId && codec.block_log2 > kPartLog2;
  return sizeof(Board) + (chained ? sizeof(Chain) : 0);
}

inline uint64_t TilesAtOnce(const Codec& codec) {
  return codec.id == kSparseId ? kSparseTilesAtOnce : kScaledTilesAtOnce;
}

inline size_t ClearedBytes(const Codec& codec, uint64_t elements) {
  const uint64_t tiles = (elements + kTileElements - 1) / kTileElements;
  return kTicketBytes + std::min(tiles, TilesAtOnce(codec)) * BoardBytes(codec);
}

// The elements of one launch.
struct Chunk {
  uint64_t first = 0;
  uint64_t elements = 0;

  uint64_t first_tile() const { return first / kTileElements; }
  uint64_t tiles() const { return (elements + kTileElements - 1) / kTileElements; }
};

inline Input InputOf(const Encoding& encoding, const Chunk& chunk) {
  const size_t bytes = DTypeBytes(static_cast<DType>(encoding.dtype));
  return {.gradient =
              static_cast<const unsigned char*>(encoding.gradient) + chunk.first * bytes,
          .residual =
              encoding.residual == nullptr ? nullptr : encoding.residual + chunk.first,
          .decay = encoding.decay,
          .now = encoding.now,
          .now_on_device = encoding.now_on_device,
          .tile_units = encoding.tile_units == nullptr
                            ? nullptr
                            : encoding.tile_units + chunk.first_tile(),
          .elements = chunk.elements};
}

template <typename Rule, DType kType>
int EncodeScaled(const Codec& codec, const Encoding& encoding, const Chunk& chunk,
                 void* stream) {
  using Kernel = ScaledEncode<Rule, kType>;
  const size_t stride = StrideOf(codec);
  auto* const workspace = static_cast<unsigned char*>(encoding.workspace);
  auto* const boards = reinterpret_cast<Board*>(workspace + kTicketBytes);
  typename Kernel::Arguments arguments = {
      .input = InputOf(encoding, chunk),
      .block_log2 = codec.block_log2,
      .tensor = encoding.tensor,
      .first_element = encoding.first_element + chunk.first,
      .out = reinterpret_cast<uint32_t*>(static_cast<unsigned char*>(encoding.out) +
                                         chunk.first_tile() * stride),
      .stride_words = stride / sizeof(uint32_t),
      .tile_bytes = encoding.tile_bytes + chunk.first_tile(),
      .tickets = reinterpret_cast<uint32_t*>(workspace),
      .boards = boards,
      .chains = reinterpret_cast<Chain*>(boards + chunk.tiles())};
  return Launch<Kernel>(PartsOf(chunk.elements), arguments, stream);
}

template <DType kType>
int EncodeTopK(const Codec& codec, const Encoding& encoding, const Chunk& chunk,
               void* stream) {
  using Kernel = TopKEncode<kType>;
  const size_t stride = StrideOf(codec);
  auto* const workspace = static_cast<unsigned char*>(encoding.workspace);
  const auto last = static_cast<uint32_t>(chunk.elements % kTileElements);
  typename Kernel::Arguments arguments = {
      .input = InputOf(encoding, chunk),
      .k = TopCount(codec.ratio, kTileElements),
      .last_k = TopCount(codec.ratio, last),
      .values = codec.values,
      .out = reinterpret_cast<uint16_t*>(static_cast<unsigned char*>(encoding.out) +
                                         chunk.first_tile() * stride),
      .stride_halves = stride / sizeof(uint16_t),
      .tile_bytes = encoding.tile_bytes + chunk.first_tile(),
      .tickets = reinterpret_cast<uint32_t*>(workspace),
      .boards = reinterpret_cast<SelectionBoard*>(workspace + kTicketBytes)};
  return Launch<Kernel>(PartsOf(chunk.elements), arguments, stream);
}

template <DType kType>
int EncodeChunk(const Codec& codec, const Encoding& encoding, const Chunk& chunk,
                void* stream) {
  const int cleared =
      ClearAsync(encoding.workspace, ClearedBytes(codec, chunk.elements), stream);
  if (cleared != kSuccess) return cleared;
  if (codec.id == kSparseId) return EncodeTopK<kType>(codec, encoding, chunk, stream);
  if (codec.id == kSignId) {
    return EncodeScaled<SignRule, kType>(codec, encoding, chunk, stream);
  }
  if (codec.stochastic != 0) {
    return EncodeScaled<Int8Rule<Rounding::kStochastic>, kType>(codec, encoding, chunk,
                                                                stream);
  }
  return EncodeScaled<Int8Rule<Rounding::kNearest>, kType>(codec, encoding, chunk,
                                                           stream);
}

inline bool IsValid(const Codec& codec, const Encoding& encoding) {
  if (!IsValid(codec) || codec.id == kBf16Id ||
      encoding.struct_bytes != sizeof(Encoding)) {
    return false;
  }
  const bool has_arrays =
      IsArray(encoding.gradient, 16) && IsArray(encoding.workspace, 16) &&
      IsArray(encoding.out, kPadding) && IsArray(encoding.tile_bytes, sizeof(uint32_t));
  return (encoding.elements == 0 || has_arrays) && encoding.dtype >= 1 &&
         encoding.dtype <= 3 && encoding.first_element % kTileElements == 0 &&
         IsAligned(encoding.residual, 16) &&
         IsAligned(encoding.now_on_device, alignof(Step)) &&
         IsAligned(encoding.tile_units, alignof(Units));
}

// Whether each replay of a captured graph would repeat the random bits or the units of
// the step at which it was captured.
inline bool RepeatsItsStep(const Codec& codec, const Encoding& encoding) {
  const bool rounds_at_random = codec.id == kInt8Id && codec.stochastic != 0;
  return encoding.now_on_device == nullptr &&
         (rounds_at_random || encoding.tile_units != nullptr);
}

template <DType kType>
int EncodeChunks(const Codec& codec, const Encoding& encoding, void* stream) {
  const uint64_t at_once = TilesAtOnce(codec) * kTileElements;
  for (Chunk chunk; chunk.first < encoding.elements; chunk.first += chunk.elements) {
    chunk.elements = std::min(at_once, encoding.elements - chunk.first);
    // One launch must not cross a multiple of 2^32 elements, where the keys of random
    // bits change.
    const uint64_t window = uint64_t{1} << 32;
    const uint64_t into = (encoding.first_element + chunk.first) % window;
    chunk.elements = std::min(chunk.elements, window - into);
    const int launched = EncodeChunk<kType>(codec, encoding, chunk, stream);
    if (launched != kSuccess) return launched;
  }
  return kSuccess;
}

inline int EncodeAll(const Codec& codec, const Encoding& encoding, void* stream) {
  if (!IsValid(codec, encoding)) return kInvalidValue;
  if (encoding.elements == 0) return kSuccess;
  const DeviceGuard guard(encoding.device);
  if (guard.error() != kSuccess) return guard.error();
  if (RepeatsItsStep(codec, encoding)) {
    const int allowed = MustNotCapture(stream);
    if (allowed != kSuccess) return allowed;
  }
  switch (static_cast<DType>(encoding.dtype)) {
    case DType::kF32:
      return EncodeChunks<DType::kF32>(codec, encoding, stream);
    case DType::kBf16:
      return EncodeChunks<DType::kBf16>(codec, encoding, stream);
    case DType::kF16:
      return EncodeChunks<DType::kF16>(codec, encoding, stream);
  }
  return kInvalidValue;
}

inline bool IsValid(const Codec& codec, const Decoding& decoding) {
  const bool is_known = codec.id == kBf16Id || codec.id == kSparseId || IsScaled(codec);
  const bool has_arrays = IsArray(decoding.bytes, kPadding) &&
                          IsArray(decoding.tile_bytes, sizeof(uint32_t)) &&
                          IsArray(decoding.accumulator, 16) &&
                          IsArray(decoding.refused, sizeof(uint32_t));
  return is_known && codec.struct_bytes == sizeof(Codec) &&
         decoding.struct_bytes == sizeof(Decoding) &&
         (decoding.elements == 0 || has_arrays) && decoding.stride % kPadding == 0;
}

inline int DecodeAll(const Codec& codec, const Decoding& decoding, void* stream) {
  if (!IsValid(codec, decoding)) return kInvalidValue;
  if (decoding.elements == 0) return kSuccess;
  const DeviceGuard guard(decoding.device);
  if (guard.error() != kSuccess) return guard.error();
  const DecodeArguments arguments = {
      .bytes = static_cast<const unsigned char*>(decoding.bytes),
      .tile_bytes = decoding.tile_bytes,
      .stride = decoding.stride,
      .weight = decoding.weight,
      .accumulator = decoding.accumulator,
      .elements = decoding.elements,
      .refused = decoding.refused};
  const uint32_t parts = PartsOf(decoding.elements);
  switch (codec.id) {
    case kBf16Id:
      return Launch<Bf16Decode>(parts, arguments, stream);
    case kSignId:
      return Launch<ScaledDecode<SignFormat>>(parts, arguments, stream);
    case kInt8Id:
      return Launch<ScaledDecode<Int8Format>>(parts, arguments, stream);
    case kSparseId:
      return Launch<SparseDecode>((parts + kParts - 1) / kParts, arguments, stream);
    default:
      return kInvalidValue;
  }
}

}  // namespace syncline::SYNCLINE_GPU
