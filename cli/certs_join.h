// `syncline certs token`, `serve` and `join`: how a new machine gets its first certificate
// without anyone copying a key.
//
//   syncline certs token certs --role worker --job bert --address ca.example:7073
//   syncline certs serve certs                       # on the same machine, meanwhile
//   syncline certs join sl1.…@ca.example:7073        # on the new one
//
// cli/authority has what they do.
#pragma once

#include <cstdint>
#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/command.h"

namespace syncline {

struct CertsToken {
  std::string directory = {};  // of certs init
  std::string role = {};
  std::string job = {};
  std::string ttl = "1h";
  uint32_t uses = 1;
  double hours = 24;
  std::string address = {};  // of certs serve; empty: this host's name and 7073
};

// The token, as ParseJoinToken takes it. Nothing keeps its secret.
absl::StatusOr<std::string> MakeToken(const CertsToken& order);

// To `syncline certs`.
void AddCertsJoin(CLI::App& certs, Command* selected);

}  // namespace syncline
