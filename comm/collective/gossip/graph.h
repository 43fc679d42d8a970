// The pairs of ranks that exchange in a round of gossip. They are a pure function of the
// graph, its size, its seed and the round, so that all ranks agree without communication.
//
// A round is a matching: each rank has at most one partner, whose partner it is. With an
// even number of ranks none is idle; with an odd number exactly one is. Two partners that
// take the mean of their values (gamma = 1/2) bring all ranks nearer to the mean of all.
// How fast depends on the graph. |x - mean| shrinks
//
// - kRing: by cos(2 pi / p) per round for even p, from the second round on: slowly. Each
//   rank has only two partners.
// - kExponential: to nothing in log2(p) rounds if p is a power of two, otherwise to 2/3
//   or less in ceil(log2 p) rounds, a sweep. Each rank has ceil(log2 p) partners.
// - kRandom: its square by (p - 2) / (2 (p - 1)) per round in expectation for even p, by
//   1/2 for odd p. Every pair of ranks meets sometimes.
//
// Sources: Ying et al. 2021, "Exponential graph is provably efficient for decentralized
// deep training", arXiv 2110.13363. Its one-peer exponential graphs have the same
// offsets, but there a rank gives to one peer and takes from another. Here two ranks
// exchange, which conserves the sum for any gamma. Boyd et al. 2006, "Randomized gossip
// algorithms".
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline::collective {

enum class GossipGraph { kRing, kExponential, kRandom };

// Fails with InvalidArgument, which lists the graphs.
absl::StatusOr<GossipGraph> ParseGossipGraph(std::string_view name);
std::string_view GossipGraphName(GossipGraph graph);

struct GossipPlan {
  GossipGraph graph = GossipGraph::kExponential;
  int ranks = 1;
  uint64_t seed = 0;  // for kRandom
};

// Returns the partner of `rank` in a round; nullopt: it is idle.
//
// kRing: round k cuts the circle of p ranks before rank k mod p, and pairs neighbours
// from there on; a rank that is left over is idle. kExponential: in round k, partners are
// s = 2^(k mod ceil(log2 p)) apart. Steps of s form gcd(p, s) circles of p / gcd(p, s)
// ranks. On each circle the partners are those of round 0 of kRing; if p is a power of
// two, they are rank XOR s. If circles have odd length, the ranks that are left over on
// two circles are partners. With an odd p the idle rank is one of ceil(log2 p). kRandom:
// ranks are sorted by a hash of (seed, round, rank) and paired in this order.
std::optional<int> GossipPartner(const GossipPlan& plan, uint64_t round, int rank);

}  // namespace syncline::collective
