// Stores one slot of a block's optimizer state in FP32, BF16 or 8 bits.
//
//   const StateType type = EffectiveType(StateType::kInt8, kind, tensor_elements);
//   auto memory = Buffer::Allocate(StateBytes(type, block_elements));  // zeroed: state 0
//   const StoredSlot slot = {.type = type, .kind = kind, .memory = memory.data()};
//   for (each strip) {
//     LoadState(slot, first, strip);
//     ...
//     StoreState(slot, first, strip, context);
//   }
//
// 8 bits: each run of 256 elements, counted from the start of the memory, shares one FP32
// scale. An element is stored as the nearest of 256 fixed multiples of the scale
// (CodeValues); ties go to the larger magnitude. The multiples are the dynamic
// quantisation of Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2021).
// The leading bit of a code chooses one of 7 powers of ten, and the bits after it a
// position inside it. So numbers from 1 down to 5.5e-7 (signed) or 3.25e-7 (unsigned) of
// the scale keep their magnitude. 256 elements take 260 bytes.
//
// A nonzero number in an unsigned slot is stored as at least the smallest code. Steps are
// divided by its root. If a variance became 0 beside a nonzero momentum, the step could
// be thousands of times the learning rate. A variance that is too large only makes the
// step smaller.
//
// The scale is the element of the largest magnitude, with its sign. So that element is
// exact, and storing loaded values unchanged gives the same bytes again.
//
// These values become 0: elements that are not finite (their neighbours are not
// affected), runs whose largest magnitude is below the smallest normal float (1.2e-38),
// and negative numbers in an unsigned slot.
//
// BF16: rounded at random to one of the two neighbours, so that the expected value is the
// number itself. With rounding to nearest, a mean of squares with beta2 = 0.999 could
// never fall, because a thousandth is less than half the distance of two neighbours. NaN
// and infinity are kept. The random bits are a hash of StateContext, so a repeated step
// stores the same bytes.
//
// Zeroed memory holds zeros for every type. Results are the same bits on every CPU.
//
// Thread safety: pure functions of the given memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

// Number of elements that share a scale. Strips start at a multiple of it.
inline constexpr size_t kStateRun = 256;

// Smaller tensors (biases, norms) stay in FP32: they save little memory, and their
// elements differ most.
inline constexpr uint64_t kMinElementsToReduce = 4096;

// Returns the type in which a tensor's slot is stored. kWeights, and tensors of fewer
// than kMinElementsToReduce elements, stay in FP32. The type depends on the logical
// tensor, never on its blocks or their placement.
StateType EffectiveType(StateType wanted, SlotKind kind, uint64_t tensor_elements);

// Returns the bytes of one slot of a block of `elements`.
size_t StateBytes(StateType type, size_t elements);

// One slot of a block's optimizer state in memory. Needs no alignment.
struct StoredSlot {
  StateType type = StateType::kF32;
  SlotKind kind = SlotKind::kSigned;
  std::byte* memory = nullptr;
};

// Identifies stored values. The random bits of BF16 are a hash of it.
struct StateContext {
  uint64_t seed = 0;    // of the job
  uint64_t update = 0;  // StepScalars::update
  uint32_t tensor = 0;
  uint32_t slot = 0;           // position in Optimizer::slots()
  uint64_t first_element = 0;  // position of values[0] in the tensor
};

// Loads elements [first, first + out.size()) of the slot. REQUIRES: `first` is a multiple
// of kStateRun.
void LoadState(const StoredSlot& slot, size_t first, std::span<float> out);

// Stores `values` at `first`. REQUIRES: `first` is a multiple of kStateRun; values.size()
// is one too, or `values` end with the block.
void StoreState(const StoredSlot& slot, size_t first, std::span<const float> values,
                const StateContext& context);

// Returns the value of each code, as a multiple of the scale. Code 0 is 0. In signed
// slots the codes above 128 are negative.
std::span<const float, 256> CodeValues(SlotKind kind);

}  // namespace syncline
