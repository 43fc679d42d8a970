#include "comm/collective/gossip/graph.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/random.h"

namespace syncline::collective {
namespace {

constexpr std::array<std::pair<GossipGraph, std::string_view>, 3> kNames = {
    {{GossipGraph::kRing, "ring"},
     {GossipGraph::kExponential, "exponential"},
     {GossipGraph::kRandom, "random"}}};

// Returns the neighbour on a circle that is cut before `first` and divided into pairs
// from there on.
std::optional<uint64_t> Neighbour(uint64_t length, uint64_t first, uint64_t place) {
  const uint64_t from_cut = (place + length - first % length) % length;
  if (length % 2 == 1 && from_cut == length - 1) return std::nullopt;
  return from_cut % 2 == 0 ? (place + 1) % length : (place + length - 1) % length;
}

// Returns j with j * step = 1 modulo length. REQUIRES: they have no common divisor.
uint64_t Inverse(uint64_t step, uint64_t length) {
  uint64_t inverse = 0;
  while (inverse * step % length != 1 % length) ++inverse;
  return inverse;
}

std::optional<uint64_t> OnExponential(uint64_t ranks, uint64_t round, uint64_t rank) {
  const auto sweep = static_cast<uint64_t>(std::bit_width(ranks - 1));
  const uint64_t apart = uint64_t{1} << (round % sweep);
  const uint64_t circles = std::gcd(ranks, apart);
  const uint64_t length = ranks / circles;
  uint64_t circle = rank % circles;
  const uint64_t place =
      rank / circles * Inverse(apart / circles % length, length) % length;
  std::optional<uint64_t> partner = Neighbour(length, 0, place);
  if (!partner.has_value()) {
    if (circles == 1) return std::nullopt;
    circle ^= 1;  // an even number of ranks has an even number of circles
    partner = place;
  }
  return (circle + *partner * apart) % ranks;
}

std::optional<uint64_t> OnRandom(const GossipPlan& plan, uint64_t round, uint64_t rank) {
  const RandomBits bits(plan.seed, round, 0, 0);
  std::vector<std::pair<uint32_t, uint32_t>> order;  // hash, rank
  for (uint32_t i = 0; i < static_cast<uint32_t>(plan.ranks); ++i) {
    order.emplace_back(bits.At(i), i);
  }
  std::ranges::sort(order);
  const auto own = std::ranges::find(
      order, rank, [](const auto& one) { return uint64_t{one.second}; });
  const auto place = static_cast<size_t>(own - order.begin());
  if ((place ^ 1) >= order.size()) return std::nullopt;
  return order[place ^ 1].second;
}

}  // namespace

absl::StatusOr<GossipGraph> ParseGossipGraph(std::string_view name) {
  for (const auto& [graph, known] : kNames) {
    if (name == known) return graph;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no gossip graph is called '", std::string(name),
                   "'; there are ring, exponential and random"));
}

std::string_view GossipGraphName(GossipGraph graph) {
  return std::ranges::find(kNames, graph, [](const auto& one) { return one.first; })
      ->second;
}

std::optional<int> GossipPartner(const GossipPlan& plan, uint64_t round, int rank) {
  if (plan.ranks < 2) return std::nullopt;
  const auto ranks = static_cast<uint64_t>(plan.ranks);
  const auto self = static_cast<uint64_t>(rank);
  std::optional<uint64_t> partner;
  switch (plan.graph) {
    case GossipGraph::kRing:
      partner = Neighbour(ranks, round, self);
      break;
    case GossipGraph::kExponential:
      partner = OnExponential(ranks, round, self);
      break;
    case GossipGraph::kRandom:
      partner = OnRandom(plan, round, self);
      break;
  }
  if (!partner.has_value()) return std::nullopt;
  return static_cast<int>(*partner);
}

}  // namespace syncline::collective
