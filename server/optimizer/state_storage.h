// How one slot of a block's optimizer state lies in memory: FP32, BF16 or 8 bits.
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
// 8 bits: every 256 elements, counted from the start of the memory, share one FP32 scale,
// and each element is the nearest of 256 fixed multiples of it (CodeValues), of two
// equally near ones the larger magnitude. The multiples are the dynamic quantisation of
// Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2021): a code's
// leading bit chooses one of 7 powers of ten, the bits after it a position inside it, so
// that numbers from 1 down to 5.5e-7 (signed) or 3.25e-7 (unsigned) of the scale keep
// their size. 260 bytes for 256 elements.
//
// A number in an unsigned slot that is not zero is at least the smallest code, however far
// it lies below the scale: steps are divided by its root, and a variance of 0 beside a
// momentum that is not would make one of thousands of times the learning rate. Too large a
// variance makes the step of that element smaller, never larger.
//
// The scale is the element of the largest magnitude, with its sign: that element is kept
// exactly, and what was loaded and is stored unchanged gives the same bytes again.
//
// Not kept: elements that are not finite, which become 0 and leave their neighbours as
// they are; runs whose largest magnitude is below the smallest normal float (1.2e-38),
// which become 0; negative numbers in an unsigned slot, which become 0.
//
// BF16: rounded at random to one of the two neighbours, so that the mean is the number
// itself. To nearest, a mean of squares with beta2 = 0.999 could never fall: a thousandth
// is less than half the distance of two neighbours. NaN and infinity are kept. The random
// bits are a hash of StateContext, so a repeated step stores the same bytes.
//
// Zeroed memory holds zeros for every type. Thread safety: pure functions of the memory
// they are given. The same bits on each CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

// Elements that share a scale. Strips start at a multiple of it.
inline constexpr size_t kStateRun = 256;

// Smaller tensors (biases, norms) are kept in FP32: little to save, and their elements
// differ most.
inline constexpr uint64_t kMinElementsToReduce = 4096;

// The type that a tensor's slot really has: kWeights and tensors below
// kMinElementsToReduce elements stay FP32. Depends on the logical tensor, never on how it
// is cut into blocks or placed on servers.
StateType EffectiveType(StateType wanted, SlotKind kind, uint64_t tensor_elements);

// Bytes of one slot of a block of `elements`.
size_t StateBytes(StateType type, size_t elements);

// One slot of a block's optimizer state, as it is stored, at any address.
struct StoredSlot {
  StateType type = StateType::kF32;
  SlotKind kind = SlotKind::kSigned;
  std::byte* memory = nullptr;
};

// What is stored, where and when: the random bits of BF16 are a hash of it.
struct StateContext {
  uint64_t seed = 0;    // of the job
  uint64_t update = 0;  // StepScalars::update
  uint32_t tensor = 0;
  uint32_t slot = 0;           // position in Optimizer::slots()
  uint64_t first_element = 0;  // position of values[0] in the tensor
};

// Elements [first, first + out.size()) of the slot. REQUIRES: `first` is a multiple of
// kStateRun.
void LoadState(const StoredSlot& slot, size_t first, std::span<float> out);

// REQUIRES: also, values.size() is a multiple of kStateRun or ends with the block.
void StoreState(const StoredSlot& slot, size_t first, std::span<const float> values,
                const StateContext& context);

// What each of the 256 bytes stands for, as a multiple of the scale. 0 is byte 0, and in
// signed slots the bytes above 128 are negative.
std::span<const float, 256> CodeValues(SlotKind kind);

}  // namespace syncline
