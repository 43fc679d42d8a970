// Encodes the exact top-k of a tile with its residual. One pass over the gradient and the
// residual is enough, since the tile stays in shared memory while its threshold is found.
// The layout is that of comm/codec/sparse/sparse.h with the index coder kU16 or kEvery.
#pragma once

#include "comm/codec/cuda/load.cuh"
#include "comm/codec/cuda/radix_select.cuh"

namespace syncline::SYNCLINE_GPU {

// Exactly this layout on the wire.
struct SparseHeader {
  uint32_t nonzeros;
  uint16_t values;
  uint8_t coder;
  uint8_t rice_bits;
  uint32_t index_bytes;
};
static_assert(sizeof(SparseHeader) == 12);

constexpr uint8_t kCoderEvery = 0;
constexpr uint8_t kCoderU16 = 1;
constexpr uint32_t kValuesFp32 = 1;
constexpr uint32_t kValuesBf16 = 2;

SYNCLINE_HOST_DEVICE uint32_t SparseBytes(uint32_t count, uint32_t elements,
                                          uint32_t values) {
  const uint32_t index_bytes = count == elements ? 0 : 2 * count;
  const uint32_t value_bytes = (values == kValuesFp32 ? 4 : 2) * count;
  return static_cast<uint32_t>(sizeof(SparseHeader)) + index_bytes + value_bytes;
}

// Rounds a finite value to nearest even. A value that would become infinite is limited to
// the largest finite BF16, since an infinite loss would stay in the residual forever.
SYNCLINE_DEVICE uint16_t NarrowBf16(float value) {
  constexpr uint32_t kRoundsToInfinity = 0x7f7f8000u;
  constexpr uint32_t kLargest = 0x7f7f0000u;
  const uint32_t sign = BitsOf(value) & 0x80000000u;
  const uint32_t magnitude = MagnitudeOf(value);
  const uint32_t bits = sign | (magnitude < kRoundsToInfinity ? magnitude : kLargest);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <DType kType>
struct TopKEncode {
  struct Arguments {
    Input input;
    uint32_t k = 0;       // k of a full tile
    uint32_t last_k = 0;  // k of a short tile
    uint32_t values = kValuesFp32;
    uint16_t* out = nullptr;
    uint64_t stride_halves = 0;
    uint32_t* tile_bytes = nullptr;
    uint32_t* tickets = nullptr;
    SelectionBoard* boards = nullptr;
  };

  struct Shared {
    alignas(16) float x[kPartElements];
    SelectShared select;
    Magnitudes magnitudes;
    uint32_t above[kThreads / kWarp];
    uint32_t ties[kThreads / kWarp];
    uint32_t ticket;
  };

  SYNCLINE_DEVICE static void Run(Shared& shared, const Arguments& arguments) {
    const Part part =
        TakePart(arguments.tickets, arguments.input.elements, shared.ticket);
    SelectionBoard& board = arguments.boards[part.tile];
    const Kept kept = KeptOf(arguments.input, part.tile);
    const uint32_t seen = LoadPart<kType>(arguments.input, part, kept, shared.x);
    PublishMagnitude(seen, shared.magnitudes, &board.magnitudes[part.index]);
    // Counts before it is known whether the tile is finite, which saves one meeting.
    CountLevel(shared.x, part, LevelAt(0), 0, shared.select, board.bins);
    Team team{.arrived = &board.arrived, .parts = part.parts};
    team.Meet();
    if (LargestMagnitude(board.magnitudes, 0, part.parts) >= kInfinity) {
      if (part.last() && ThreadIndex() == 0) arguments.tile_bytes[part.tile] = 0;
      return;
    }
    const uint32_t k =
        part.tile_elements == kTileElements ? arguments.k : arguments.last_k;
    const Choice choice = SelectLargest(shared.x, part, k, team, shared.select, board);
    CountSelected(shared, part, choice, board);
    team.Meet();
    WriteSelected(shared, arguments, part, choice, kept);
    if (part.last()) WriteFrame(arguments, part, choice, kept);
  }

 private:
  // Number of elements of a part that one warp writes, in order.
  static constexpr uint32_t kWarpElements = kPartElements / (kThreads / kWarp);

  struct Range {
    uint32_t first = 0;
    uint32_t last = 0;  // one beyond the last
  };
  SYNCLINE_DEVICE static Range RowsOf(const Part& part) {
    const uint32_t first = Warp() * kWarpElements;
    const uint32_t last = first + kWarpElements;
    return {.first = first, .last = last < part.elements ? last : part.elements};
  }

  struct Votes {
    uint32_t above = 0;
    uint32_t ties = 0;
  };
  SYNCLINE_DEVICE static Votes Vote(const Shared& shared, const Part& part,
                                    uint32_t threshold, uint32_t i) {
    const bool exists = i < part.elements;
    const uint32_t magnitude = exists ? MagnitudeOf(shared.x[i]) : 0;
    Votes votes;
    votes.above = WarpBallot(exists && magnitude > threshold);
    votes.ties = WarpBallot(exists && magnitude == threshold);
    return votes;
  }

  SYNCLINE_DEVICE static void CountSelected(Shared& shared, const Part& part,
                                            const Choice& choice, SelectionBoard& board) {
    uint32_t above = 0;
    uint32_t ties = 0;
    const Range rows = RowsOf(part);
    for (uint32_t i = rows.first; i < rows.last; i += kWarp) {
      const Votes votes = Vote(shared, part, choice.threshold, i + Lane());
      above += PopCount(votes.above);
      ties += PopCount(votes.ties);
    }
    if (Lane() == 0) {
      shared.above[Warp()] = above;
      shared.ties[Warp()] = ties;
    }
    BlockBarrier();
    if (ThreadIndex() != 0) return;
    above = 0;
    ties = 0;
    for (uint32_t warp = 0; warp < kThreads / kWarp; ++warp) {
      above += shared.above[warp];
      ties += shared.ties[warp];
    }
    StoreFresh(&board.above[part.index], above);
    StoreFresh(&board.ties[part.index], ties);
  }

  SYNCLINE_DEVICE static uint32_t Sent(const Choice& choice, uint32_t above,
                                       uint32_t ties) {
    return above + (ties < choice.ties ? ties : choice.ties);
  }

  SYNCLINE_DEVICE static void WriteSelected(const Shared& shared,
                                            const Arguments& arguments, const Part& part,
                                            const Choice& choice, const Kept& kept) {
    const SelectionBoard& board = arguments.boards[part.tile];
    // The numbers before this warp.
    uint32_t above = 0;
    uint32_t ties = 0;
    for (uint32_t i = 0; i < part.index; ++i) {
      above += LoadFresh(&board.above[i]);
      ties += LoadFresh(&board.ties[i]);
    }
    for (uint32_t warp = 0; warp < Warp(); ++warp) {
      above += shared.above[warp];
      ties += shared.ties[warp];
    }
    const uint32_t before = (1u << Lane()) - 1;
    const Range rows = RowsOf(part);
    for (uint32_t i = rows.first; i < rows.last; i += kWarp) {
      const Votes votes = Vote(shared, part, choice.threshold, i + Lane());
      const uint32_t my_above = above + PopCount(votes.above & before);
      const uint32_t my_ties = ties + PopCount(votes.ties & before);
      const bool tie_sent = (votes.ties >> Lane() & 1) != 0 && my_ties < choice.ties;
      const bool sent = (votes.above >> Lane() & 1) != 0 || tie_sent;
      WriteOne(arguments, part, choice, i + Lane(),
               {.value = i + Lane() < part.elements ? shared.x[i + Lane()] : 0,
                .sent = sent,
                .rank = Sent(choice, my_above, my_ties),
                .residual = kept.residual});
      above += PopCount(votes.above);
      ties += PopCount(votes.ties);
    }
  }

  struct One {
    float value = 0;
    bool sent = false;
    uint32_t rank = 0;  // position in the tile's list
    float* residual = nullptr;
  };
  SYNCLINE_DEVICE static void WriteOne(const Arguments& arguments, const Part& part,
                                       const Choice& choice, uint32_t i, const One& one) {
    if (i >= part.elements) return;
    float lost = one.value;
    if (one.sent) {
      const bool every = choice.count == part.tile_elements;
      uint16_t* const indices =
          arguments.out + part.tile * arguments.stride_halves + sizeof(SparseHeader) / 2;
      uint16_t* const values = indices + (every ? 0 : choice.count);
      if (!every) indices[one.rank] = static_cast<uint16_t>(part.first + i);
      uint32_t bits = BitsOf(one.value);
      if (arguments.values == kValuesFp32) {
        // Written as two halves, because it may begin in the middle of a word.
        values[2 * one.rank] = static_cast<uint16_t>(bits);
        values[2 * one.rank + 1] = static_cast<uint16_t>(bits >> 16);
      } else {
        const uint16_t narrow = NarrowBf16(one.value);
        values[one.rank] = narrow;
        bits = uint32_t{narrow} << 16;
      }
      lost = Subtract(one.value, FloatOf(bits));
    }
    if (one.residual != nullptr) one.residual[part.offset + i] = lost;
  }

  SYNCLINE_DEVICE static void WriteFrame(const Arguments& arguments, const Part& part,
                                         const Choice& choice, const Kept& kept) {
    uint16_t* const out = arguments.out + part.tile * arguments.stride_halves;
    const uint32_t bytes =
        SparseBytes(choice.count, part.tile_elements, arguments.values);
    const bool every = choice.count == part.tile_elements;
    if (ThreadIndex() == 0) {
      *reinterpret_cast<SparseHeader*>(out) = {
          .nonzeros = choice.count,
          .values = static_cast<uint16_t>(arguments.values),
          .coder = every ? kCoderEvery : kCoderU16,
          .rice_bits = 0,
          .index_bytes = every ? 0 : 2 * choice.count};
      arguments.tile_bytes[part.tile] = bytes;
      NoteUnits(arguments.input, kept, part.tile);
    }
    const uint32_t padding = (64 - bytes % 64) % 64 / 2;
    if (ThreadIndex() < padding) out[bytes / 2 + ThreadIndex()] = 0;
  }
};

}  // namespace syncline::SYNCLINE_GPU
