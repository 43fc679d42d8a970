// Selectors decide which values of a tile are sent.
//
//   SelectorSpec spec{.kind = SelectorKind::kTopK, .ratio = 0.01};
//   const Selection selection = Select(spec, values, context);
//   for (const uint16_t i : selection.indices.view()) Send(values[i]);
//
// All are pure functions of their arguments (and, for kTopKReuse, of context.memory),
// with the same result on any CPU. Selection by magnitude never chooses zeros, since not
// sending them loses nothing. A selection of more than 31/32 of the tile becomes the
// whole tile, because its positions would cost more than the values they save.
//
// Papers: top-k with memory, Stich et al. 2018 (arXiv 1809.07599); sampled thresholds and
// warm-up, Lin et al. 2018 (arXiv 1712.01887); reused thresholds, Li and Hoefler 2022
// (PPoPP, Ok-Topk); non-zero blocks, Fei et al. 2021 (SIGCOMM, OmniReduce); sampling in
// proportion to magnitude, see proportional.h.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "comm/base/limits.h"
#include "comm/codec/codec.h"
#include "comm/codec/sparse/index_list.h"

namespace syncline {

enum class SelectorKind {
  kTopK,          // exactly the k largest magnitudes, lower positions first among equals
  kTopKSampled,   // values above a threshold from 1 % of the tile; k/2 to 2k
  kTopKReuse,     // values above the threshold of an earlier step; k/2 to 2k
  kRandomK,       // k at random, the same on all workers; only a seed is sent
  kProportional,  // each with a probability proportional to its magnitude; k or k + 1
  kThreshold,     // values above a fixed threshold
  kBlocks,        // each block of 256 that is not all +0, entirely: lossless
};

// The factor by which kRandomK multiplies sent values.
enum class RandomKScale {
  kNone,      // 1: for error feedback
  kUnbiased,  // n/k: the expectation of the decoded tile is the tile
};

// The set of values among which kTopK looks for the largest.
enum class SelectorScope {
  kTile,
  kTensor,  // by EncodeContext::threshold (tensor_histogram.h); if 0, by tile
};

// DGC's warm-up: the ratio falls exponentially from `ratio` at the first step to the
// selector's ratio.
struct RatioWarmup {
  uint64_t steps = 0;  // 0: none
  double ratio = 0.25;
  uint64_t first_step = 0;
};

inline constexpr uint32_t kMinChunkLog2 = 8;
inline constexpr uint32_t kMaxChunkLog2 = 16;
static_assert(kTileElements == 1u << kMaxChunkLog2);

struct SelectorSpec {
  SelectorKind kind = SelectorKind::kTopK;
  double ratio = 0.01;      // k = max(1, floor(ratio * n)); in (0, 1]
  RatioWarmup warmup = {};  // for kinds that use a ratio
  SelectorScope scope = SelectorScope::kTile;
  // kTopK of tiles: the k largest of each chunk of 2^n elements are sent. kMaxChunkLog2:
  // the k largest of the tile.
  uint32_t chunk_log2 = kMaxChunkLog2;
  float threshold = 0;   // kThreshold: sent if |x| > threshold
  uint32_t period = 32;  // kTopKReuse: steps between exact thresholds
  uint64_t seed = 0;     // kRandomK: the job's, the same for all workers
  RandomKScale scale = RandomKScale::kNone;
};

inline constexpr uint32_t kSelectorBlock = 256;

struct Selection {
  IndexList indices;
  uint64_t seed = 0;  // kRandomK: RandomPositions(seed, ...) gives the indices
  float least = 0;    // kProportional: smaller magnitudes are sent as this one
};

// Fails with InvalidArgument, which names the option that is invalid.
absl::Status CheckSelector(const SelectorSpec& spec);

// Returns the ratio at a step. It is never below that of `spec`, and the same on any CPU.
double RatioAt(const SelectorSpec& spec, uint64_t step);
// Returns k for n elements (of a chunk or of a tensor) at a step.
uint64_t TopCount(const SelectorSpec& spec, uint64_t n, uint64_t step);
// Returns the size of the largest selection from a tile of n elements at any step.
uint32_t MaxSelected(const SelectorSpec& spec, uint32_t n);

// The largest count below n that lists positions: a larger selection takes the whole
// tile. kRandomK does not have this limit.
inline uint32_t LargestListed(uint32_t n) { return n - n / 32; }

// REQUIRES: a checked spec, at most one tile.
Selection Select(const SelectorSpec& spec, std::span<const float> values,
                 const EncodeContext& context);

// Writes `count` distinct positions below n, ascending, each subset with equal
// probability. REQUIRES: `positions` has room for them.
void RandomPositions(uint64_t seed, uint32_t count, uint32_t n, IndexList& positions);

}  // namespace syncline
