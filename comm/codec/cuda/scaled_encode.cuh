// Encodes with a scale for each block (sign and int8), in one pass over the gradient and
// the residual. comm/codec/block_scales.h describes the layout.
#pragma once

#include "comm/codec/cuda/load.cuh"
#include "comm/codec/cuda/scaled_rules.cuh"

namespace syncline::SYNCLINE_GPU {

constexpr uint32_t kMinBlockLog2 = 8;
constexpr uint32_t kMaxBlockLog2 = 16;
constexpr uint32_t kWordsPer64Bytes = 16;

// Positions in an encoded tile, in words of four bytes.
struct ScaledLayout {
  uint32_t scales = 0;  // number of scales
  uint32_t codes = 0;   // where the codes begin
  uint32_t end = 0;     // where the codes end, counting a partial word
  uint32_t bytes = 0;   // exact size of the encoding
};

inline constexpr uint32_t kScalesAt = 1;

SYNCLINE_HOST_DEVICE ScaledLayout LayoutOf(uint32_t elements, uint32_t block_log2,
                                           uint32_t bits) {
  ScaledLayout layout;
  layout.scales = (elements + (1u << block_log2) - 1) >> block_log2;
  layout.codes = kScalesAt + layout.scales;
  const uint32_t code_bytes = (elements * bits + 7) / 8;
  layout.end = layout.codes + (code_bytes + 3) / 4;
  layout.bytes = 4 * layout.codes + code_bytes;
  return layout;
}

template <typename Rule, DType kType>
struct ScaledEncode {
  struct Arguments {
    Input input;
    uint32_t block_log2 = 0;
    uint32_t tensor = 0;
    uint64_t first_element = 0;  // position of the input in its tensor
    uint32_t* out = nullptr;
    uint64_t stride_words = 0;
    uint32_t* tile_bytes = nullptr;
    uint32_t* tickets = nullptr;
    Board* boards = nullptr;
    Chain* chains = nullptr;  // for blocks larger than a part
  };

  struct Shared {
    alignas(16) float x[kPartElements];
    Scale scales[kPartElements >> kMinBlockLog2];
    Magnitudes magnitudes;
    StoredRandomBits random;
    uint32_t ticket;
  };

  SYNCLINE_DEVICE static void Run(Shared& shared, const Arguments& arguments) {
    const Part part =
        TakePart(arguments.tickets, arguments.input.elements, shared.ticket);
    Board& board = arguments.boards[part.tile];
    const Kept kept = KeptOf(arguments.input, part.tile);
    if constexpr (Rule::kRandom) {
      if (ThreadIndex() == 0) shared.random = Stored(RandomOf(arguments));
    }
    const uint32_t seen = LoadPart<kType>(arguments.input, part, kept, shared.x);
    PublishMagnitude(seen, shared.magnitudes, &board.magnitudes[part.index]);
    const bool spanning = arguments.block_log2 > kPartLog2;
    if (!spanning) {
      MeasureBlocks(shared, arguments, part);
    } else if constexpr (Rule::kChained) {
      if (Warp() == 0) PassOnSum(shared.x, arguments, part);
    }
    Team team{.arrived = &board.arrived, .parts = part.parts};
    team.Meet();
    if (LargestMagnitude(board.magnitudes, 0, part.parts) >= kInfinity) {
      if (part.last() && ThreadIndex() == 0) arguments.tile_bytes[part.tile] = 0;
      return;
    }
    if (spanning) {
      if (ThreadIndex() == 0) shared.scales[0] = SpanningScale(arguments, part, board);
      BlockBarrier();
    }
    EncodeRows(shared, arguments, part, kept);
    WriteFrame(shared, arguments, part, kept);
  }

 private:
  SYNCLINE_DEVICE static RandomBits RandomOf(const Arguments& arguments) {
    const Step now = NowOf(arguments.input);
    return RandomBits(now.seed, now.step, arguments.tensor, arguments.first_element);
  }

  // The block that contains `part`, in units of parts. REQUIRES: blocks larger than a
  // part.
  struct Span {
    uint32_t first = 0;
    uint32_t last = 0;  // one beyond the last
    uint32_t elements = 0;
  };
  SYNCLINE_DEVICE static Span SpanOf(const Arguments& arguments, const Part& part) {
    const uint32_t parts = 1u << (arguments.block_log2 - kPartLog2);
    Span span;
    span.first = part.index / parts * parts;
    span.last = span.first + parts < part.parts ? span.first + parts : part.parts;
    const uint32_t end = span.last * kPartElements;
    span.elements = (end < part.tile_elements ? end : part.tile_elements) -
                    span.first * kPartElements;
    return span;
  }

  SYNCLINE_DEVICE static void MeasureBlocks(Shared& shared, const Arguments& arguments,
                                            const Part& part) {
    const uint32_t block = 1u << arguments.block_log2;
    for (uint32_t first = Warp() * block; first < part.elements;
         first += kThreads / kWarp * block) {
      const uint32_t rest = part.elements - first;
      const Scale scale = Rule::WarpScale(shared.x + first, rest < block ? rest : block);
      if (Lane() == 0) shared.scales[first / block] = scale;
    }
  }

  // Each lane continues the sum of the previous part, so the sum has the CPU's order.
  SYNCLINE_DEVICE static void PassOnSum(const float* x, const Arguments& arguments,
                                        const Part& part) {
    const Span span = SpanOf(arguments, part);
    Chain& chain = arguments.chains[part.tile];
    float sum = 0;
    if (part.index > span.first) {
      const uint32_t before = part.index - 1;
      while (LoadFresh(&chain.summed[before]) == 0) Pause();
      Fence();
      sum = LoadFresh(&chain.lanes[before][Lane()]);
    }
    sum = Rule::WarpSum(x, part.elements, sum);
    StoreFresh(&chain.lanes[part.index][Lane()], sum);
    const float total = Rule::SumLanes(sum);
    if (Lane() == 0) StoreFresh(&chain.total[part.index], total);
    Fence();
    WarpBarrier();
    if (Lane() == 0) StoreFresh(&chain.summed[part.index], 1u);
  }

  SYNCLINE_DEVICE static Scale SpanningScale(const Arguments& arguments, const Part& part,
                                             const Board& board) {
    const Span span = SpanOf(arguments, part);
    if constexpr (Rule::kChained) {
      const Chain& chain = arguments.chains[part.tile];
      return Rule::ScaleOf(LoadFresh(&chain.total[span.last - 1]), span.elements);
    } else {
      return Rule::ScaleOf(LargestMagnitude(board.magnitudes, span.first, span.last));
    }
  }

  SYNCLINE_DEVICE static void EncodeRows(Shared& shared, const Arguments& arguments,
                                         const Part& part, const Kept& kept) {
    const ScaledLayout layout =
        LayoutOf(part.tile_elements, arguments.block_log2, Rule::kBits);
    uint32_t* const words =
        arguments.out + part.tile * arguments.stride_words + layout.codes;
    float* const residual =
        kept.residual == nullptr ? nullptr : kept.residual + part.offset;
    RandomBits random(0, 0, 0, 0);
    if constexpr (Rule::kRandom) random = Taken(shared.random);
    for (uint32_t row = Warp() * kRowElements; row < part.elements;
         row += kThreads / kWarp * kRowElements) {
      const uint32_t i = row + 4 * Lane();
      const Scale scale = shared.scales[i >> arguments.block_log2];
      const Encoded encoded =
          Rule::Encode(*reinterpret_cast<const Four<float>*>(shared.x + i), scale, random,
                       static_cast<uint32_t>(part.offset) + i);
      Rule::WarpStore(encoded.codes, part.first + i, i < part.elements, words);
      if (residual == nullptr) continue;
      if (i + 4 <= part.elements) {
        *reinterpret_cast<Four<float>*>(residual + i) = encoded.lost;
        continue;
      }
      SYNCLINE_UNROLL
      for (uint32_t j = 0; j < 4; ++j) {
        if (i + j < part.elements) residual[i + j] = encoded.lost.at[j];
      }
    }
  }

  // Writes everything but the codes.
  SYNCLINE_DEVICE static void WriteFrame(const Shared& shared, const Arguments& arguments,
                                         const Part& part, const Kept& kept) {
    const ScaledLayout layout =
        LayoutOf(part.tile_elements, arguments.block_log2, Rule::kBits);
    uint32_t* const out = arguments.out + part.tile * arguments.stride_words;
    const uint32_t first_scale = part.first >> arguments.block_log2;
    const bool begins = first_scale << arguments.block_log2 == part.first;
    const uint32_t block = 1u << arguments.block_log2;
    const uint32_t scales =
        begins ? (part.elements + block - 1) >> arguments.block_log2 : 0;
    if (ThreadIndex() < scales) {
      out[kScalesAt + first_scale + ThreadIndex()] =
          BitsOf(shared.scales[ThreadIndex()].scale);
    }
    if (!part.last()) return;
    if (ThreadIndex() == 0) {
      out[0] = arguments.block_log2;
      arguments.tile_bytes[part.tile] = layout.bytes;
      NoteUnits(arguments.input, kept, part.tile);
    }
    const uint32_t padded =
        (layout.end + kWordsPer64Bytes - 1) / kWordsPer64Bytes * kWordsPer64Bytes;
    if (layout.end + ThreadIndex() < padded) out[layout.end + ThreadIndex()] = 0;
  }
};

}  // namespace syncline::SYNCLINE_GPU
