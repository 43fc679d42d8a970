// Optimizers: how the mean gradient of a step changes the master weights. The servers'
// plug point.
//
// An optimizer is an element kernel (Apply), called strip by strip so that everything
// stays in cache between summing the contributions and encoding the result. Those that
// need figures about a whole tensor (LAMB's norms, Adafactor's row and column means) or
// the whole job (dot products of L-BFGS) say so with a reduction, which runs before:
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto optimizer, MakeOptimizer(settings, group));
//   StepScalars scalars = {.step = updates + 1, .learning_rate = lr};
//   for (each round of optimizer->tensor_reduction(), if there is one)
//     for (each tile in order) reduction->Reduce(round, scalars, strip, tensor);
//     reduction->Finish(round, scalars, tensor);
//   for (each strip) optimizer->Apply(scalars, strip, tensor);
//
// Thread safety: implementations are const and stateless; the caller owns weights, state
// and figures. Bits: an element's result depends only on the scalars, the figures, its
// gradient, weight and state, never on how a block is cut into strips, nor on the CPU.
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

// How optimizer state is stored: FP32, BF16 (rounded at random), or 8 bits with one scale
// for 256 elements. Chosen per logical tensor, never per shard.
enum class StateType { kF32, kBf16, kInt8 };

// "f32", "bf16", "int8"; InvalidArgument with the nearest name for any other.
absl::StatusOr<StateType> ParseStateType(std::string_view name);

// A job's optimizer: a name of OptimizerNames() and options of OptionsOf(name), with
// torch's names and defaults.
struct OptimizerSettings {
  std::string name = "sgd";
  OptionValues options = {};
  std::string state = "f32";  // a name of StateType

  bool operator==(const OptimizerSettings&) const = default;
};

// What a parameter group changes.
struct GroupOptions {
  double learning_rate_scale = 1;
  OptionValues options = {};  // instead of the job's
  std::string state = {};     // the job's when empty
  bool frozen = false;        // never updated, never pushed

  bool operator==(const GroupOptions&) const = default;
};

// InvalidArgument names the option, its value and the allowed range, and for an unknown
// optimizer or option the nearest name.
absl::Status ValidateOptimizer(const OptimizerSettings& settings);
absl::Status ValidateGroup(const OptimizerSettings& settings, const GroupOptions& group);

std::span<const std::string_view> OptimizerNames();
// The options of an optimizer and of the wrappers that all have (lookahead, averages).
// REQUIRES: `name` is one of OptimizerNames().
std::vector<OptionSpec> OptionsOf(std::string_view name);

// ---- What a step is made of ----

// What is the same for all elements of a tensor at one step.
struct StepScalars {
  uint64_t step = 1;  // t of the formulas: the number of this update, from 1
  // The number of the job's update, from 0, skipped ones counted: the clock that workers
  // and schedules go by.
  uint64_t update = 0;
  double learning_rate = 0;  // of the schedule, times the group's scale
  // Multiplies the summed gradient first: loss unscaling and clipping in one factor.
  float gradient_scale = 1;
  double samples = 1;  // that the mean gradient is made of
  ContributionKind contribution = ContributionKind::kGradient;
};

// An array of optimizer state, one number per element of the tensor.
enum class SlotKind {
  kSigned,    // such as a mean of gradients; may be stored in 8 bits
  kUnsigned,  // such as a mean of squares
  kWeights,   // such as an average of weights: always FP32
};
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

// What belongs to a tensor as a whole while it is stepped.
struct TensorData {
  const TensorShape& shape;
  std::span<float> factors = {};            // TensorReduction::Factors; zero at first
  std::span<double> figures = {};           // TensorReduction::Figures; zero at each step
  std::span<const double> job_memory = {};  // of a JobReduction, after Finish
};

// ---- The plug point ----

// Figures about a whole tensor. All its blocks live on one shard, which calls Reduce for
// each tile in order, then Finish, for each round. Sums are in float64, in an order that
// only the tensor's shape fixes.
class TensorReduction {
 public:
  virtual ~TensorReduction() = default;

  virtual int rounds() const = 0;
  // Numbers that the rounds share, and floats that stay with the tensor from step to
  // step.
  virtual size_t Figures(const TensorShape& shape) const = 0;
  virtual size_t Factors(const TensorShape& shape) const = 0;
  // Adds the strip's part to tensor.figures; weights and state stay as they are.
  virtual void Reduce(int round, const StepScalars& scalars, const Strip& strip,
                      const TensorData& tensor) const = 0;
  virtual void Finish(int round, const StepScalars& scalars,
                      const TensorData& tensor) const = 0;
};

// Figures about the whole job: each block's part travels to the coordinator, which adds
// them in block order and sends the sums to every shard with the decision.
class JobReduction {
 public:
  virtual ~JobReduction() = default;

  virtual size_t Figures() const = 0;  // numbers per block
  virtual size_t Memory() const = 0;   // numbers that each shard keeps; zero at first
  virtual void Reduce(const Strip& strip, std::span<double> figures) const = 0;
  // The same arithmetic on every shard. `gradient_scale` was decided after the figures
  // were made.
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

// All built-in optimizers (builtin.cc), with the wrappers that the options ask for; fails
// as ValidateOptimizer and ValidateGroup do.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(
    const OptimizerSettings& settings, const GroupOptions& group = {});

}  // namespace syncline
