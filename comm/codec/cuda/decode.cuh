// Decoding: accumulator += weight * decoded, tile by tile. The bytes are checked as in
// Codec::DecodeAdd; a tile that fails adds nothing.
#pragma once

#include "comm/codec/cuda/scaled_encode.cuh"
#include "comm/codec/cuda/top_k.cuh"

namespace syncline::SYNCLINE_GPU {

struct DecodeArguments {
  const unsigned char* bytes = nullptr;
  const uint32_t* tile_bytes = nullptr;
  uint64_t stride = 0;
  float weight = 1;
  float* accumulator = nullptr;
  uint64_t elements = 0;
  uint32_t* refused = nullptr;
};

struct DecodeShared {
  uint32_t bad[kThreads / kWarp];
};

// Returns whether `vote` is true in any thread of the block. A kernel may call it only
// once.
SYNCLINE_DEVICE bool BlockAny(bool vote, DecodeShared& shared) {
  const uint32_t votes = WarpBallot(vote);
  if (Lane() == 0) shared.bad[Warp()] = votes;
  BlockBarrier();
  uint32_t all = 0;
  for (const uint32_t of_warp : shared.bad) all |= of_warp;
  return all != 0;
}

// accumulator[i] += decode(i) for the part. `decode` returns four neighbours from element
// i of the part on, where i is a multiple of four. In the last four, some elements may
// not exist.
template <typename Decode>
SYNCLINE_DEVICE void AddDecoded(float* accumulator, const Part& part,
                                const Decode& decode) {
  constexpr uint32_t kAtOnce = 4;  // loads in flight before the first sum
  float* const sums = accumulator + part.offset;
  auto* const fours = reinterpret_cast<Four<float>*>(sums);
  const uint32_t groups = part.elements / 4;
  for (uint32_t base = ThreadIndex(); base < groups; base += kAtOnce * kThreads) {
    Four<float> values[kAtOnce];
    Four<float> sum[kAtOnce];
    SYNCLINE_UNROLL
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      const uint32_t group = base + j * kThreads;
      const uint32_t present = group < groups ? group : groups - 1;
      values[j] = decode(4 * present);
      sum[j] = fours[present];
    }
    SYNCLINE_UNROLL
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      const uint32_t group = base + j * kThreads;
      SYNCLINE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) sum[j].at[i] = Add(sum[j].at[i], values[j].at[i]);
      if (group < groups) fours[group] = sum[j];
    }
  }
  if (ThreadIndex() != 0 || part.elements % 4 == 0) return;
  const Four<float> values = decode(4 * groups);
  SYNCLINE_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    float& sum = sums[4 * groups + i];
    if (4 * groups + i < part.elements) sum = Add(sum, values.at[i]);
  }
}

struct SignFormat {
  static constexpr uint32_t kBits = 1;
  SYNCLINE_DEVICE static Four<float> Decode(const uint32_t* codes, uint32_t element,
                                            float scale, float weight) {
    const uint32_t signs = codes[element / 32] >> (element % 32);
    const float magnitude = Multiply(weight, scale);
    Four<float> values;
    SYNCLINE_UNROLL
    for (uint32_t j = 0; j < 4; ++j) {
      values.at[j] = (signs >> j & 1) != 0 ? -magnitude : magnitude;
    }
    return values;
  }
};

struct Int8Format {
  static constexpr uint32_t kBits = 8;
  SYNCLINE_DEVICE static Four<float> Decode(const uint32_t* codes, uint32_t element,
                                            float scale, float weight) {
    const uint32_t word = codes[element / 4];
    Four<float> values;
    SYNCLINE_UNROLL
    for (uint32_t j = 0; j < 4; ++j) {
      const auto code = static_cast<int8_t>(word >> (8 * j) & 0xff);
      values.at[j] = Multiply(weight, Multiply(static_cast<float>(code), scale));
    }
    return values;
  }
};

template <typename Format>
struct ScaledDecode {
  using Arguments = DecodeArguments;
  using Shared = DecodeShared;

  SYNCLINE_DEVICE static void Run(Shared& shared, const Arguments& arguments) {
    const Part part = PartAt(BlockIndex(), arguments.elements);
    const uint32_t bytes = arguments.tile_bytes[part.tile];
    const auto* words =
        reinterpret_cast<const uint32_t*>(arguments.bytes + part.tile * arguments.stride);
    const bool refused =
        bytes != 0 && BlockAny(!Fits(words, bytes, part, arguments.stride), shared);
    if (part.last() && ThreadIndex() == 0) arguments.refused[part.tile] = refused ? 1 : 0;
    if (refused || bytes == 0) return;
    const uint32_t block_log2 = words[0];
    const ScaledLayout layout = LayoutOf(part.tile_elements, block_log2, Format::kBits);
    AddDecoded(arguments.accumulator, part, [&](uint32_t i) {
      const uint32_t element = part.first + i;
      const float scale = FloatOf(words[kScalesAt + (element >> block_log2)]);
      return Format::Decode(words + layout.codes, element, scale, arguments.weight);
    });
  }

 private:
  // Makes the checks of this thread; each thread checks one scale.
  SYNCLINE_DEVICE static bool Fits(const uint32_t* words, uint32_t bytes,
                                   const Part& part, uint64_t stride) {
    if (bytes > stride || bytes < sizeof(uint32_t)) return false;
    const uint32_t block_log2 = words[0];
    if (block_log2 < kMinBlockLog2 || block_log2 > kMaxBlockLog2) return false;
    const ScaledLayout layout = LayoutOf(part.tile_elements, block_log2, Format::kBits);
    if (bytes != layout.bytes) return false;
    if (ThreadIndex() < layout.scales && words[kScalesAt + ThreadIndex()] >= kInfinity) {
      return false;  // or it is negative
    }
    const uint32_t used = part.tile_elements * Format::kBits % 8;
    const uint32_t last = reinterpret_cast<const unsigned char*>(words)[bytes - 1];
    return used == 0 || last >> used == 0;
  }
};
static_assert(kTileElements >> kMinBlockLog2 <= kThreads, "a thread for each scale");

struct Bf16Decode {
  using Arguments = DecodeArguments;
  using Shared = DecodeShared;

  SYNCLINE_DEVICE static void Run(Shared& /*shared*/, const Arguments& arguments) {
    const Part part = PartAt(BlockIndex(), arguments.elements);
    const uint32_t bytes = arguments.tile_bytes[part.tile];
    const bool fits = bytes == 2 * part.tile_elements && bytes <= arguments.stride;
    if (part.last() && ThreadIndex() == 0) {
      arguments.refused[part.tile] = bytes != 0 && !fits ? 1 : 0;
    }
    if (!fits) return;
    const auto* halves =
        reinterpret_cast<const uint16_t*>(arguments.bytes + part.tile * arguments.stride);
    AddDecoded(arguments.accumulator, part, [&](uint32_t i) {
      // Reads the tile's padding if the tile ends within the four.
      const auto four = *reinterpret_cast<const Four<uint16_t>*>(halves + part.first + i);
      Four<float> values;
      SYNCLINE_UNROLL
      for (uint32_t j = 0; j < 4; ++j) {
        values.at[j] = Multiply(arguments.weight, FloatOf(uint32_t{four.at[j]} << 16));
      }
      return values;
    });
  }
};

// One block of threads decodes a tile.
struct SparseDecode {
  using Arguments = DecodeArguments;
  using Shared = DecodeShared;

  SYNCLINE_DEVICE static void Run(Shared& shared, const Arguments& arguments) {
    const Part part = PartAt(BlockIndex() * kParts, arguments.elements);
    const uint32_t bytes = arguments.tile_bytes[part.tile];
    const auto* halves =
        reinterpret_cast<const uint16_t*>(arguments.bytes + part.tile * arguments.stride);
    const auto& header = *reinterpret_cast<const SparseHeader*>(halves);
    const bool listed = bytes != 0 && bytes <= arguments.stride &&
                        Fits(header, bytes, part.tile_elements);
    const uint16_t* const indices = halves + sizeof(SparseHeader) / 2;
    const bool every = listed && header.coder == kCoderEvery;
    const bool bad =
        !listed || (!every && !Ascending(indices, header.nonzeros, part.tile_elements));
    const bool refused = BlockAny(bad, shared);
    if (ThreadIndex() == 0) arguments.refused[part.tile] = refused && bytes != 0 ? 1 : 0;
    if (refused) return;
    const uint16_t* const values = indices + (every ? 0 : header.nonzeros);
    for (uint32_t i = ThreadIndex(); i < header.nonzeros; i += kThreads) {
      float& sum = arguments.accumulator[part.offset + (every ? i : indices[i])];
      const uint32_t bits = header.values == kValuesFp32
                                ? values[2 * i] | uint32_t{values[2 * i + 1]} << 16
                                : uint32_t{values[i]} << 16;
      sum = Add(sum, Multiply(arguments.weight, FloatOf(bits)));
    }
  }

 private:
  SYNCLINE_DEVICE static bool Fits(const SparseHeader& header, uint32_t bytes,
                                   uint32_t n) {
    if (bytes < sizeof(SparseHeader) || header.nonzeros > n) return false;
    if (header.values != kValuesFp32 && header.values != kValuesBf16) return false;
    const bool every = header.coder == kCoderEvery;
    if (every ? header.nonzeros != n : header.coder != kCoderU16) return false;
    if (header.rice_bits != 0) return false;
    if (header.index_bytes != (every ? 0 : 2 * header.nonzeros)) return false;
    const uint32_t value_bytes = header.values == kValuesFp32 ? 4 : 2;
    return bytes ==
           sizeof(SparseHeader) + header.index_bytes + value_bytes * header.nonzeros;
  }

  // Makes the checks of this thread.
  SYNCLINE_DEVICE static bool Ascending(const uint16_t* indices, uint32_t count,
                                        uint32_t n) {
    for (uint32_t i = ThreadIndex(); i < count; i += kThreads) {
      if (indices[i] >= n || (i > 0 && indices[i] <= indices[i - 1])) return false;
    }
    return true;
  }
};

}  // namespace syncline::SYNCLINE_GPU
