// Optimizers compute new master weights from the mean gradient of a step. This interface
// is the plug point of the servers for new optimizers.
//
// An optimizer is an element kernel, Apply. It is called strip by strip, so that all data
// stays in cache from the sum of contributions to the encoded result. An optimizer that
// needs statistics of a whole tensor (LAMB's norms, Adafactor's row and column means) or
// of the whole job (dot products of L-BFGS) has a reduction, which runs first:
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto optimizer, MakeOptimizer(settings, group));
//   StepScalars scalars = {.step = updates + 1, .learning_rate = lr};
//   for (each round of optimizer->tensor_reduction(), if there is one)
//     for (each tile in order) reduction->Reduce(round, scalars, strip, tensor);
//     reduction->Finish(round, scalars, tensor);
//   for (each strip) optimizer->Apply(scalars, strip, tensor);
//
// Thread safety: implementations are const and stateless; the caller owns weights, state
// and statistics. Reproducibility: an element's result depends only on the scalars, the
// statistics, and its own gradient, weight and state. It depends neither on how a block
// is cut into strips nor on the CPU.
//
// A new optimizer costs one file, a test against a float64 reference, and one line in
// builtin.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/contribution.h"
#include "comm/base/options.h"
#include "server/optimizer/tensor_shape.h"

namespace syncline {

// ---- Settings ----

// Format of stored optimizer state: FP32, BF16 (stochastic rounding), or 8 bits with one
// scale for 256 elements. It is chosen for each logical tensor, never for a shard.
enum class StateType { kF32, kBf16, kInt8 };

// Parses "f32", "bf16" or "int8". Otherwise fails with InvalidArgument, which suggests
// the nearest name.
absl::StatusOr<StateType> ParseStateType(std::string_view name);

// The optimizer of a job: one of OptimizerNames(), and options of OptionsOf(name). Names
// and defaults are those of torch.
struct OptimizerSettings {
  std::string name = "sgd";
  OptionValues options = {};
  std::string state = "f32";  // as ParseStateType takes it

  bool operator==(const OptimizerSettings&) const = default;
};

// The settings of a parameter group, which override those of the job.
struct GroupOptions {
  double learning_rate_scale = 1;
  OptionValues options = {};  // override the job's
  std::string state = {};     // empty: the job's
  bool frozen = false;        // never updated, never pushed

  bool operator==(const GroupOptions&) const = default;
};

// Check settings. They fail with InvalidArgument, which names the option, its value and
// the allowed range. For an unknown optimizer or option it suggests the nearest name.
absl::Status ValidateOptimizer(const OptimizerSettings& settings);
absl::Status ValidateGroup(const OptimizerSettings& settings, const GroupOptions& group);

std::span<const std::string_view> OptimizerNames();
// Returns the options of an optimizer, including those of the wrappers that all
// optimizers have (lookahead, averages). REQUIRES: `name` is one of OptimizerNames().
std::vector<OptionSpec> OptionsOf(std::string_view name);

// ---- Data of a step ----

// Values that are the same for all elements of a tensor at one step.
struct StepScalars {
  uint64_t step = 1;  // number of this update, from 1: t in the formulas
  // Number of the job's update, from 0, including skipped ones. Workers and schedules use
  // this number.
  uint64_t update = 0;
  double learning_rate = 0;  // from the schedule, times the group's scale
  // Factor of the summed gradient: loss unscaling and clipping in one.
  float gradient_scale = 1;
  double samples = 1;  // number of samples in the mean gradient
  ContributionKind contribution = ContributionKind::kGradient;
};

// An array of optimizer state, one number per element of the tensor.
enum class SlotKind {
  kSigned,    // such as a mean of gradients; may be stored in 8 bits
  kUnsigned,  // such as a mean of squares
  kWeights,   // such as an average of weights: always FP32
};
// The slot of an optimizer whose steps are along -m: p -= lr * m, or with Nesterov's
// gradient added. Views ahead of the momentum need it (docs/modes.md).
inline constexpr std::string_view kMomentumSlot = "momentum";
struct StateSlot {
  std::string_view name = {};
  SlotKind kind = SlotKind::kSigned;
};

// At most one tile of one tensor. All parts have gradient.size() elements and do not
// overlap.
struct Strip {
  std::span<const float> gradient = {};  // the weighted sum of contributions
  std::span<float> master = {};
  // One pointer for each slot; they point to zeros before the first step.
  std::span<float* const> state = {};
  uint64_t first_element = 0;  // position in the tensor
};

// Data of a whole tensor during its step.
struct TensorData {
  const TensorShape& shape;
  std::span<float> factors = {};            // TensorReduction::Factors; zero at first
  std::span<double> figures = {};           // TensorReduction::Figures; zero at each step
  std::span<const double> job_memory = {};  // of the JobReduction, after Finish
};

// ---- The plug point ----

// Computes statistics of a whole tensor. One shard has all blocks of the tensor. In each
// round it calls Reduce for each tile in order, then Finish. Sums are in float64, in an
// order that depends only on the shape.
class TensorReduction {
 public:
  virtual ~TensorReduction() = default;

  virtual int rounds() const = 0;
  // Number of float64 values that the rounds share, and number of floats that the tensor
  // keeps from step to step.
  virtual size_t Figures(const TensorShape& shape) const = 0;
  virtual size_t Factors(const TensorShape& shape) const = 0;
  // Adds the strip's part to tensor.figures. Does not change weights or state.
  virtual void Reduce(int round, const StepScalars& scalars, const Strip& strip,
                      const TensorData& tensor) const = 0;
  virtual void Finish(int round, const StepScalars& scalars,
                      const TensorData& tensor) const = 0;
};

// Computes statistics of the whole job. The coordinator adds the parts of all blocks, in
// block order, and sends the sums to all shards with its decision.
class JobReduction {
 public:
  virtual ~JobReduction() = default;

  virtual size_t Figures() const = 0;  // numbers per block
  virtual size_t Memory() const = 0;   // numbers that each shard keeps; zero at first
  virtual void Reduce(const Strip& strip, std::span<double> figures) const = 0;
  // Updates `memory` by the same arithmetic on every shard. The decision about
  // `gradient_scale` came after Reduce, so `sums` do not include it.
  virtual void Finish(const StepScalars& scalars, std::span<const double> sums,
                      std::span<double> memory) const = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual std::string_view name() const = 0;
  virtual std::vector<StateSlot> slots() const = 0;
  virtual void Apply(const StepScalars& scalars, const Strip& strip,
                     const TensorData& tensor) const = 0;

  virtual ContributionPlan contributions() const { return {}; }
  virtual const TensorReduction* tensor_reduction() const { return nullptr; }
  virtual const JobReduction* job_reduction() const { return nullptr; }
};

// Creates a built-in optimizer (builtin.cc), with the wrappers that the options ask for.
// Fails as ValidateOptimizer and ValidateGroup do.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(
    const OptimizerSettings& settings, const GroupOptions& group = {});

}  // namespace syncline
