// Damages inputs the way that fuzzers do: bits, bytes, interesting numbers, lengths, and
// parts of other inputs.
#pragma once

#include <random>
#include <span>

#include "tests/fuzz/fuzz.h"

namespace syncline::fuzz {

// One of `corpus` after a few random changes. REQUIRES: a corpus.
Bytes Mutated(std::span<const Bytes> corpus, std::mt19937& random);

}  // namespace syncline::fuzz
