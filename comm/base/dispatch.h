// SYNCLINE_MULTIVERSION: compiles a kernel once per instruction set and picks one at run
// time.
//
// A shipped binary must run on any x86-64, yet use AVX-512 where it is there. Kernels
// stay plain loops; the compiler vectorises each clone. All clones give the same bits,
// because the build forbids contraction (-ffp-contract=off) and IEEE 754 fixes every
// other operation.
//
//   SYNCLINE_MULTIVERSION void Add(size_t n, const float* __restrict x, float* __restrict
//   y) {
//     for (size_t i = 0; i < n; ++i) y[i] += x[i];
//   }
//
// Use it on free functions that do a whole strip of work: the choice costs an indirect
// call.
#pragma once

// Off under sanitizers (the resolvers run before their runtime is up, and crash), with
// clang (its target_clones does not know architecture levels) and elsewhere than on
// x86-64.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(SYNCLINE_SANITIZED)
#define SYNCLINE_MULTIVERSION \
  __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define SYNCLINE_MULTIVERSION
#endif
