// Optimizers: how a summed gradient changes the master weights. The servers' plug point.
//
// One step of a block has two phases. Reduce (reduce.h): partial figures per tile in a
// fixed order, from which the decision about the whole step is made. Apply (here): the
// update itself, strip by strip, so that everything stays in cache between summing the
// contributions and encoding the result:
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto optimizer, MakeOptimizer(settings));
//   StepScalars scalars = ScalarsFor(settings, group, /*step=*/block_version + 1);
//   scalars.gradient_scale = 1.0f / static_cast<float>(samples);
//   for (each strip of a few thousand elements) {
//     codec.DecodeAdd(...);                    // all contributions into gradient
//     optimizer->Apply(scalars, {gradient, master, {state0, state1}});
//     codec.Encode(...);                       // the way back
//   }
//
// Thread safety: implementations are const and stateless; the caller owns weights and
// state. Bits: an element's result depends only on the scalars, its gradient, weight and
// state, never on how a block is cut into strips, nor on the CPU.
//
// A new optimizer costs one file, a test against a float64 reference, and one line in
// builtin.cc.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace syncline {

enum class Nesterov { kOff, kOn };

// A job's settings; defaults are those of torch. Options an optimizer does not have are
// ignored.
struct OptimizerSettings {
  std::string name = "sgd";  // "sgd" or "adamw"
  double learning_rate = 1e-3;
  double weight_decay = 0;
  // sgd
  double momentum = 0;
  double dampening = 0;
  Nesterov nesterov = Nesterov::kOff;
  // adamw
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

// What a parameter group changes.
struct GroupOptions {
  double learning_rate_scale = 1;
  std::optional<double> weight_decay = std::nullopt;  // the job's when empty
};

// InvalidArgument names the option, its value and the allowed range, and for an unknown
// optimizer the nearest name.
absl::Status ValidateSettings(const OptimizerSettings& settings);
absl::Status ValidateGroup(const GroupOptions& group);

// What is the same for all elements of a block at one step.
struct StepScalars {
  uint64_t step = 1;  // t of the formulas: 1 for the first update of a block
  double learning_rate = 0;
  double weight_decay = 0;
  // Multiplies the summed gradient first: 1/samples, loss unscaling and clipping in one
  // factor.
  float gradient_scale = 1;
};

// The scalars of a group with the job's learning rate; a step message may override the
// latter.
StepScalars ScalarsFor(const OptimizerSettings& settings, const GroupOptions& group,
                       uint64_t step);

inline constexpr int kMaxStateSlots = 2;

// A strip of at most one tile. All parts have gradient.size() elements and do not
// overlap.
struct TileSpans {
  std::span<const float> gradient;
  std::span<float> master;
  // The first StateSlots() are used; they are zero before the first step.
  std::array<float*, kMaxStateSlots> state = {};
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual std::string_view name() const = 0;
  // Number of float arrays of state per element.
  virtual int StateSlots() const = 0;
  virtual void Apply(const StepScalars& scalars, const TileSpans& tile) const = 0;
};

// All built-in optimizers (builtin.cc); fails as ValidateSettings does.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(
    const OptimizerSettings& settings);
std::span<const std::string_view> OptimizerNames();

}  // namespace syncline
