// What servers make of what one life of a worker pushes of one tensor: its gradients, what
// its memory has kept of earlier ones, and what of that goes with this one
// (comm/compression/memory/gradient_memory.h has the formulas). In plain loops, tile by
// tile, from the gradients that it wrote down.
//
// Where a codec is chosen by what was measured (push_codec=auto), what was sent is taken as
// it is: the choice is not a function of gradients.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/codec/sparse/tensor_histogram.h"
#include "comm/compression/transfer.h"
#include "tests/sim/reference.h"

namespace syncline::sim {

class PushOracle {
 public:
  struct Options {
    Transfer transfer = {};
    uint32_t tensor = 0;
    uint32_t elements = 0;
    uint64_t seed = 0;
    bool follows = false;  // what is kept follows the learning rate
  };
  explicit PushOracle(const Options& options);

  // In the order of steps. `rate`: of the step. `is_late`: it did not count, and the worker
  // took it back.
  enum class Fate { kCounts, kLate };
  std::vector<float> Receive(const Reference::Push& push, uint64_t step, float rate,
                             Fate fate);

 private:
  // What is kept of one tile beside its values.
  struct TileNotes {
    float loss_scale = 1;
    float rate = 0;
    std::vector<float> of_codec = {};
  };
  // A tile of a push.
  struct Tile {
    std::span<const float> gradient = {};
    uint64_t first = 0;
    uint64_t step = 0;
    float loss_scale = 1;
    float rate = 0;
    float threshold = 0;
  };
  // What is to be sent of it, and the velocity that it leaves.
  struct Sum {
    std::vector<float> x = {};
    std::vector<float> velocity = {};
  };

  bool Keeps() const { return options_.transfer.memory.kind != MemoryKind::kNone; }
  bool Corrects() const {
    return options_.transfer.memory.kind == MemoryKind::kMomentumCorrection;
  }
  TileNotes& NotesOf(const Tile& tile);
  bool Joins(const Tile& tile);
  // By what the residual is multiplied, so that it is in the units of the tile.
  float CarryOf(const Tile& tile);
  Sum Gather(const Tile& tile);
  std::vector<float> Send(const Tile& tile);
  std::vector<float> Part(const Tile& tile);
  void TakeBack(const Tile& tile, std::span<const float> sent);
  float ThresholdOf(std::span<const Tile> tiles);

  const Options options_;
  std::vector<float> residual_;
  std::vector<float> velocity_;
  std::vector<TileNotes> notes_;
};

// The bytes of values and what a receiver makes of them. What is lost stays in `values`.
std::vector<float> Travel(const Codec& codec, const EncodeContext& context,
                          std::span<float> values);

// What a sum of contributions becomes where the transfer averages over senders: divided by
// their weights, given for each element.
void DivideBySenders(const Transfer& transfer, std::span<const float> weights,
                     std::span<float> sum);

}  // namespace syncline::sim
