// An oracle for pushes. It computes the values that servers decode from the pushes of one
// tensor by one process of a worker, from the recorded gradients. It keeps the error
// feedback of earlier gradients (comm/compression/memory/gradient_memory.h has the
// formulas), in plain loops, tile by tile.
//
// With push_codec=auto the oracle uses the values that were sent, because the choice of
// the codec depends on measurements.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/codec/sparse/tensor_histogram.h"
#include "comm/compression/transfer.h"
#include "server/coordinator/job_spec.h"
#include "tests/sim/reference.h"

namespace syncline::sim {

// Whether error feedback of the job's workers follows the learning rate, by the rule of
// sessions (worker/client/session_start.cc).
bool ResidualsFollow(const JobSpec& job);

class PushOracle {
 public:
  struct Options {
    Transfer transfer = {};
    uint32_t tensor = 0;
    uint32_t elements = 0;
    uint64_t seed = 0;
    bool follows = false;  // error feedback follows the learning rate
  };
  explicit PushOracle(const Options& options);

  // kLate: the push did not count, and the worker took it back.
  enum class Fate { kCounts, kLate };
  // Returns the values that servers receive. Call it in the order of steps. `rate` is the
  // learning rate of the step.
  std::vector<float> Receive(const Reference::Push& push, uint64_t step, float rate,
                             Fate fate);

 private:
  // The units of one tile's error feedback, and the memory of its codec.
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
  // The values to send of a tile, and its velocity afterwards.
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
  // Returns the factor that converts the residual to the units of the tile.
  float CarryOf(const Tile& tile);
  Sum Gather(const Tile& tile);
  // Encodes a tile as the worker does. Returns what a receiver decodes, and writes to
  // `added` what servers add up: the same, or its coefficients.
  std::vector<float> Send(const Tile& tile, std::vector<float>& added);
  std::vector<float> Part(const Tile& tile);
  void TakeBack(const Tile& tile, std::span<const float> sent);
  float ThresholdOf(std::span<const Tile> tiles);

  const Options options_;
  std::vector<float> residual_;
  std::vector<float> velocity_;
  std::vector<TileNotes> notes_;
};

// Encodes the values, and returns what a receiver decodes. Leaves the difference in
// `values`. `wire` may be null; it receives the bytes.
std::vector<float> Travel(const Codec& codec, const EncodeContext& context,
                          std::span<float> values,
                          std::vector<std::byte>* wire = nullptr);

// If the transfer averages over senders, divides each element of `sum`, which is that of
// a block, by the weights of its senders. If what was summed are coefficients, they become
// values.
void DivideBySenders(const Transfer& transfer, std::span<const float> weights,
                     uint64_t first_element, std::span<float> sum);

}  // namespace syncline::sim
