// Finds the k-th largest magnitude of a tile, exactly. The bits of a float without its
// sign form an integer of 31 bits that orders magnitudes. There are three histograms, of
// 11, 10 and 10 of these bits. Each counts the whole tile, but only values in the bin
// that the previous histogram found.
//
// Zeros are not counted, since they are never selected.
#pragma once

#include "comm/codec/cuda/team.cuh"

namespace syncline::SYNCLINE_GPU {

constexpr uint32_t kLevels = 3;
constexpr uint32_t kMaxBins = 2048;
constexpr uint32_t kAllBins = 2048 + 1024 + 1024;

struct Level {
  uint32_t shift = 0;
  uint32_t bits = 0;
  uint32_t first_bin = 0;  // index on the board
  SYNCLINE_DEVICE uint32_t bins() const { return 1u << bits; }
};

SYNCLINE_DEVICE Level LevelAt(uint32_t number) {
  if (number == 0) return {.shift = 20, .bits = 11, .first_bin = 0};
  if (number == 1) return {.shift = 10, .bits = 10, .first_bin = 2048};
  return {.shift = 0, .bits = 10, .first_bin = 2048 + 1024};
}

// Data that the parts of a tile exchange. All zero at first.
struct alignas(64) SelectionBoard {
  uint32_t arrived;
  uint32_t magnitudes[kParts];
  uint32_t above[kParts];  // values of this part above the threshold
  uint32_t ties[kParts];   // values of this part equal to it
  uint32_t bins[kAllBins];
};

// Returns the most positions that a tile of n lists (comm/codec/sparse/selector.h).
// Beyond it, the whole tile is sent.
SYNCLINE_HOST_DEVICE constexpr uint32_t LargestListed(uint32_t n) { return n - n / 32; }

// The selection: all magnitudes above `threshold`, and the first `ties` of those equal to
// it.
struct Choice {
  uint32_t threshold = 0;
  uint32_t ties = 0;
  uint32_t count = 0;  // selected values of the tile
};

// The bin that contains the k-th value of a histogram.
struct Found {
  uint32_t bin = 0;
  uint32_t above = 0;  // values in higher bins
  uint32_t total = 0;  // values in all bins
};

struct SelectShared {
  uint32_t bins[kMaxBins];
  uint32_t of_warp[kThreads / kWarp];
  Found found;
};

// Returns the sum of `value` over the block's threads up to and including this one.
// REQUIRES: a BlockBarrier since the last use of `of_warp`.
SYNCLINE_DEVICE uint32_t BlockPrefixSum(uint32_t value, uint32_t* of_warp) {
  for (uint32_t delta = 1; delta < kWarp; delta *= 2) {
    const uint32_t below = WarpShuffleUp(value, delta);
    if (Lane() >= delta) value += below;
  }
  if (Lane() == kWarp - 1) of_warp[Warp()] = value;
  BlockBarrier();
  for (uint32_t warp = 0; warp < Warp(); ++warp) value += of_warp[warp];
  return value;
}

// Counts the part's values whose higher bits equal `prefix`, and adds the counts to the
// tile's histogram.
SYNCLINE_DEVICE void CountLevel(const float* x, const Part& part, const Level& level,
                                uint32_t prefix, SelectShared& shared, uint32_t* bins) {
  for (uint32_t i = ThreadIndex(); i < level.bins(); i += kThreads) shared.bins[i] = 0;
  BlockBarrier();
  for (uint32_t i = ThreadIndex(); i < part.elements; i += kThreads) {
    const uint32_t magnitude = MagnitudeOf(x[i]);
    const uint32_t digits = magnitude >> level.shift;
    if (magnitude == 0 || digits >> level.bits != prefix) continue;
    AtomicAdd(&shared.bins[digits & (level.bins() - 1)], 1);
  }
  BlockBarrier();
  for (uint32_t i = ThreadIndex(); i < level.bins(); i += kThreads) {
    if (shared.bins[i] != 0) AtomicAdd(&bins[level.first_bin + i], shared.bins[i]);
  }
}

// Returns the bin of the k-th largest value; if there are fewer than k, only `total` is
// valid. Each thread handles some bins, the first thread the highest.
SYNCLINE_DEVICE Found FindBin(const uint32_t* bins, const Level& level, uint32_t k,
                              SelectShared& shared) {
  constexpr uint32_t kMost = kMaxBins / kThreads;
  const uint32_t mine = level.bins() / kThreads;
  const uint32_t top = level.bins() - 1 - ThreadIndex() * mine;
  uint32_t counts[kMost];
  uint32_t sum = 0;
  SYNCLINE_UNROLL
  for (uint32_t i = 0; i < kMost; ++i) {
    counts[i] = i < mine ? LoadFresh(&bins[level.first_bin + top - i]) : 0;
    sum += counts[i];
  }
  const uint32_t through = BlockPrefixSum(sum, shared.of_warp);
  if (ThreadIndex() == kThreads - 1) shared.found.total = through;
  uint32_t above = through - sum;
  if (above < k && k <= through) {
    SYNCLINE_UNROLL
    for (uint32_t i = 0; i < kMost; ++i) {
      if (above < k && k <= above + counts[i]) {
        shared.found.bin = top - i;
        shared.found.above = above;
      }
      above += counts[i];
    }
  }
  BlockBarrier();
  return shared.found;
}

// Selects the k largest of a tile's finite values. Selects all nonzero values if there
// are at most k, and the whole tile if that is more than LargestListed. REQUIRES: level 0
// is counted, and the team has met.
SYNCLINE_DEVICE Choice SelectLargest(const float* x, const Part& part, uint32_t k,
                                     Team& team, SelectShared& shared,
                                     SelectionBoard& board) {
  Choice choice{.threshold = 0, .ties = 0, .count = k};
  uint32_t prefix = 0;
  uint32_t wanted = k;
  for (uint32_t number = 0; number < kLevels; ++number) {
    const Level level = LevelAt(number);
    if (number > 0) {
      CountLevel(x, part, level, prefix, shared, board.bins);
      team.Meet();
    }
    const Found found = FindBin(board.bins, level, wanted, shared);
    if (number == 0 && found.total <= k) {
      choice.count = found.total;
      break;
    }
    wanted -= found.above;
    prefix = prefix << level.bits | found.bin;
    choice.threshold = prefix;
    choice.ties = wanted;
  }
  const uint32_t n = part.tile_elements;
  if (choice.count > LargestListed(n)) return {.threshold = 0, .ties = n, .count = n};
  return choice;
}

}  // namespace syncline::SYNCLINE_GPU
