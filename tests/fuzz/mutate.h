// Changes inputs the way that fuzzers do: bits, bytes, interesting numbers, lengths, and
// parts of other inputs.
#pragma once

#include <random>
#include <span>

#include "tests/fuzz/fuzz.h"

namespace syncline::fuzz {

// Returns one input of `corpus` after a few random changes. REQUIRES: `corpus` is not
// empty.
Bytes Mutated(std::span<const Bytes> corpus, std::mt19937& random);

}  // namespace syncline::fuzz
