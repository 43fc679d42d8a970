// `syncline certs token`, `serve` and `join`: give a new machine its first certificate
// without copying a key.
//
//   syncline certs token certs --role worker --job bert --address ca.example:7073
//   syncline certs serve certs                       # on the same machine
//   syncline certs join sl1.…@ca.example:7073        # on the new machine
//
// The implementation is in cli/authority.
#pragma once

#include <cstdint>
#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/command.h"

namespace syncline {

struct CertsToken {
  std::string directory = {};  // made by certs init
  std::string role = {};
  std::string job = {};
  std::string ttl = "1h";
  uint32_t uses = 1;
  double hours = 24;
  std::string address = {};  // of certs serve; empty: this host's name, port 7073
};

// Returns a new token in the form that ParseJoinToken reads. Its secret is not stored.
absl::StatusOr<std::string> MakeToken(const CertsToken& order);

// Adds the subcommands to `syncline certs`.
void AddCertsJoin(CLI::App& certs, Command* selected);

}  // namespace syncline
