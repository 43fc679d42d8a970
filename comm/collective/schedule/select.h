// Chooses the algorithm with the least time, by a model of the network:
//
//   seconds = rounds x latency + messages x per_message + bytes x per_byte
//           + reduced bytes x per_reduced_byte
//
// Messages and bytes are those of the busiest rank, sent or received. Between hosts,
// bytes are those of a host's cable, which its ranks share. The formulas count what the
// schedules do (a test compares them). Pure functions.
//
//   const Choice choice = Select(problem, /*element_bytes=*/4, topology);
//   log.Info(choice.reason);  // "ring: 1.2 ms; halving: 1.3 ms, direct: 1.5 ms"
#pragma once

#include <string>

#include "comm/collective/schedule/schedule.h"

namespace syncline::collective {

struct LinkCost {
  double latency = 0;      // seconds from a send until the receiver can continue
  double per_message = 0;  // seconds of the rank's own time
  double per_byte = 0;     // seconds, one direction

  bool operator==(const LinkCost&) const = default;
};

// Costs within a host, between hosts, and of a reduction. Defaults: measured on two cores
// of an AMD EPYC (`syncline bench collective`), and a network of 10 Gbit/s.
struct Costs {
  LinkCost host = {.latency = 0.6e-6, .per_message = 0.3e-6, .per_byte = 0.06e-9};
  LinkCost network = {.latency = 25e-6, .per_message = 5e-6, .per_byte = 0.8e-9};
  double per_reduced_byte = 0.05e-9;

  bool operator==(const Costs&) const = default;
};

struct Topology {
  int hosts = 1;
  Costs costs = {};
};

// Costs of the busiest rank, computed from the problem's sizes only.
struct Traffic {
  int rounds = 0;  // messages that must follow each other
  double messages = 0;
  double bytes = 0;
  double reduced_bytes = 0;
  // The part of rounds and messages within a host. Zero for flat algorithms, even if
  // ranks share a host.
  int host_rounds = 0;
  double host_messages = 0;
  // Bytes between all ranks of a host and other hosts, in one direction.
  double cable_bytes = 0;
};

// REQUIRES: Supports(algorithm, problem); equal counts.
Traffic TrafficOf(const Problem& problem, Algorithm algorithm, size_t element_bytes);

double EstimateSeconds(const Traffic& traffic, const Topology& topology);

struct Choice {
  Algorithm algorithm = Algorithm::kDirect;
  double seconds = 0;
  std::string reason;
};

// All ranks must make the same choice: give them all the same topology.
Choice Select(const Problem& problem, size_t element_bytes, const Topology& topology);

}  // namespace syncline::collective
