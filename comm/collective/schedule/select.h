// Which algorithm: what each would take by a model of the network, and the least of them.
//
// seconds = rounds x latency + messages x per_message + bytes x per_byte
//         + reduced bytes x per_reduced_byte,
// where messages and bytes are those of the busiest rank, sent or received; between hosts,
// bytes are those of a host's cable, which its ranks share. What is
// counted is the schedules' own (a test holds the formulas against them). Pure.
//
//   const Choice choice = Select(problem, /*element_bytes=*/4, topology);
//   log.Info(choice.reason);  // "ring: 1.2 ms; halving: 1.3 ms, direct: 1.5 ms"
#pragma once

#include <string>

#include "comm/collective/schedule/schedule.h"

namespace syncline::collective {

struct LinkCost {
  double latency = 0;      // seconds from a send to what follows at the receiver
  double per_message = 0;  // seconds of a rank's own time
  double per_byte = 0;     // seconds, one direction
};

struct Topology {
  int hosts = 1;
  // Between processes of a host, and between hosts. Defaults: measured on two cores of an
  // AMD EPYC (`syncline bench collective`), and a network of 10 Gbit/s.
  LinkCost host = {.latency = 0.6e-6, .per_message = 0.3e-6, .per_byte = 0.06e-9};
  LinkCost network = {.latency = 25e-6, .per_message = 5e-6, .per_byte = 0.8e-9};
  double per_reduced_byte = 0.05e-9;
};

// Of the busiest rank, from its problem's sizes alone.
struct Traffic {
  int rounds = 0;  // messages that must follow each other
  double messages = 0;
  double bytes = 0;
  double reduced_bytes = 0;
  // Of the rounds and messages, those within a host. Flat algorithms: none, though ranks
  // may be neighbours.
  int host_rounds = 0;
  double host_messages = 0;
  // Of all ranks of a host to other hosts, or from them.
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

// All ranks must choose alike: give all of them the same topology.
Choice Select(const Problem& problem, size_t element_bytes, const Topology& topology);

}  // namespace syncline::collective
